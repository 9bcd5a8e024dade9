"""Rows of the table anomalies."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError
from mirrorlake.model.anomaly import KINDS, AnomalyAction, AnomalyKind
from mirrorlake.model.gap import LOSS, RESETS, GapKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS = ("source", "target", "topic", "partition", "kind", "from_offset", "to_offset", "detected_at")  # of a loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """One row of the table anomalies. `action` is one of `AnomalyAction`, or an operator's decision."""

    source: str
    target: str
    kind: GapKind | AnomalyKind
    action: str
    detail: str | None
    topic: str | None = None
    partition: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    records: int | None = None
    detected_at: datetime = field(default_factory=lambda: datetime.now(UTC).replace(tzinfo=None))

    @classmethod
    def of_flow(cls, flow: Flow, kind: GapKind | AnomalyKind, action: str, detail: str, **where: Any) -> Anomaly:
        """Makes the row of an anomaly in a flow.

        Args:
            flow: the flow whose clusters the row names.
            kind: the kind of the anomaly.
            action: the action that mirrorlake takes.
            detail: a description in words.
            where: topic, partition, from_offset, to_offset and records, as far as they are known.
        """
        return cls(source=flow.source, target=flow.target, kind=kind, action=action, detail=detail, **where)

    @classmethod
    def of_error(cls, flow: Flow, error: MirrorlakeError) -> Anomaly:
        """Makes the row of an error that has stopped a flow."""
        names = {column.name for column in fields(cls)} - {"kind"}
        where = {name: value for name, value in error.anomaly.items() if name in names}
        kind = KINDS.get(str(error.anomaly.get("kind")), AnomalyKind.STOPPED)
        return cls.of_flow(flow, kind, AnomalyAction.STOP, error.message, **where)


def of_losses(gaps: DataFrame) -> DataFrame:
    """Makes the rows of losses that a flow has passed over, from rows of the table gaps."""
    from pyspark.sql import functions as F

    details = F.create_map(*(F.lit(word) for pair in LOSS.items() for word in pair))
    return gaps.filter(F.col("kind").isin(*LOSS)).select(
        "source",
        "target",
        "topic",
        "partition",
        "kind",
        "from_offset",
        "to_offset",
        # Behind a reset, offsets begin anew. What was mirrored before is on the target.
        F.when(~F.col("kind").isin(*RESETS), F.col("to_offset") - F.col("from_offset")).alias("records"),
        details[F.col("kind")].alias("detail"),
        F.lit(AnomalyAction.CONTINUE).alias("action"),
        F.col("committed_at").alias("detected_at"),
    )
