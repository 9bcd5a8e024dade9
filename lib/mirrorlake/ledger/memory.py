"""A ledger in memory, for jobs without Spark. The offset map stays on the target, in the offset-syncs topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import datetime
from typing import Any

from mirrorlake.config.flow import Flow
from mirrorlake.ledger.checkpoint_row import Checkpoint, GroupKey
from mirrorlake.model.status import SETTLED
from mirrorlake.protocol.topic_changes import OF_CONFIGS, UNANSWERED, ChangeKind, ChangeOutcome, configs_set


class NoStream:
    """A stand-in for the ledger's stream."""

    isActive = True  # noqa: N815 (StreamingQuery's name)

    def stop(self) -> None:
        """Does nothing."""

    def awaitTermination(self) -> None:  # noqa: N802
        """Returns at once."""

    def exception(self) -> None:
        """Returns None, because nothing can fail."""


class MemoryLedger:
    """The rows of a job's tables, kept while the process runs.

    Attributes:
        rows: dictionaries by table, in the order in which they were appended.
    """

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def ensure_tables(self) -> MemoryLedger:
        """Returns the ledger itself, because there is nothing to create."""
        return self

    def append(self, name: str, rows: Iterable[Any]) -> None:
        """Keeps dataclass instances or dictionaries as rows of a table."""
        self.rows.setdefault(name, []).extend(row if isinstance(row, dict) else asdict(row) for row in rows)

    def checkpoint(self, name: str) -> AbstractContextManager[str]:
        """Returns an empty path, because no query needs a checkpoint directory."""
        return nullcontext("")

    def last_checkpoints(self, flow: Flow) -> list[dict[str, Checkpoint]]:
        """See `Ledger.last_checkpoints`."""
        found: dict[GroupKey, dict[str, Checkpoint]] = {}
        for row in (Checkpoint(**values) for values in self.rows.get("checkpoints", ())):
            if (row.source, row.target) == (flow.source, flow.target):
                found.setdefault(row.key, {}).update({"known": row} | ({"settled": row} if row.sync in SETTLED else {}))
        return list(found.values())

    def verified_at(self, flow: Flow) -> datetime | None:
        """Returns None: verifications need Spark."""
        return None

    def set_configs(self, flow: Flow) -> dict[tuple[str, str], str]:
        """Returns the value of each property of a remote topic that mirrorlake has set, and not reset."""
        return configs_set(
            row
            for row in self.rows.get("topology_changes", ())
            if (row["source"], row["target"]) == (flow.source, flow.target)
            and row["outcome"] == ChangeOutcome.APPLIED
            and row["kind"] in OF_CONFIGS
        )

    def has_map(self, flow: Flow) -> bool:
        """Returns False: the topic itself has the map."""
        return False

    def granted_acls(self, flow: Flow) -> list[str]:
        """Lists the ACL bindings that mirrorlake has created and not deleted, as text."""
        last: dict[str, str] = {}
        for row in self.rows.get("topology_changes", ()):
            is_of_flow = (row["source"], row["target"]) == (flow.source, flow.target)
            is_there = str(row["outcome"]).startswith((ChangeOutcome.APPLIED, UNANSWERED))
            if is_of_flow and is_there and str(row["kind"]).endswith("_acl"):
                last[str(row["after"] or row["before"])] = str(row["kind"])
        return [acl for acl, kind in last.items() if kind == ChangeKind.CREATE_ACL]

    def catch_up(
        self,
        flow: Flow,
        partitions: int,
        appended: Callable[[int, float], None] = lambda _runs, _seconds: None,
    ) -> None:
        """Copies nothing: the topic itself has the map."""

    def stream_offset_syncs(
        self,
        flow: Flow,
        partitions: int,
        interval_s: float,
        checkpoint: str,
        appended: Callable[[int, float], None] = lambda runs, seconds: None,
    ) -> NoStream:
        """Copies nothing, because the topic itself holds the map.

        Args:
            flow: the flow of the topic.
            partitions: the number of partitions of the topic.
            interval_s: the seconds between two appends, or None.
            checkpoint: the directory of the query.
            appended: a callback that is never called.
        """
        return NoStream()
