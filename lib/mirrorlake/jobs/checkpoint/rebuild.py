"""Rebuilds the positions of groups in a ledger that was lost, as with the region of its workspace.

The checkpoint job writes each position to MirrorMaker 2's checkpoints topic on the target, too. The offset map comes
back from the offset-syncs topic (`Ledger.catch_up`), so the target is enough for a failover.
"""

from __future__ import annotations

import logging
import uuid
from datetime import UTC, datetime

from mirrorlake.config.flow import Flow
from mirrorlake.ledger.checkpoint_row import Checkpoint
from mirrorlake.ledger.store import Ledger
from mirrorlake.log import event
from mirrorlake.model.slot import merge_positions
from mirrorlake.model.status import Status
from mirrorlake.protocol import mm2_topics
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.state import offset_syncs

log = logging.getLogger(__name__)


def has_positions(ledger: Ledger, flow: Flow) -> bool:
    """Returns True if the table checkpoints has a row of the flow."""
    return not ledger.of_flow("checkpoints", flow).isEmpty()


def rebuild_positions(ledger: Ledger, flow: Flow, target: Cluster) -> int:
    """Fills the table checkpoints from the checkpoints topic, if it has no row of the flow; returns the number of rows.

    A row has the time of its record: since then the group is known to be there. The topic does not tell which groups
    were deleted; a position in it is the last one of its group.

    Args:
        ledger: the tables, which exist.
        flow: the flow of the groups.
        target: the cluster that has the topics.

    Raises:
        TargetError: a topic can't be read.
        LedgerError: the table can't be written.
    """
    if has_positions(ledger, flow):
        return 0
    topic, timeout_ms = flow.policy.checkpoints_topic(), flow.connect_timeout_ms
    states = offset_syncs.read_all_states(target, flow.offset_syncs_topic, timeout_ms).values()
    mirrored = {(one.target_topic, one.target_partition): one for one in merge_positions(states).values()}
    cycle_id = f"rebuilt-{uuid.uuid4().hex}"
    rows = [
        Checkpoint(
            source=flow.source,
            target=flow.target,
            group_id=one.group,
            topic=position.topic,
            partition=position.partition,
            target_topic=one.topic,
            target_partition=one.partition,
            upstream_offset=one.upstream_offset,
            downstream_offset=one.downstream_offset,
            metadata=one.metadata,
            status=Status.EXACT if one.upstream_offset <= position.upstream_next else Status.CLAMPED,
            reason=f"rebuilt from {topic}",
            cycle_id=cycle_id,
            created_at=datetime.fromtimestamp(one.timestamp / 1000, UTC).replace(tzinfo=None),
        )
        for one in mm2_topics.read_checkpoints(target, topic, timeout_ms)
        if one.group in flow.groups and (position := mirrored.get((one.topic, one.partition))) is not None
    ]
    ledger.append("checkpoints", rows)
    log.warning(event("positions_rebuilt", flow=flow.name, topic=topic, positions=len(rows)))
    return len(rows)
