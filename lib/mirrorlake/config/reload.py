"""A flow whose property file may change while a job runs. Changes of live options take effect; for the others the job
says that they wait for a restart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from mirrorlake.config.flow import Flow, require_rates
from mirrorlake.config.options import OPTIONS
from mirrorlake.errors import ConfigurationError

# The fields that a running job takes over. Connections, names, slots and state wait for a restart.
LIVE = frozenset({"warnings", "dead_letters_on_source", *(option.field for option in OPTIONS if option.is_live)})
# While one of these waits, so does what lets more pass: no topic may be mirrored without the mask that came with it,
# under another name, or round and round.
TRANSFORMING = frozenset({"transforms", "registries", "dead_letter_topic"})
NAMING = frozenset({"policy", "policy_back", "records", "minds_provenance", "bringers", "topics_shared"})
AT_START = frozenset({"shares_by_default"})  # of no effect in a job that runs
RATES = frozenset({"max_bytes_per_s", "backfill_max_bytes_per_s"})
NOT_IN_FILE = frozenset({"refills", "ignores_pause", "loses_states"})  # jobs set them

OF_GROUPS = frozenset(
    {
        "topics",
        "groups",
        "policy",
        "transforms",
        "topics_shared",
        "sync_group_offsets_enabled",
        "sync_group_offsets_interval_s",
        "emit_checkpoints_enabled",
        "emit_checkpoints_interval_s",
        "refresh_groups_interval_s",
        "source_connection",
        "target_connection",
    }
)

Stamp = tuple[int, int]  # when the file was changed, and its size

SETTLING_S = 1.0  # an editor may still be writing the file


@dataclass(frozen=True)
class Notice:
    """A change of the property file, for the log of the job that runs.

    Attributes:
        event: the name of the event.
        detail: what is in effect, what waits for a restart, or why the file is not used.
        is_warning: the job does not do what the file says.
    """

    event: str
    detail: str
    is_warning: bool


class LiveFlow:
    """The newest version of a flow that a running job may use.

    Args:
        config: the property file.
        flow: the flow as it was read from there.
        slots: the number of slots that can have work, among which rates are shared.
        seen: the version of the file that `flow` is of; None for the present one.

    Attributes:
        seen: the version of the file whose changes are in effect, or were told of.
    """

    def __init__(self, config: str | Path, flow: Flow, slots: int = 1, seen: Stamp | None = None) -> None:
        self.flow, self.slots = flow, slots
        self._config = Path(config)
        self.seen = self._newer = self._stamp() if seen is None else seen
        self._newer_since = 0.0

    def poll(self) -> list[Notice]:
        """Takes over changes of the file into `flow`, as far as a running job can. Costs one stat if there are none.

        Returns:
            What the operator should know of the changes.
        """
        if not self._has_changed():
            return []
        try:
            new = Flow.load(self._config, self.flow.name)
            require_rates(new, self.slots)
        except ConfigurationError as error:
            detail = f"{self._config} has changed and is not used: {error.message}"
            return [Notice("configuration_refused", detail, is_warning=True)]
        names = {field.name for field in fields(Flow)} - NOT_IN_FILE - AT_START
        changed = {name for name in names if getattr(new, name) != getattr(self.flow, name)}
        if not changed:
            return []
        unknown = [
            Notice("configuration_warning", warning, is_warning=True)
            for warning in new.warnings
            if warning not in self.flow.warnings
        ]
        has_transforms = new.transforms or self.flow.transforms
        if waiting := changed & (NAMING | TRANSFORMING if has_transforms else NAMING):
            at_once = _at_once(self.flow, new, waits_for_transform=bool(waiting & TRANSFORMING))
            self.flow = replace(self.flow, **at_once)
            later = sorted(name for name in waiting | changed & LIVE if getattr(new, name) != getattr(self.flow, name))
            detail = (
                f"{self._config} has changed: {', '.join(later)} takes effect when the job is started again. "
                f"{', '.join(sorted(waiting))} can't change in a job that runs, and no topic may be mirrored without "
                "its transform, or under another name"
            )
            return [*self._notices({*at_once}), Notice("configuration_deferred", detail, is_warning=True), *unknown]
        self.flow = replace(self.flow, **{name: getattr(new, name) for name in changed & LIVE})
        return [*self._notices(changed), *unknown]

    def _has_changed(self) -> bool:
        """Returns True once for each version of the file, when it has stayed as it is for a while."""
        stamp, now = self._stamp(), time.monotonic()
        if stamp == self.seen:
            return False
        if stamp != self._newer:
            self._newer, self._newer_since = stamp, now
        if now < self._newer_since + SETTLING_S:
            return False
        self.seen = stamp
        return True

    def _notices(self, changed: set[str]) -> Iterator[Notice]:
        if now := sorted(changed & LIVE - {"warnings"}):
            detail = f"{self._config} has changed: {', '.join(now)} now in effect"
            yield Notice("configuration_changed", detail, is_warning=False)
        if later := sorted(changed - LIVE):
            detail = f"{self._config} has changed: {', '.join(later)} takes effect when the job is started again"
            yield Notice("configuration_deferred", detail, is_warning=True)

    def _stamp(self) -> Stamp | None:
        try:
            stat = self._config.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size


class GroupsFlow(LiveFlow):
    """The flow of a checkpoint job, which takes over no change of the file while it runs.

    Attributes:
        newest: the flow as the file has it by now.
    """

    def __init__(self, config: str, flow: Flow) -> None:
        super().__init__(config, flow)
        self.newest = flow

    def poll(self) -> list[Notice]:
        """Tells which changes of the file wait until the job is started again, of those that concern groups."""
        if not self._has_changed():
            return []
        try:
            self.newest = new = Flow.load(self._config, self.flow.name)
        except ConfigurationError:
            return []  # the mirror job tells it
        later = sorted(name for name in OF_GROUPS if getattr(new, name) != getattr(self.flow, name))
        if not later:
            return []
        detail = f"{self._config} has changed: {', '.join(later)} takes effect when the checkpoint job is started again"
        return [Notice("configuration_deferred", detail, is_warning=True)]


def _at_once(old: Flow, new: Flow, *, waits_for_transform: bool) -> dict[str, Any]:
    """Returns the fields, with their values, that take effect while names or transforms wait for a restart.

    No topic is added. If a transform waits, nothing passes that did not pass before; else what is paused may go on, as
    a topic that is mirrored has its name already.
    """
    include = new.topics.include if {*new.topics.include} <= {*old.topics.include} else old.topics.include
    exclude = tuple(dict.fromkeys(old.topics.exclude + new.topics.exclude))
    values = {name: getattr(new, name) for name in ((*RATES, "warnings") if waits_for_transform else LIVE)}
    values["topics"] = replace(old.topics, include=include, exclude=exclude)
    if waits_for_transform:
        before, after = old.topics_paused, new.topics_paused
        pauses_more = {*before.include} <= {*after.include} and {*after.exclude} <= {*before.exclude}
        values |= {"paused": old.paused or new.paused, "topics_paused": after if pauses_more else before}
    return {name: value for name, value in values.items() if value != getattr(old, name)}
