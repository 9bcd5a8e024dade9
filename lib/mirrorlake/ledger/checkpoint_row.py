"""A row of the table checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from mirrorlake.model.status import SETTLED, Status, SyncOutcome
from mirrorlake.reasons import PositionReason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

GroupKey = tuple[
    str, str | None, int | None
]  # group, topic, partition; a row about a whole group has neither topic nor partition


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One row of the table checkpoints: the position of a group on both sides."""

    source: str
    target: str
    group_id: str
    topic: str | None
    partition: int | None
    status: Status | str
    cycle_id: str
    created_at: datetime
    target_topic: str | None = None
    target_partition: int | None = None
    upstream_offset: int | None = None
    downstream_offset: int | None = None
    metadata: str | None = None
    source_lag: int | None = None
    reason: str | None = None
    target_offset: int | None = None
    sync: SyncOutcome | str | None = None

    @classmethod
    def from_row(cls, row: Row) -> Checkpoint:
        """Makes a checkpoint from a row of the table.

        After a rollback, a later version may have written it: its columns are left out, and its words are kept.
        """
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in row.asDict().items() if name in known}
        sync = values["sync"]
        return cls(
            **{
                **values,
                "status": _word(Status, values["status"]),
                "sync": None if sync is None else _word(SyncOutcome, sync),
            }
        )

    @property
    def key(self) -> GroupKey:
        """Returns group, topic and partition."""
        return self.group_id, self.topic, self.partition

    def says_the_same_as(self, other: Checkpoint | None) -> bool:
        """Returns True if `other` differs in no column that the history keeps.

        The lag is ignored, because it changes with every record; and in topics that belong to no flow, so are the
        offset and its text, as the groups of a whole cluster would fill the table.
        """
        names = ["status", "reason"]
        if self.reason != PositionReason.NOT_OF_FLOW:
            names += ["upstream_offset", "downstream_offset", "metadata"]
        return (
            other is not None
            and all(getattr(self, name) == getattr(other, name) for name in names)
            and (self.sync == other.sync or {self.sync, other.sync} <= SETTLED)
        )


def _word(words: type[StrEnum], word: str) -> str:
    return words(word) if word in {*words} else word


def last_deletions(rows: DataFrame) -> DataFrame:
    """Finds the time of the last deletion of each group that was ever deleted: group_id and ended_at."""
    from pyspark.sql import functions as F

    is_end = (F.col("status") == Status.DELETED) & F.col("topic").isNull()
    return rows.filter(is_end).groupBy("group_id").agg(F.max("created_at").alias("ended_at"))


def last_checkpoints(rows: DataFrame) -> list[dict[str, Checkpoint]]:
    """Finds the last row of every group and partition (`known`), and the last one with a settled outcome (`settled`).

    Groups that were deleted since, and their positions, are left out: there may be millions of them. If the newest row
    of all is that of a deletion, it stays.
    """
    from pyspark.sql import functions as F

    newest = F.struct(*rows.columns)
    last = rows.groupBy("group_id", "topic", "partition").agg(
        F.max_by(newest, "created_at").alias("known"),
        F.max_by(newest, F.when(rows.sync.isin(*SETTLED), rows.created_at)).alias("settled"),
    )
    last = (
        last.join(last_deletions(rows), "group_id", "left")
        .withColumn("settled", F.expr("CASE WHEN ended_at IS NULL OR settled.created_at >= ended_at THEN settled END"))
        .crossJoin(F.broadcast(rows.agg(F.max("created_at").alias("newest_at"))))
        .filter(
            f"CASE WHEN topic IS NULL THEN known.status <> '{Status.DELETED}' OR known.created_at = newest_at "
            "ELSE ended_at IS NULL OR known.created_at >= ended_at END"
        )
    )
    return [
        {name: Checkpoint.from_row(row[name]) for name in ("known", "settled") if row[name] is not None}
        for row in last.collect()
    ]
