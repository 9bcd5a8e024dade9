"""Builds the input of the gate: the runs of all slots as one pandas frame.

The frame has one row for each run. A partition that advanced without a run (for example, over markers only) has a row
of length 0, so that the gate checks it too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mirrorlake.model.gap import LOSS, RESETS
from mirrorlake.state.slot_report import SlotReport

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "slot": "which slot copied it",
    "topic": "source topic",
    "partition": "source partition",
    "target_topic": "remote topic",
    "target_partition": "remote partition",
    "upstream_start": "first source offset",
    "upstream_end": "source offset after the last",
    "downstream_start": "first target offset",
    "downstream_end": "target offset after the last",
    "records": "records by the batches' own count",
    "upstream_length": "upstream_end - upstream_start",
    "downstream_length": "downstream_end - downstream_start",
    "gap": "source offsets between this run and the one before, or the committed position",
    "explained_gap": "how many of those were seen to hold nothing to copy",
    "gap_reasons": "why, joined with +",
    "lost": "source offsets of this stretch that are lost",
    "lost_allowed": "how many of those the flow passes over (mirrorlake.on.loss)",
    "downstream_advance": "target offsets between this run and the one before, or the last one committed",
    "advanced": "offsets by which the partition moves on in this transaction",
    "accounted": "of those, mirrored or explained",
    "digest_read": "digest of the partition's batches in the order they were read",
    "digest_written": "digest of the partition's batches in the order they were acknowledged",
}


def frame(reports: Iterable[SlotReport], *, passes_over_losses: bool) -> pd.DataFrame:
    """Returns the rows of every open transaction, with columns as in COLUMNS."""
    import pandas as pd

    rows = (
        row
        for report in reports
        if report.is_open
        for stretch in report.stretches
        for row in _rows(report.slot, stretch, passes_over_losses)
    )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows(slot: int, stretch: dict[str, Any], passes_over_losses: bool) -> Iterator[dict[str, Any]]:
    upstream, partition = stretch["upstream_from"], stretch["partition"]
    downstream = {partition: stretch["downstream_from"]}  # last downstream offset of each target partition
    lost = sum(gap["to_offset"] - gap["from_offset"] for gap in stretch["gaps"] if gap["kind"] in LOSS)
    accounted = stretch["skipped"] + sum(run["records"] for run in stretch["runs"])
    common = {
        "slot": slot,
        "topic": stretch["topic"],
        "partition": stretch["partition"],
        "target_topic": stretch["target_topic"],
        "advanced": stretch["upstream_next"] - stretch["upstream_from"],
        "accounted": accounted,
        "digest_read": stretch["digest_read"],
        "digest_written": stretch["digest_written"],
        "lost": lost,
        "lost_allowed": lost if passes_over_losses else 0,
    }
    nothing = {
        "target_partition": partition,
        "upstream_start": stretch["upstream_next"],
        "upstream_end": stretch["upstream_next"],
        "downstream_start": downstream[partition],
        "downstream_end": downstream[partition],
        "records": 0,
    }
    gaps = deque(
        sorted((gap for gap in stretch["gaps"] if gap["kind"] not in RESETS), key=lambda gap: gap["from_offset"])
    )
    for run in stretch["runs"] or [nothing]:
        between = []
        while gaps and gaps[0]["from_offset"] < run["upstream_start"]:
            between.append(gaps.popleft())
        yield {
            **common,
            **{name: run[name] for name in nothing},
            "upstream_length": run["upstream_end"] - run["upstream_start"],
            "downstream_length": run["downstream_end"] - run["downstream_start"],
            "gap": run["upstream_start"] - upstream,
            "explained_gap": sum(gap["to_offset"] - gap["from_offset"] for gap in between),
            "gap_reasons": "+".join(sorted({gap["kind"] for gap in between})),
            "downstream_advance": run["downstream_start"] - downstream.get(run["target_partition"], 0),
        }
        upstream = run["upstream_end"]
        downstream[run["target_partition"]] = run["downstream_end"]
