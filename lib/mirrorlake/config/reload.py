"""A flow whose property file may change while a job runs. Changes of live options take effect; for the others the job
says that they wait for a restart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from mirrorlake.config.flow import Flow
from mirrorlake.config.options import OPTIONS
from mirrorlake.errors import ConfigurationError

# The fields that a running job takes over. Connections, names, slots and state wait for a restart.
LIVE = frozenset({"warnings", *(option.field for option in OPTIONS if option.is_live)})

SETTLING_S = 1.0  # an editor may still be writing the file


class LiveFlow:
    """The newest version of a flow that a running job may use.

    Args:
        config: the property file.
        flow: the flow as it was read from there.
    """

    def __init__(self, config: str | Path, flow: Flow) -> None:
        self.flow = flow
        self._config = Path(config)
        self._seen = self._newer = self._stamp()
        self._newer_since = 0.0

    def poll(self) -> list[str]:
        """Takes over changes of the file into `flow`, as far as a running job can. Costs one stat if there are none.

        Returns:
            Lines about the changes, for the operator.
        """
        stamp, now = self._stamp(), time.monotonic()
        if stamp == self._seen:
            return []
        if stamp != self._newer:
            self._newer, self._newer_since = stamp, now
        if now < self._newer_since + SETTLING_S:
            return []
        self._seen = stamp
        try:
            new = Flow.load(self._config, self.flow.name)
        except ConfigurationError as error:
            return [f"warning: {self._config} has changed and is not used: {error.message}"]
        changed = {field.name for field in fields(Flow) if getattr(new, field.name) != getattr(self.flow, field.name)}
        if not changed:
            return []
        self.flow = replace(self.flow, **{name: getattr(new, name) for name in changed & LIVE})
        return list(self._messages(changed))

    def _messages(self, changed: set[str]) -> Iterator[str]:
        if now := sorted(changed & LIVE - {"warnings"}):
            yield f"{self._config} has changed: {', '.join(now)} now in effect"
        if later := sorted(changed - LIVE):
            yield (
                f"warning: {self._config} has changed: {', '.join(later)} takes effect when the job is started again"
            )

    def _stamp(self) -> tuple[int, int] | None:
        try:
            stat = self._config.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size
