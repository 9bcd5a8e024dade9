"""Reads the positions of groups: their committed offsets on a cluster now, or those in the ledger at a given time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from mirrorlake.config.flow import Flow
from mirrorlake.config.name_filter import NameFilter
from mirrorlake.ledger import views
from mirrorlake.ledger.checkpoint_row import Checkpoint, GroupKey, last_deletions
from mirrorlake.ledger.journal import CycleJob
from mirrorlake.ledger.store import Ledger, rows_of_pair
from mirrorlake.model.status import SETTLED, Status
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.group_offsets import each_groups_offsets
from mirrorlake.protocol.group_requests import SHARE, WITH_OFFSETS, list_groups_of_each
from mirrorlake.reasons import KEPT

LOADING_S, AGAIN_S = 10.0, 0.5
NEWEST = """
WITH seen AS (SELECT * FROM {checkpoints} WHERE created_at <= {at}),
ended AS (SELECT group_id, max(created_at) AS at FROM seen WHERE topic IS NULL AND status = {deleted}
  GROUP BY group_id),
newest AS (
  SELECT s.group_id, s.topic, s.partition, max_by(struct(s.upstream_offset, s.metadata, s.status, s.reason,
    s.created_at), s.created_at) AS row
  FROM seen s LEFT JOIN ended e ON e.group_id = s.group_id WHERE e.at IS NULL OR s.created_at > e.at
    GROUP BY s.group_id, s.topic, s.partition
)
SELECT group_id, topic, partition, row.* FROM newest WHERE row.status <> {deleted}
"""


class SeenIn(StrEnum):
    """Where a position was read: column seen_in of the table failovers."""

    SOURCE = "source"
    LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class Standing:
    """A group's position on the source.

    `seen_in` is `source` or `ledger`. `seen_at` (UTC) is the time at which it was read, or from which the ledger has
    it. A row without a topic is about a share group (KIP-932), which has no positions. `unread_since` (UTC) is the time
    since when the checkpoint job has only kept the position, as the source did not tell it; None if it does. `reason`
    is that of the row in the ledger.
    """

    group_id: str
    topic: str | None
    partition: int | None
    upstream_offset: int | None
    metadata: str
    seen_in: SeenIn
    seen_at: datetime
    unread_since: datetime | None = None
    reason: str | None = None


def on_cluster(
    cluster: Cluster, flow: Flow, groups: NameFilter, known: Iterable[str] = ()
) -> tuple[list[Standing], dict[str, str], bool]:
    """Reads the committed offsets of the flow's groups on a cluster.

    Args:
        cluster: the cluster.
        flow: flow of the groups.
        groups: filter for the groups.
        known: names of groups to ask for even if the cluster does not list them: it lists only those that this
            principal may describe, and whose coordinators answer.

    Returns:
        The positions, the reason for each group whose positions can't be read, and whether all brokers have told of
        their groups.

    Raises:
        SourceError: no broker tells of its groups.
    """
    now = datetime.now(UTC).replace(tzinfo=None)
    listed, is_complete = list_groups_of_each(cluster, flow.connect_timeout_ms)
    deadline = time.monotonic() + min(LOADING_S, flow.connect_timeout_ms / 1000)
    while not is_complete and time.monotonic() < deadline:  # after an election, a coordinator loads its groups
        time.sleep(AGAIN_S)
        more, is_complete = list_groups_of_each(cluster, flow.connect_timeout_ms)
        listed |= more
    found = {name: group for name, group in listed.items() if flow.moves_group(name) and name in groups}
    named = {name for name, group in found.items() if group.kind != SHARE and group.protocol_type in WITH_OFFSETS}
    named |= {name for name in known if name not in found and flow.moves_group(name) and name in groups}
    offsets, failed = each_groups_offsets(cluster, sorted(named), flow.connect_timeout_ms, is_stable=True)
    shared = [
        Standing(
            group_id=name,
            topic=None,
            partition=None,
            upstream_offset=None,
            metadata="",
            seen_in=SeenIn.SOURCE,
            seen_at=now,
        )
        for name, group in sorted(found.items())
        if group.kind == SHARE
    ]
    positions = [
        Standing(
            group_id=group,
            topic=position.topic,
            partition=position.partition,
            upstream_offset=position.offset,
            metadata=position.metadata,
            seen_in=SeenIn.SOURCE,
            seen_at=now,
        )
        for group, committed in offsets.items()
        for position in committed
        if position.offset >= 0
    ]
    return shared + positions, {group: str(error) for group, error in failed.items()}, is_complete


def in_ledger(ledger: Ledger, flow: Flow, groups: NameFilter, at: datetime | None) -> list[Standing]:
    """Reads the positions of groups from the table checkpoints, at a time (UTC) or the newest ones.

    Groups and positions that were deleted by then are left out.

    Args:
        ledger: the tables.
        flow: flow of the groups.
        groups: filter for the groups.
        at: time of the positions, UTC; None for the newest.
    """
    limit = "timestamp_ntz'9999-01-01'" if at is None else f"timestamp_ntz'{at.isoformat(sep=' ')}'"
    # The session writes naive UTC values and runs in UTC, so times in the tables are UTC.
    rows = ledger.spark.sql(
        NEWEST.replace("{at}", limit), checkpoints=ledger.of_flow("checkpoints", flow), deleted=Status.DELETED
    ).collect()
    return [
        Standing(
            group_id=row["group_id"],
            topic=row["topic"],
            partition=row["partition"],
            upstream_offset=row["upstream_offset"],
            metadata=row["metadata"] or "",
            seen_in=SeenIn.LEDGER,
            seen_at=row["created_at"],
            unread_since=row["created_at"] if row["reason"] in KEPT else None,
            reason=row["reason"],
        )
        for row in rows
        if row["group_id"] in groups and flow.moves_group(row["group_id"])
    ]


def settled(ledger: Ledger, flow: Flow) -> dict[GroupKey, Checkpoint]:
    """Returns the newest row of each group and partition that was in step with the target (SETTLED).

    Rows from before the last deletion of their group are left out.
    """
    from pyspark.sql import functions as F

    rows = ledger.of_flow("checkpoints", flow)
    newest = F.max_by(F.struct(*rows.columns), "created_at").alias("row")
    found = (
        rows.filter(F.col("sync").isin(*SETTLED))
        .join(last_deletions(rows), "group_id", "left")
        .filter("ended_at IS NULL OR created_at > ended_at")
        .groupBy("group_id", "topic", "partition")
        .agg(newest)
    )
    return {
        checkpoint.key: checkpoint for checkpoint in map(Checkpoint.from_row, (row["row"] for row in found.collect()))
    }


def confirmed_at(ledger: Ledger, flow: Flow, at: datetime | None) -> datetime | None:
    """Returns the time of the last checkpoint cycle, up to a time (UTC); None if none is recorded.

    A cycle reads all positions anew, and the table checkpoints holds changes only. Each position in the ledger was
    therefore the group's position at that time, unless the source did not tell it (`Standing.unread_since`). Changes
    are appended in their cycle, but rows of cycles wait for up to half a minute (`Journal`), and are missing if the job
    was killed.
    """
    from pyspark.sql import functions as F

    finished = ledger.of_flow("cycles", flow).filter(F.col("job") == CycleJob.CHECKPOINT).select("finished_at")
    times = finished.union(ledger.of_flow("checkpoints", flow).select("created_at"))
    if at is not None:
        times = times.filter(F.col("finished_at") <= F.lit(at))
    return times.agg(F.max("finished_at")).collect()[0][0]


def ends_seen(ledger: Ledger, flow: Flow) -> dict[tuple[str, int], int]:
    """Returns the end of each source partition that the checkpoint job has recorded last, by topic and partition.

    Ends of a log that was mirrored before a reset are left out.
    """
    from pyspark.sql import functions as F

    rows = rows_of_pair(views.read(ledger, "lag"), flow.source, flow.target)
    ends = rows.groupBy("topic", "partition").agg(F.max("log_end").alias("end")).filter("end IS NOT NULL")
    return {(row["topic"], row["partition"]): row["end"] for row in ends.collect()}


def partitions_seen(ledger: Ledger, flow: Flow) -> set[PartitionKey]:
    """Returns the source partitions in which the table checkpoints has positions of groups."""
    rows = ledger.of_flow("checkpoints", flow).filter("topic IS NOT NULL").select("topic", "partition").distinct()
    return {(row["topic"], row["partition"]) for row in rows.collect()}


def names(standings: Iterable[Standing]) -> list[str]:
    """Returns the sorted names of the groups."""
    return sorted({standing.group_id for standing in standings})
