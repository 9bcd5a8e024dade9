"""Figures for the notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mirrorlake.model.status import Status
from mirrorlake.printable import printable

if TYPE_CHECKING:
    from mirrorlake.jobs.failover.plan import Line
    from mirrorlake.jobs.verification.completeness import Completeness
    from mirrorlake.jobs.verification.result import VerificationResult
    from mirrorlake.ledger.maintenance import TableReport
    from mirrorlake.spark.timing import Progress

INK, ACCENT, FAINT, ALARM = "#1b3a4b", "#2a9d8f", "#c9d6df", "#c1292e"
SURPLUS = "#e9c46a"
LAGS_SHOWN = 8  # partitions
STATUS_COLOURS: Mapping[str, str] = {
    Status.EXACT: "#2a9d8f",
    Status.CLAMPED: "#e9c46a",
    Status.BEFORE_MIRROR: "#f4a261",
    Status.NOT_MIRRORED: "#c9d6df",
    Status.NOT_MIRRORED_YET: "#a8dadc",
    Status.DELETED: "#8d99ae",
}
PARTITIONS_SHOWN = 40
LONGEST_NAME = 120  # characters of a name in a figure


def mirror_figure(history: Sequence[Progress]) -> Any:
    """Draws records per second, lag, and the time of each stage, for each micro-batch."""
    import matplotlib.pyplot as plt

    figure, (speed, stages) = plt.subplots(1, 2, figsize=(11, 3.2), layout="constrained")
    numbers = range(1, len(history) + 1)
    speed.bar(numbers, [done.records / max(done.seconds, 1e-9) for done in history], color=ACCENT, label="records/s")
    speed.yaxis.set_major_formatter("{x:,.0f}")
    speed.set(title="Records per second, and lag", xlabel="micro-batch", ylabel="records/s")
    lag = speed.twinx()
    lag.plot(numbers, [done.lag for done in history], color=INK, marker="o", markersize=3, label="lag")
    lag.set_ylabel("source offsets not mirrored yet")
    lag.set_ylim(0, max([1, *(done.lag for done in history)]) * 1.1)
    lag.yaxis.set_major_formatter("{x:,.0f}")
    bottom = [0.0] * len(history)
    for name, colour in zip(("plan", "copy", "gate", "commit"), (FAINT, ACCENT, "#e9c46a", INK), strict=True):
        values = [done.stages_ms.get(name, 0.0) / 1000 for done in history]
        stages.bar(numbers, values, bottom=bottom, color=colour, label=name)
        bottom = [below + value for below, value in zip(bottom, values, strict=True)]
    stages.set(title="Where the time went", xlabel="micro-batch", ylabel="seconds")
    stages.legend(frameon=False)
    if not history:
        speed.text(0.5, 0.5, "nothing to mirror", ha="center", transform=speed.transAxes)
    _plain(speed, lag, stages)
    return figure


def checkpoint_figure(statuses: Mapping[str, int], syncs: Mapping[str, int]) -> Any:
    """Draws the number of positions by status, and by outcome on the target."""
    return _counts_figure({"Positions by status": statuses, "On the target": syncs})


def status_figure(statuses: Mapping[str, int]) -> Any:
    """Draws the number of positions by status."""
    return _counts_figure({"Positions by status": statuses})


def _counts_figure(panels: Mapping[str, Mapping[str, int]]) -> Any:
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(1, len(panels), figsize=(5.5 * len(panels), 2.2), layout="constrained", squeeze=False)
    axes = grid[0]
    for axis, (title, counts) in zip(axes, panels.items(), strict=True):
        names = list(counts)
        bars = axis.barh(
            names, [counts[name] for name in names], color=[STATUS_COLOURS.get(name, ACCENT) for name in names]
        )
        axis.bar_label(bars, [f"{counts[name]:,}" for name in names], padding=4)
        axis.set(title=title, xticks=[])
        axis.margins(x=0.15)
    _plain(*axes)
    return figure


def maintenance_figure(tables: Sequence[TableReport]) -> Any:
    """Draws the kept and expired rows, and the bytes before and after, of each table."""
    import matplotlib.pyplot as plt

    figure, (rows, size) = plt.subplots(1, 2, figsize=(11, 2.6), layout="constrained")
    names = [report.table for report in tables][::-1]
    kept, expired = (
        [count(report) for report in tables][::-1]
        for count in (lambda report: report.rows - report.expired, lambda report: report.expired)
    )
    rows.barh(names, kept, color=ACCENT, label="kept")
    rows.barh(names, expired, left=kept, color=FAINT, label="expired")
    rows.set(title="Rows")
    rows.legend(frameon=False)
    size.barh(names, [report.bytes / 1e6 for report in tables][::-1], color=FAINT, label="before")
    size.barh(names, [report.bytes_after / 1e6 for report in tables][::-1], height=0.4, color=ACCENT, label="after")
    size.set(title="MB", yticklabels=[])
    size.legend(frameon=False)
    for axis in (rows, size):
        axis.xaxis.set_major_formatter("{x:,.0f}")
    _plain(rows, size)
    return figure


def failover_figure(lines: Sequence[Line]) -> Any:
    """Draws the number of lines of a plan by go, no-go and block, and the largest backlogs of partitions."""
    import matplotlib.pyplot as plt

    figure, (blocks, lags) = plt.subplots(1, 2, figsize=(11, 2.6), layout="constrained")
    kinds = Counter(kind.value for line in lines for kind, _ in line.blocks)
    counts = {"go": sum(line.go for line in lines), "no-go": sum(not line.go for line in lines), **kinds}
    bars = blocks.barh(
        list(counts),
        list(counts.values()),
        color=[{"go": ACCENT, "no-go": "#e76f51"}.get(name, FAINT) for name in counts],
    )
    blocks.bar_label(bars, [f"{count:,}" for count in counts.values()], padding=4)
    blocks.set(title="Groups and partitions, and what speaks against them", xticks=[])
    lag = {
        shown(f"{line.topic}-{line.partition}"): line.lag_seen if line.not_mirrored is None else line.not_mirrored
        for line in lines
        if line.topic is not None
    }
    most = sorted(((count or 0, name) for name, count in lag.items()), reverse=True)[:LAGS_SHOWN]
    bars = lags.barh([name for _, name in most], [count for count, _ in most], color=INK)
    lags.bar_label(bars, [f"{count:,}" for count, _ in most], padding=4)
    lags.set(title="Not mirrored", xticks=[])
    for axis in (blocks, lags):
        axis.margins(x=0.15)
        axis.invert_yaxis()
    _plain(blocks, lags)
    return figure


def map_figure(runs: Sequence[tuple[int, int, int, int]], title: str) -> Any:
    """Draws the map of one partition: target offset minus source offset of each run.

    Args:
        runs: (upstream_start, upstream_end, downstream_start, downstream_end) of each run, in order.
        title: title of the figure.
    """
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(11, 2.6), layout="constrained")
    for upstream_start, upstream_end, downstream_start, _ in runs:
        axis.plot(
            [upstream_start, upstream_end],
            [downstream_start - upstream_start] * 2,
            color=ACCENT,
            linewidth=3,
            solid_capstyle="butt",
        )
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set(title=shown(title), xlabel="offset on the source", ylabel="target offset - source offset")
    _plain(axis)
    return figure


def verification_figure(result: VerificationResult) -> Any:
    """Draws equal, different and not comparable records of each partition, worst first; the title is the summary."""
    import matplotlib.pyplot as plt

    worst = sorted(
        result.partitions, key=lambda one: (-one.differences, one.is_covered, -one.records - one.not_comparable)
    )[:PARTITIONS_SHOWN]
    names = [f"{shown(f'{one.topic}-{one.partition}')}{'' if one.is_covered else ' (not covered)'}" for one in worst]
    figure, axis = plt.subplots(figsize=(11, 1.7 + 0.25 * max(1, len(worst))), layout="constrained")
    left = [0] * len(worst)
    for name, colour, counts in (
        ("equal", ACCENT, [one.records - one.different - one.out_of_order for one in worst]),
        ("not comparable any more", FAINT, [one.not_comparable for one in worst]),
        ("different", ALARM, [one.differences for one in worst]),
    ):
        bars = axis.barh(names, counts, left=left, color=colour, label=name)
        left = [before + count for before, count in zip(left, counts, strict=True)]
    axis.bar_label(
        bars,
        [f"{one.differences:,} differences" if one.differences else "" for one in worst],
        padding=4,
        color=ALARM,
    )
    axis.invert_yaxis()
    axis.set_xlim(0, 1.15 * max([1, *left]))
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set(xlabel="records")
    axis.set_title(result.statement().replace("; ", "\n"), loc="left", color=INK if result.passed else ALARM)
    if worst:
        figure.legend(frameon=False, loc="outside lower right", ncols=3)
    else:
        axis.set_yticks([])
    _plain(axis)
    return figure


def counts_figure(result: Completeness) -> Any:
    """Draws the records of each hour on both sides, with the missing and surplus ones; the title is the summary."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(11, 3.5), layout="constrained")
    width: Any = timedelta(hours=1)  # as times, which the types of bar do not know
    start: Any = [hour.window_start for hour in result.hours]
    height = [hour.target_records - hour.surplus for hour in result.hours]
    axis.bar(start, height, width=width, align="edge", color=ACCENT, label="on the target")
    for name, colour in (("surplus", SURPLUS), ("pending", FAINT), ("missing", ALARM)):
        counts = [getattr(hour, name) for hour in result.hours]
        if any(counts):
            axis.bar(start, counts, width=width, align="edge", bottom=height, color=colour, label=name)
            height = [before + count for before, count in zip(height, counts, strict=True)]
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set(xlabel="hour of the records' timestamps (UTC)", ylabel="records")
    axis.set_title(
        result.statement().replace("; ", "\n"), loc="left", color=INK if result.passed or result.is_neutral else ALARM
    )
    if start:
        figure.legend(frameon=False, loc="outside lower right", ncols=4)
    _plain(axis)
    return figure


def shown(name: str) -> str:
    """Returns the name of a topic, flow or suite for a figure: short, and without mathematics between $."""
    return printable(name, LONGEST_NAME).replace("$", r"\$")


def _plain(*axes: Any) -> None:
    for axis in axes:
        axis.spines[["top"]].set_visible(False)
