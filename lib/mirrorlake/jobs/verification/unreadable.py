"""Finds the partitions that Spark can't read: their source has a corrupt batch, which the flow has passed over."""

from __future__ import annotations

from mirrorlake.config.flow import Flow
from mirrorlake.ledger.store import Ledger
from mirrorlake.model.gap import GapKind
from mirrorlake.partition_key import PartitionKey
from mirrorlake.spark.kafka_frames import corrupt_partitions


def unreadable_partitions(error: Exception, ledger: Ledger, flow: Flow) -> set[PartitionKey]:
    """Returns the source partitions with a known corrupt batch at which the reading has ended; none if it has ended
    for another cause, such as a corrupt batch of a remote topic.

    Args:
        error: the error from Spark.
        ledger: the ledger, whose table gaps has what the flow has passed over.
        flow: the flow.
    """
    named = corrupt_partitions(error)
    if not named:
        return named
    gaps = ledger.of_flow("gaps", flow)
    known = gaps.filter(gaps.kind == GapKind.CORRUPT).select("topic", "partition").distinct().collect()
    return named & {(row["topic"], row["partition"]) for row in known}
