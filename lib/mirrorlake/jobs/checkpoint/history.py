"""What earlier cycles have found and done, by group and partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from mirrorlake.config.flow import Flow
from mirrorlake.ledger.checkpoint_row import Checkpoint, GroupKey
from mirrorlake.ledger.memory import MemoryLedger
from mirrorlake.ledger.store import Ledger
from mirrorlake.model.gap import GapKind
from mirrorlake.model.status import SETTLED, Status
from mirrorlake.partition_key import PartitionKey
from mirrorlake.translation.group_cache import GroupTranslation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGEST_OFFSET = 2**63 - 1


class History:
    """The rows of one flow in `checkpoints`, as far as the next cycle needs them.

    Args:
        ledger: the ledger with the rows of earlier jobs.
        flow: the flow.

    Attributes:
        known: the last row of every group and partition.
        settled: the last row with a settled outcome (SETTLED), which may be missing.
    """

    def __init__(self, ledger: Ledger | MemoryLedger, flow: Flow) -> None:
        self._ledger, self._flow = ledger, flow
        self.known: dict[GroupKey, Checkpoint] = {}
        self.settled: dict[GroupKey, Checkpoint] = {}
        self._newest = datetime.min
        self._is_compared = False  # with what is mirrored
        # Incarnations of partitions with resets, as of the last `forget_lost_targets`.
        self._incarnations: dict[PartitionKey, int] | None = None

    def recall(self) -> None:
        """Reads the last row of every group and partition from the ledger, and the last row with a settled outcome
        (SETTLED)."""
        found = self._ledger.last_checkpoints(self._flow)
        self._newest = max((row["known"].created_at for row in found), default=self._newest)
        gone = {
            row["known"].group_id: row["known"].created_at
            for row in found
            if row["known"].status is Status.DELETED and row["known"].topic is None
        }
        self.known, self.settled = (
            {
                row[name].key: row[name]
                for row in found
                if name in row and not row[name].created_at < gone.get(row[name].group_id, row[name].created_at)
            }
            for name in ("known", "settled")
        )

    def next_time(self, now: datetime) -> datetime:
        """Returns the time (UTC) of a new cycle: `now`, but later than all rows, as the newest one counts.

        The clock of the machine may have been set back. The microsecond between is for rows that are to count before
        those of the cycle.
        """
        self._newest = max(now, self._newest + timedelta(microseconds=2))
        return self._newest

    def note(self, synced: Iterable[Checkpoint], whole: Iterable[Checkpoint], gone: Iterable[str]) -> None:
        """Keeps the rows of one cycle for the next.

        Args:
            synced: the rows of positions.
            whole: the rows about whole groups and ended positions.
            gone: the groups that have no position any more.
        """
        synced, without = list(synced), {*gone}
        self.known = {row.key: row for row in [*synced, *whole] if row.status is not Status.DELETED}
        self.settled = {key: row for key, row in self.settled.items() if row.group_id not in without} | {
            row.key: row for row in synced if row.sync in SETTLED
        }

    def gone(self, groups: set[str]) -> list[str]:
        """Returns the groups that had a position, and have none in any topic now."""
        return sorted({group for group, _, _ in self.known} - groups)

    def returned(self, shared: Iterable[str], groups: set[str]) -> list[str]:
        """Returns the groups that are share groups no more, and have positions now."""
        as_whole = {
            group for (group, topic, _), row in self.known.items() if topic is None and row.status is not Status.DELETED
        }
        return sorted(as_whole.intersection(groups).difference(shared))

    def ended(self, keys: set[GroupKey], gone: set[str]) -> list[GroupKey]:
        """Returns the positions that a group had, and has no more, though it has others."""
        return sorted(
            key
            for key, row in self.known.items()
            if row.topic is not None and row.group_id not in gone and key not in keys
        )

    def forget_lost_targets(self, translation: GroupTranslation, session: SparkSession | None) -> None:
        """Forgets the rows of partitions whose remote topic was created anew.

        Offsets begin anew there, so earlier target offsets can't be compared.
        """
        incarnations = translation.incarnations
        if not self._is_compared:
            self._is_compared = True
            self._forget_former_flow(translation.mirrored_ends, translation.log_starts.known)
        if incarnations == self._incarnations or session is None or translation.flow_map is None:
            return
        if not incarnations:
            self._incarnations = incarnations
            return
        from pyspark.sql import functions as F

        gaps = translation.flow_map.read(session).gaps.filter(F.col("kind") == GapKind.TARGET_RECREATED)
        last = gaps.groupBy("topic", "partition").agg(
            F.max("committed_at").alias("at"), F.max(F.coalesce("incarnation", F.lit(0))).alias("incarnation")
        )
        lost = {(row["topic"], row["partition"]): (row["incarnation"], row["at"]) for row in last.collect()}
        before, self._incarnations = self._incarnations, incarnations
        for rows in (self.known, self.settled):
            for key in [key for key, row in rows.items() if key[1:] in lost and _is_lost(row, *lost[key[1:]], before)]:
                del rows[key]

    def _forget_former_flow(self, ends: Mapping[PartitionKey, int], log_starts: Mapping[PartitionKey, int]) -> None:
        """Forgets the places of a partition, if one is behind all that is mirrored: its flow was begun anew since.

        The start of a log that retention has emptied is behind all that is mirrored, too.
        """

        def end_of(row: Checkpoint) -> int:
            end = ends.get((row.topic or "", row.partition or 0), LARGEST_OFFSET)
            return max(end, log_starts.get((row.target_topic or "", row.target_partition or 0), 0))

        former = {
            key[1:]
            for rows in (self.known, self.settled)
            for key, row in rows.items()
            if row.topic is not None and row.partition is not None and (row.downstream_offset or 0) > end_of(row)
        }
        for rows in (self.known, self.settled):
            for key in [key for key in rows if key[1:] in former]:
                del rows[key]


def _is_lost(row: Checkpoint, ended: int, at: datetime, seen: Mapping[PartitionKey, int] | None) -> bool:
    """Returns True if a row was made before the remote topic was created anew.

    A job that has seen the partition before goes by its incarnation, as clocks of machines differ.

    Args:
        row: the row.
        ended: the last incarnation that ended so.
        at: the time of that.
        seen: the incarnations when the job looked last; None if it has not looked yet.
    """
    return row.created_at < at if seen is None else seen.get((row.topic or "", row.partition or 0), 0) <= ended
