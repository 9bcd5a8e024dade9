"""Anomalies: what people should know of, besides the records that are lost."""

from __future__ import annotations

from enum import StrEnum

from mirrorlake.model.gap import GapKind


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


Kind = GapKind | AnomalyKind
