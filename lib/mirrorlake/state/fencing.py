"""Fencing: detects that a newer job of a flow runs, and writes the state of a slot."""

from __future__ import annotations

from mirrorlake.config.flow import Flow
from mirrorlake.errors import FencedError, TargetError
from mirrorlake.model.slot import SlotState
from mirrorlake.protocol import transaction
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.transaction import PRODUCE_TIMEOUT_MS
from mirrorlake.state import offset_syncs


async def write_state(
    target: Cluster,
    flow: Flow,
    producer: transaction.Producer,
    state: SlotState,
    *,
    after: int,
    sequence: int = 0,
) -> None:
    """Produces a slot's state into its open transaction.

    Args:
        target: the target cluster.
        flow: the flow of the slot.
        producer: the producer of the open transaction.
        state: the state to write.
        after: the end to which the slot's states were read, after the transaction was begun.
        sequence: the sequence number of the record in this transaction.

    Raises:
        ResponseError, WireError: the state could not be appended.
        TargetError: there are records behind those that were read. The transaction must not be committed.
    """
    key = (flow.offset_syncs_topic, state.slot)
    if target.transaction_version < 2:
        await transaction.add_partitions(target, producer, [key], flow.connect_timeout_ms)
    response = await target.produce(
        target.leader(*key), producer.transactional_id, {key: offset_syncs.encode(state, sequence)}, PRODUCE_TIMEOUT_MS
    )
    ((_, offset),) = target.produced(response)
    if offset != after + sequence:
        raise TargetError(
            f"flow {flow.name}: {key[0]}-{key[1]} on cluster {flow.target} was read up to offset {after}, but the "
            f"state was appended at {offset}, so a broker that is not the leader any more has answered, or another "
            "program writes to the topic. Nothing was committed. Only the flow's own principal should have WRITE on "
            "the topic",
            retriable=True,
        )


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
