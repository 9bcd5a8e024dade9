"""The chart of docs/performance.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.contestants import CEILING, MIRRORLAKE, TITLES

INK, ACCENT, FAINT, OTHER = "#1b3a4b", "#2a9d8f", "#c9d6df", "#8d99ae"
PANELS = {"records_per_s": "records per second", "cpu_s_per_million": "CPU seconds per million records"}


def draw(results: Mapping[str, Any], file: Path) -> None:
    """Draws the rate and the CPU time of every contestant for each backlog.

    Each case has a scale of its own, because its records may be a hundred times larger.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.fonttype"], mpl.rcParams["svg.hashsalt"] = (
        "none",
        "mirrorlake",
    )  # text stays text, and equal figures make equal files
    cases = {name: case for name, case in results["cases"].items() if case["kind"] == "backlog" and case["medians"]}
    bars = [
        (name, contestant) for name, case in cases.items() for contestant in TITLES if contestant in case["medians"]
    ]
    places, at = {}, 0.0
    for before, bar in zip([None, *bars], bars, strict=False):
        at += 1.0 if before is None or before[0] == bar[0] else 2.2
        places[bar] = at
    figure, axes = plt.subplots(1, 2, figsize=(11, 1.2 + 0.26 * max(6, at)), layout="constrained", sharey=True)
    for axis, (figure_name, title) in zip(axes, PANELS.items(), strict=True):
        values = [cases[name]["medians"][contestant][figure_name] for name, contestant in bars]
        longest = {
            name: max(value for (case, _), value in zip(bars, values, strict=True) if case == name) for name in cases
        }
        drawn = axis.barh(
            list(places.values()),
            [value / longest[name] for (name, _), value in zip(bars, values, strict=True)],
            color=[_colour(contestant) for _, contestant in bars],
        )
        axis.bar_label(
            drawn, [f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in values], padding=3, fontsize=8
        )
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xticks([])
        axis.margins(x=0.15)
        for side in ("top", "right", "bottom"):
            axis.spines[side].set_visible(False)
    for name in cases:
        first = min(place for bar, place in places.items() if bar[0] == name)
        axes[0].text(0, first - 0.9, name, fontweight="bold", fontsize=9, color=INK)
    axes[0].set_yticks(
        list(places.values()), [TITLES[contestant].partition(":")[0] for _, contestant in bars], fontsize=8
    )
    axes[0].set_ylim(at + 0.8, -0.6)
    figure.savefig(file, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def _colour(contestant: str) -> str:
    return {MIRRORLAKE: ACCENT, CEILING: FAINT}.get(contestant, OTHER)
