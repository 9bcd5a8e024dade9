"""Formats the report: a card for each flow, and figures over the same period."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from mirrorlake.notebook.figures import ACCENT, ALARM, FAINT, INK, shown
from mirrorlake.notebook.report import ago
from mirrorlake.printable import printable

if TYPE_CHECKING:
    import pandas as pd

    from mirrorlake.notebook.report import FlowReport, Report

FLOW_COLOURS = (ACCENT, INK, "#e9a03b", "#8d5a97", "#4f86c6", "#7a8b3c", "#b5651d", "#5f6b73")
STAGE_COLOURS = {
    "plan": "#8d99ae",
    "copy": ACCENT,
    "gate": "#e9c46a",
    "commit": INK,
}
WIDTH = 11.0
TOPICS_SHOWN = 20
NOTHING = "no data in this period"

STYLE = """
<style>
.mirrorlake-cards {display: flex; flex-wrap: wrap; gap: 16px; font-family: system-ui, sans-serif; margin: 8px 0}
.mirrorlake-card {flex: 1 1 320px; border: 1px solid #c9d6df; border-top: 6px solid #2a9d8f; border-radius: 6px;
  padding: 12px 16px; color: #1b3a4b; background: #fff}
.mirrorlake-card.worry {border-top-color: #c1292e}
.mirrorlake-card h3 {margin: 0 0 4px; font-size: 18px}
.mirrorlake-card .verdict {margin: 0 0 10px; font-weight: 600; color: #1f7a70}
.mirrorlake-card.worry .verdict {color: #c1292e}
.mirrorlake-card dl {display: grid; grid-template-columns: max-content 1fr; gap: 3px 14px; margin: 0; font-size: 14px}
.mirrorlake-card dt {color: #5f6b73}
.mirrorlake-card dd {margin: 0; font-variant-numeric: tabular-nums}
</style>
"""


def cards(report: Report) -> str:
    """Returns a card for each flow, as HTML."""
    found = "".join(_card(flow, report) for flow in report.flows) or "these tables have no flow"
    return f'{STYLE}<div class="mirrorlake-cards">{found}</div>'


def _card(flow: FlowReport, report: Report) -> str:
    problems, now = flow.problems(report.until), report.until

    def seen(moment: Any) -> str:
        return "never" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}, {ago(now - moment)} before the end"

    groups = (
        "none"
        if flow.positions is None
        else f"{flow.positions:,} positions"
        + (f", {flow.unfinished:,} of them clamped" if flow.unfinished else ", none clamped")
    )
    lines = {
        "mirrored": f"{flow.records:,} records, {_bytes(flow.bytes)}",
        "lag": "unknown" if flow.lag is None else f"{flow.lag:,} offsets",
        "last mirrored": seen(flow.mirrored_at),
        "last checkpoints": seen(flow.checkpointed_at),
        "groups": groups,
        "gates": f"{flow.evaluations:,} evaluated, {flow.refused:,} failed",
        "verified to": "never"
        if flow.verified_to is None
        else f"{flow.verified_to:%Y-%m-%d %H:%M:%S}"
        + (f", {flow.unverified:,} records not verified" if flow.unverified else ", all records"),
    }
    verdict = "; ".join(problems) if problems else "No problems"
    entries = "".join(f"<dt>{name}</dt><dd>{_escaped(value)}</dd>" for name, value in lines.items())
    name = _escaped(flow.flow.replace("->", " → "))
    return (
        f'<section class="mirrorlake-card{" worry" if problems else ""}"><h3>{name}</h3>'
        f'<p class="verdict">{_escaped(verdict[:1].upper() + verdict[1:])}.</p><dl>{entries}</dl></section>'
    )


def table(frame: pd.DataFrame, nothing: str) -> str:
    """Returns rows as HTML, or the sentence `nothing` if there are none."""
    import pandas as pd

    if frame.empty:
        return f"<p>{html.escape(nothing)}</p>"
    text = pd.DataFrame({name: [_cell(value) for value in frame[name]] for name in frame.columns})
    return text.to_html(index=False, border=0, escape=True)


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def _cell(value: Any) -> str:
    import pandas as pd

    if pd.isna(value):
        return ""
    if isinstance(value, pd.Timestamp):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return f"{int(value):,}" if isinstance(value, float | int) else printable(str(value))


# -- figures ----------------------------------------------------------------------------------------


def throughput_figure(report: Report) -> Any:
    """Shows the records and bytes per second of each flow."""
    figure, axes = _over_time(report, 2)
    for axis, column, unit, scale in zip(
        axes, ("records_per_s", "bytes_per_s"), ("records/s", "MB/s"), (1, 1e-6), strict=True
    ):
        _lines(axis, report, frame=report.throughput, column=column, scale=scale, filled=True)
        axis.set_ylabel(unit)
    return figure


def lag_figure(report: Report) -> Any:
    """Shows the source offsets of each flow that were not mirrored."""
    figure, (axis,) = _over_time(report, 1)
    _lines(axis, report, report.lag, "lag", filled=True)
    axis.set_ylabel("source offsets")
    return figure


def freshness_figure(report: Report) -> Any:
    """Shows the age of the newest checkpoints of each flow."""
    figure, (axis,) = _over_time(report, 1)
    _lines(axis, report, report.freshness, "age_s")
    axis.set_ylabel("seconds old")
    return figure


def stages_figure(report: Report) -> Any:
    """Shows the time of each stage of a micro-batch, for each flow."""
    flows = [flow.flow for flow in report.flows if len(report.stages) and (report.stages["flow"] == flow.flow).any()]
    figure, axes = _over_time(report, max(1, len(flows)))
    for axis, flow in zip(axes, flows, strict=False):
        mine = report.stages[report.stages["flow"] == flow]
        bottom = 0.0
        for name, colour in STAGE_COLOURS.items():
            axis.bar(mine["at"], mine[name], _width(report), bottom=bottom, align="edge", color=colour, label=name)
            bottom = bottom + mine[name]
        axis.set_ylabel("seconds")
        if len(flows) > 1:
            axis.set_title(shown(flow), loc="left", color=INK, fontsize=10)
    if flows:
        _legend(axes[0])
    else:
        _say_nothing(axes[0])
    return figure


def gates_figure(report: Report) -> Any:
    """Shows the evaluations of the gates, passed or failed, for each flow and suite."""
    found = report.gates
    names = sorted({(row.flow, row.suite) for row in found.itertuples()})
    figure, (axis,) = _over_time(report, 1, height=0.9 + 0.35 * max(1, len(names)))
    for number, (flow, suite) in enumerate(names):
        mine = found[(found["flow"] == flow) & (found["suite"] == suite)]
        for column, colour, size, marker in (("passed", ACCENT, 40, "|"), ("refused", ALARM, 90, "X")):
            times = mine.loc[mine[column] > 0, "at"]
            axis.scatter(
                times,
                [number] * len(times),
                color=colour,
                marker=marker,
                s=size,
                zorder=3 if column == "refused" else 2,
            )
    axis.set_yticks(
        range(len(names)), [shown(f"{flow}, {suite}" if len(report.flows) > 1 else suite) for flow, suite in names]
    )
    axis.set_ylim(-0.6, max(0, len(names) - 1) + 0.6)
    if names:
        axis.scatter([], [], color=ACCENT, marker="|", s=40, label="passed")
        axis.scatter([], [], color=ALARM, marker="X", s=90, label="failed: nothing became visible")
        _legend(axis)
    else:
        _say_nothing(axis)
    return figure


def verified_figure(report: Report) -> Any:
    """Shows the verified share of each topic's mirrored records, largest unverified topics first."""
    import matplotlib.pyplot as plt

    found = report.verified.sort_values(["unverified", "verified"], ascending=False).head(TOPICS_SHOWN)
    several = len(report.flows) > 1
    names = [shown(f"{row.flow}  {row.topic}" if several else row.topic) for row in found.itertuples()]
    figure, axis = plt.subplots(figsize=(WIDTH, 1.3 + 0.28 * max(1, len(names))), layout="constrained", dpi=144)
    axis.barh(names, found["verified"], color=ACCENT, label="verified")
    bars = axis.barh(names, found["unverified"], left=found["verified"], color=FAINT, label="not verified yet")
    labels = [
        f"{row.verified / max(1, row.verified + row.unverified):.0%}" if row.unverified else "all"
        for row in found.itertuples()
    ]
    axis.bar_label(bars, labels, padding=5)
    axis.margins(x=0.08)
    axis.invert_yaxis()
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set_xlabel("records")
    if names:
        _legend(axis)
    else:
        _say_nothing(axis)
    _plain([axis])
    return figure


def _over_time(report: Report, count: int, height: float = 2.1) -> tuple[Any, list[Any]]:
    """Returns stacked axes over the period of the report."""
    import matplotlib.dates as dates
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(
        count, 1, figsize=(WIDTH, 0.5 + height * count), layout="constrained", dpi=144, sharex=True, squeeze=False
    )
    axes = list(grid[:, 0])
    for axis in axes:
        axis.set_xlim(report.since, report.until)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value == int(value) else f"{value:,.3g}")
        locator = dates.AutoDateLocator(maxticks=10)
        axis.xaxis.set_major_locator(locator)
        axis.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    axes[-1].set_xlabel("UTC")
    _plain(axes)
    return figure, axes


def _lines(
    axis: Any, report: Report, frame: pd.DataFrame, column: str, scale: float = 1.0, *, filled: bool = False
) -> None:
    is_empty = True
    for number, flow in enumerate(report.flows):
        mine = frame[frame["flow"] == flow.flow]
        if mine.empty:
            continue
        colour, is_empty = FLOW_COLOURS[number % len(FLOW_COLOURS)], False
        axis.step(mine["at"], mine[column] * scale, where="post", color=colour, label=shown(flow.flow), linewidth=1.6)
        if filled and len(report.flows) == 1:
            axis.fill_between(mine["at"], mine[column] * scale, step="post", color=colour, alpha=0.2, linewidth=0)
    axis.set_ylim(bottom=0, top=None if not is_empty and frame[column].max() > 0 else 1)
    if is_empty:
        _say_nothing(axis)
    elif len(report.flows) > 1 and axis.get_subplotspec().is_first_row():
        _legend(axis)


def _width(report: Report) -> Any:
    import pandas as pd

    return pd.Timedelta(seconds=0.9 * report.width_s)


def _legend(axis: Any) -> None:
    """Draws the legend above the axis, at the right."""
    axis.legend(frameon=False, ncols=8, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)


def _say_nothing(axis: Any) -> None:
    axis.set_yticks([])
    axis.text(0.5, 0.5, NOTHING, transform=axis.transAxes, ha="center", va="center", color="#5f6b73")


def _plain(axes: Iterable[Any]) -> None:
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)


def _bytes(count: float) -> str:
    for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:,.1f} {name}"
    return f"{count:,.0f} B"


def show(figure: Callable[[Report], Any], report: Report) -> None:
    """Draws a figure of this module into the notebook, with its docstring as alternative text."""
    import matplotlib.pyplot as plt
    from IPython.display import display

    drawn = figure(report)
    words = " ".join(str(figure.__doc__).split())
    display(drawn, metadata={"image/png": {"alt": words}})
    plt.close(drawn)
