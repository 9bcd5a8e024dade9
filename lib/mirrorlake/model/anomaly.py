"""Anomalies: events that an operator should know of, in addition to lost records."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from mirrorlake.model.gap import GapKind
from mirrorlake.partition_key import PartitionKey


class AnomalyKind(StrEnum):
    """Kinds of anomalies: values of `kind` in the table anomalies, in addition to the losses (`GapKind`)."""

    FOREIGN = "foreign"  # another producer has written to a remote topic
    TRANSFORM = "transform"  # a record can't be transformed
    STOPPED = "stopped"  # any other error that has stopped a flow
    HELD = "held"  # one topic or partition can't be mirrored
    OPEN_TRANSACTION = "open_transaction"  # a transaction on the source has been open for long, and is waited for
    LEDGER_AWAY = "ledger_away"  # the tables could not be written for a time, in which the flow was mirrored
    DIVERGED = "diverged"  # records of a failed-over source that were not mirrored before
    MISSING = "missing"  # found at a take-over: on the source, not on the target
    REPEATED = "repeated"  # found at a take-over: on the target more than once


class AnomalyAction(StrEnum):
    """Actions on anomalies: values of `action` in the table anomalies.

    For diverged records, the column holds the operator's decision and the name of the operator who signed it.
    """

    STOP = "stop"
    CONTINUE = "continue"
    OTHERS_GO_ON = "the others go on"
    WAIT = "wait"
    FOUND_AT_TAKEOVER = "none: found when taking over"


KINDS: Mapping[str, GapKind | AnomalyKind] = {kind.value: kind for kind in (*GapKind, *AnomalyKind)}


def about(
    kind: GapKind | AnomalyKind, key: PartitionKey, from_offset: int, to_offset: int, **more: object
) -> dict[str, object]:
    """Describes the anomaly that caused an error (`MirrorlakeError.anomaly`).

    Args:
        kind: the kind of the anomaly.
        key: topic and partition on the source.
        from_offset: the first source offset concerned.
        to_offset: the source offset after the last one.
        more: records, or values that only the driver needs.
    """
    topic, partition = key
    found = {"topic": topic, "partition": partition, "from_offset": from_offset, "to_offset": to_offset}
    return {"kind": kind, **found, **more}
