"""Figures for the notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrorlake.mirror import Progress

INK, ACCENT, FAINT = "#1b3a4b", "#2a9d8f", "#c9d6df"
STATUS_COLOURS = {"exact": "#2a9d8f", "clamped": "#e9c46a", "before_mirror": "#f4a261", "not_mirrored": "#c9d6df", "deleted": "#8d99ae"}


def mirror_figure(history: Sequence[Progress]) -> Any:
    """Records per second and lag, micro-batch by micro-batch; and where the time of each went."""
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
    """How many positions have which status, and what was done with them on the target."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 2.2), layout="constrained")
    for axis, counts, title in zip(axes, (statuses, syncs), ("Positions by status", "On the target"), strict=True):
        names = list(counts)
        bars = axis.barh(names, [counts[name] for name in names], color=[STATUS_COLOURS.get(name, ACCENT) for name in names])
        axis.bar_label(bars, [f"{counts[name]:,}" for name in names], padding=4)
        axis.set(title=title, xticks=[])
        axis.margins(x=0.15)
    _plain(*axes)
    return figure


def map_figure(runs: Sequence[tuple[int, int, int, int]], title: str) -> Any:
    """The map of one partition: how far target offsets run ahead of source offsets, run by run.

    Args:
        runs: (upstream_start, upstream_end, downstream_start, downstream_end) in order.
    """
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(11, 2.6), layout="constrained")
    for upstream_start, upstream_end, downstream_start, _ in runs:
        axis.plot([upstream_start, upstream_end], [downstream_start - upstream_start] * 2, color=ACCENT, linewidth=3, solid_capstyle="butt")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set(title=title, xlabel="offset on the source", ylabel="target offset - source offset")
    _plain(axis)
    return figure


def _plain(*axes: Any) -> None:
    for axis in axes:
        axis.spines[["top"]].set_visible(False)
