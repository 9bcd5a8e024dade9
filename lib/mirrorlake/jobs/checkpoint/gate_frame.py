"""The input of the gate of a checkpoint job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mirrorlake.ledger.checkpoint_row import Checkpoint, GroupKey
from mirrorlake.model.status import Status

if TYPE_CHECKING:
    import pandas as pd


def gate_frame(translated: Iterable[dict[str, Any]], known: Mapping[GroupKey, Checkpoint]) -> pd.DataFrame:
    """Returns the input of the gate: the translation, recomputed by its definition, and the regression of each group.

    The columns are those of `sql_join.translate`, recomputed and regression. recomputed is the definition applied to
    the run that the SQL query used. regression is the number of downstream offsets by which a group would go back on
    the target although it did not on the source. It is 0 for a clamped position, which waits for the ledger.
    """
    import pandas as pd

    return pd.DataFrame(
        [{**row, "recomputed": _by_definition(row), "regression": _regression(row, known)} for row in translated]
    )


def _by_definition(row: Mapping[str, Any]) -> int:
    if row["run_upstream_start"] is None:
        return row["mirrored_end"]
    return row["run_downstream_start"] + max(0, row["upstream_offset"] - row["run_upstream_start"])


def _regression(row: Mapping[str, Any], known: Mapping[GroupKey, Checkpoint]) -> int:
    before = known.get((row["group_id"], row["topic"], row["partition"]))
    if (
        before is None
        or before.downstream_offset is None
        or before.upstream_offset is None
        or row["status"] == Status.CLAMPED
    ):
        return 0
    return (
        max(0, before.downstream_offset - row["downstream_offset"])
        if row["upstream_offset"] >= before.upstream_offset
        else 0
    )
