"""The chart of a soak: a small panel for each series, with the points that were judged and their slope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.judge import Judgement, Verdict

COLUMNS = 4
FAINT, INK, ALARM = "#c9d6df", "#1b3a4b", "#c1121f"


def draw(
    series: Mapping[str, Sequence[tuple[float, float]]],
    judged: Mapping[str, Judgement],
    warm_up_s: float,
    file: Path,
) -> None:
    """Draws all series over minutes; those that grow are red. The dotted line is the end of the warm-up."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = -(-len(series) // COLUMNS) or 1
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(14, 1.7 * rows), layout="constrained", squeeze=False)
    for axis in axes.flat[len(series) :]:
        axis.set_visible(False)
    for axis, (name, samples) in zip(axes.flat, series.items(), strict=False):
        one = judged.get(name)
        grows = one is not None and one.verdict is Verdict.GROWS
        axis.plot([time / 60 for time, _ in samples], [value for _, value in samples], color=FAINT, linewidth=0.8)
        if one is not None:
            minutes, values = [time / 60 for time, _ in one.judged], [value for _, value in one.judged]
            axis.plot(minutes, values, color=ALARM if grows else INK, linewidth=1.2)
        axis.axvline(warm_up_s / 60, color=FAINT, linestyle=":")
        said = f"{one.verdict} ({one.slope:+,.1f} an hour)" if one is not None and one.judged else "not judged"
        axis.set_title(f"{name}: {said}", loc="left", fontsize=7, color=ALARM if grows else INK)
        axis.tick_params(labelsize=6)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    figure.savefig(file)
    plt.close(figure)
