"""Rebuilds the positions of groups in a ledger that was lost, as with the region of its workspace.

The checkpoint job writes each position to MirrorMaker 2's checkpoints topic on the target, too. The offset map comes
back from the offset-syncs topic (`Ledger.catch_up`), so the target is enough for a failover.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from mirrorlake.config.flow import Flow
from mirrorlake.ledger.checkpoint_row import Checkpoint
from mirrorlake.ledger.store import Ledger
from mirrorlake.log import event
from mirrorlake.model.slot import Position, merge_positions
from mirrorlake.model.status import Status
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol import mm2_topics
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.mm2_topics import GroupCheckpoint
from mirrorlake.state import offset_syncs

log = logging.getLogger(__name__)


def rebuild_positions(ledger: Ledger, flow: Flow, target: Cluster) -> int:
    """Adds to the table checkpoints what it lacks of the checkpoints topic; returns the number of rows.

    The log says how many were added, and how many records of the topic were left out and why. To repeat it adds
    nothing.

    Args:
        ledger: the tables, which exist.
        flow: the flow of the groups.
        target: the cluster that has the topics.

    Raises:
        TargetError: a topic can't be read.
        LedgerError: the table can't be written.
    """
    rows, left_out = missing_positions(ledger, flow, target)
    if rows:
        ledger.append("checkpoints", rows)
        topic = flow.policy.checkpoints_topic()
        log.warning(event("positions_rebuilt", flow=flow.name, topic=topic, positions=len(rows), **left_out))
    return len(rows)


def missing_positions(ledger: Ledger, flow: Flow, target: Cluster) -> tuple[list[Checkpoint], dict[str, int]]:
    """Reads the positions of the checkpoints topic that the table checkpoints lacks; see `missing`."""
    topic, timeout_ms = flow.policy.checkpoints_topic(), flow.connect_timeout_ms
    states = offset_syncs.read_all_states(target, flow.offset_syncs_topic, timeout_ms).values()
    return missing(
        flow,
        mm2_topics.read_checkpoints(target, topic, timeout_ms),
        merge_positions(states).values(),
        [row["known"] for row in ledger.last_checkpoints(flow) if "known" in row],
    )


def missing(
    flow: Flow, records: Iterable[GroupCheckpoint], positions: Iterable[Position], rows: Iterable[Checkpoint]
) -> tuple[list[Checkpoint], dict[str, int]]:
    """Finds the positions of the checkpoints topic that the table checkpoints lacks.

    Each cycle of the checkpoint job looks at all groups. So a record counts if it is not older than the newest row, and
    the table says something else: it may be empty, of an older copy, or of an earlier rebuild. An older record without
    a row is of a group that was deleted before. A row has the time of its record: since then the group is known to be
    there.

    Args:
        flow: flow of the groups.
        records: last record of each group and remote partition.
        positions: positions of the flow.
        rows: last row of each group and partition, and of whole groups.

    Returns:
        The rows to add; and the number of other records, by the reason: `known` to the table, `older` than its newest
        row, of `other_groups` that the flow does not move, of partitions that are `not_mirrored`. A record in a
        partition into which several topics are merged does not say which of them the group reads, so its row has no
        offset: no failover moves the group by the map of another topic.
    """
    mirrored: dict[PartitionKey, list[Position]] = {}
    for position in positions:
        mirrored.setdefault((position.target_topic, position.target_partition), []).append(position)
    known = {row.key: row for row in rows}
    newest = max((_whole_ms(row.created_at) for row in known.values()), default=datetime.min)
    cycle_id, topic = f"rebuilt-{uuid.uuid4().hex}", flow.policy.checkpoints_topic()
    found, left_out = [], Counter(known=0, older=0, other_groups=0, not_mirrored=0)
    for one in records:
        places = mirrored.get((one.topic, one.partition)) or _without_records(flow, one)
        at = datetime.fromtimestamp(one.timestamp / 1000, UTC).replace(tzinfo=None)
        if one.group not in flow.groups:
            left_out["other_groups"] += 1
        elif not places:
            left_out["not_mirrored"] += 1
        elif any(_is_known(one, at, known.get((one.group, place.topic, place.partition))) for place in places):
            left_out["known"] += 1
        elif at < newest:
            left_out["older"] += 1
        else:
            position, is_merged = places[0], len(places) > 1
            status = Status.EXACT if one.upstream_offset <= position.upstream_next else Status.CLAMPED
            found.append(
                Checkpoint(
                    source=flow.source,
                    target=flow.target,
                    group_id=one.group,
                    topic=position.topic,
                    partition=position.partition,
                    target_topic=one.topic,
                    target_partition=one.partition,
                    upstream_offset=None if is_merged else one.upstream_offset,
                    downstream_offset=None if is_merged else one.downstream_offset,
                    metadata=one.metadata,
                    status=Status.NOT_COVERED if is_merged else status,
                    reason=f"rebuilt from {topic}",
                    cycle_id=cycle_id,
                    created_at=at,
                )
            )
    return found, dict(left_out)


def _without_records(flow: Flow, one: GroupCheckpoint) -> list[Position]:
    """Returns the position of a partition of which there was nothing to mirror, so that the states have none."""
    topic = flow.policy.upstream_topic(one.topic)
    if topic is None or not flow.mirrors_topic(topic) or flow.policy.remote_topic(topic) != one.topic:
        return []
    return [Position(topic, one.partition, "", one.topic, one.partition, 0, 0, slot=0)]


def _is_known(one: GroupCheckpoint, at: datetime, row: Checkpoint | None) -> bool:
    """Returns True if the row says the same as the record of that time, or is not older."""
    if row is None:
        return False
    said = (one.upstream_offset, one.downstream_offset, one.metadata)
    return (row.upstream_offset, row.downstream_offset, row.metadata or "") == said or _whole_ms(row.created_at) >= at


def _whole_ms(at: datetime) -> datetime:
    """Returns a time as a record's timestamp would have it."""
    return at.replace(microsecond=at.microsecond // 1000 * 1000)
