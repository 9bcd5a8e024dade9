"""Fencing: how the older of two jobs of a flow notices that it has to stop, and how a slot's state is written."""

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
    """Produces a slot's state into its open transaction, as the record of that sequence number; returns the offset it
    got."""
    key = (flow.offset_syncs_topic, state.slot)
    if target.transaction_version < 2:
        await transaction.add_partitions(target, producer, [key], flow.connect_timeout_ms)
    response = await target.produce(
        target.leader(*key), producer.transactional_id, {key: offset_syncs.encode(state, sequence)}, PRODUCE_TIMEOUT_MS
    )
    ((_, offset),) = target.produced(response)
    return offset


def fenced(flow: Flow, generation: int, newer: int) -> FencedError:
    """What the older of two jobs says when it stops."""
    return FencedError(
        f"flow {flow.name}: a newer mirror job (generation {newer}) has taken over from this one (generation "
        f"{generation}), which stops here. "
        "Everything committed so far is intact and nothing is duplicated; let only one job run for a flow"
    )


def require_newest(target: Cluster, flow: Flow, slot: int, generation: int) -> None:
    """Raises FencedError if the slot belongs to a newer job than that of this generation."""
    state = offset_syncs.read_states(target, flow.offset_syncs_topic, [slot], flow.connect_timeout_ms).get(slot)
    if state is not None and state.generation > generation:
        raise fenced(flow, generation, state.generation)
