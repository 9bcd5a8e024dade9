"""Fencing: detects that a newer job of a flow runs, and writes the state of a slot."""

from __future__ import annotations

from mirrorlake.config.flow import Flow
from mirrorlake.errors import FencedError
from mirrorlake.model.slot import SlotState
from mirrorlake.protocol import transaction
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.transaction import PRODUCE_TIMEOUT_MS
from mirrorlake.state import offset_syncs


async def write_state(
    target: Cluster, flow: Flow, producer: transaction.Producer, state: SlotState, sequence: int = 0
) -> int:
    """Produces a slot's state into its open transaction.

    Args:
        target: the target cluster.
        flow: the flow of the slot.
        producer: the producer of the open transaction.
        state: the state to write.
        sequence: the sequence number of the record in this transaction.

    Returns:
        The offset of the record in the offset-syncs topic.
    """
    key = (flow.offset_syncs_topic, state.slot)
    if target.transaction_version < 2:
        await transaction.add_partitions(target, producer, [key], flow.connect_timeout_ms)
    response = await target.produce(
        target.leader(*key), producer.transactional_id, {key: offset_syncs.encode(state, sequence)}, PRODUCE_TIMEOUT_MS
    )
    ((_, offset),) = target.produced(response)
    return offset


def fenced(flow: Flow, generation: int, newer: int) -> FencedError:
    """Returns the error with which the older of two jobs stops."""
    return FencedError(
        f"flow {flow.name}: a newer mirror job (generation {newer}) has fenced this one (generation {generation}), "
        "which stops. Committed records are intact, and none is duplicated. Run only one mirror job for each flow"
    )


def require_newest(target: Cluster, flow: Flow, slot: int, generation: int) -> None:
    """Raises FencedError if the slot belongs to a newer generation than this one.

    Args:
        target: the target cluster.
        flow: the flow of the slot.
        slot: the number of the slot.
        generation: the generation of this job.
    """
    state = offset_syncs.read_states(target, flow.offset_syncs_topic, [slot], flow.connect_timeout_ms).get(slot)
    if state is not None and state.generation > generation:
        raise fenced(flow, generation, state.generation)
