"""Anomalies: what people should know of, besides the records that are lost."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from mirrorlake.model.gap import GapKind
from mirrorlake.partition_key import PartitionKey


class AnomalyKind(StrEnum):
    """What the table anomalies has in `kind` besides the kinds of losses (`GapKind`)."""

    FOREIGN = "foreign"  # someone else has written to a remote topic
    TRANSFORM = "transform"  # a record can't be transformed
    STOPPED = "stopped"  # any other error that has stopped a flow
    HELD = "held"  # one topic can't be mirrored
    DIVERGED = "diverged"  # records of a failed-over source that were not mirrored before
    MISSING = "missing"  # found at a take-over: on the source, not on the target
    REPEATED = "repeated"  # found at a take-over: on the target more than once


class AnomalyAction(StrEnum):
    """What the table anomalies has in `action`; of diverged records it is the operator's decision, and who has
    signed it."""

    STOP = "stop"
    CONTINUE = "continue"
    OTHERS_GO_ON = "the others go on"
    FOUND_AT_TAKEOVER = "none: found when taking over"


KINDS: Mapping[str, GapKind | AnomalyKind] = {kind.value: kind for kind in (*GapKind, *AnomalyKind)}


def about(
    kind: GapKind | AnomalyKind, key: PartitionKey, from_offset: int, to_offset: int, **more: object
) -> dict[str, object]:
    """What an error says of the anomaly that has caused it (`MirrorlakeError.anomaly`).

    Args:
        kind: what was found.
        key: topic and partition on the source.
        from_offset: the first source offset concerned.
        to_offset: the source offset after the last one.
        more: records, or what only the driver needs to know.
    """
    topic, partition = key
    found = {"topic": topic, "partition": partition, "from_offset": from_offset, "to_offset": to_offset}
    return {"kind": kind, **found, **more}
