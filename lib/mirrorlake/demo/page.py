"""`python -m mirrorlake.demo.page DIRECTORY`: one page about a demo, small enough to mail, that needs nothing else.

It reads the moves of groups as JSON from standard input, after its own work: a verification of every record by the
exact map, and the report of the tables.
"""

from __future__ import annotations

import base64
import html
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake import resources
from mirrorlake.printable import printable

if TYPE_CHECKING:
    from mirrorlake.ledger.store import Ledger

PAGE = "demo.html"
FLOW = "a->b"
DPI = 80
AROUND = timedelta(seconds=2)  # before the first cycle and after the last one
PROVEN = ("topic", "partition", "records", "missing", "duplicated", "out_of_order", "different", "unexpected")

STYLE = """
body {margin: 0 auto; max-width: 1120px; padding: 16px 24px 48px; background: #f7f9fa; color: #1b3a4b;
  font: 15px/1.5 system-ui, sans-serif}
h1 {font-size: 28px; margin: 8px 0} h2 {font-size: 20px; margin: 36px 0 4px; border-bottom: 1px solid #c9d6df}
p {margin: 4px 0 10px; max-width: 80ch}
img {box-sizing: border-box; max-width: 100%; height: auto; background: #fff; border: 1px solid #e2e8ed;
  border-radius: 6px}
div.wide {overflow-x: auto}
table {border-collapse: collapse; font-size: 13px; background: #fff; font-variant-numeric: tabular-nums}
th, td {text-align: right; padding: 3px 12px; border-bottom: 1px solid #e2e8ed}
th:nth-child(-n+2), td:nth-child(-n+2) {text-align: left}
summary {cursor: pointer; margin: 6px 0}
.good {color: #1f7a70; font-weight: 600} .bad {color: #c1292e; font-weight: 600}
"""


def rows_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns rows as an HTML table."""

    def cells(tag: str, values: Iterable[Any]) -> str:
        return "".join(
            f"<{tag}>{f'{value:,}' if isinstance(value, int) else html.escape(printable(str(value)))}</{tag}>"
            for value in values
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{cells("th", columns)}</tr></thead><tbody>{body}</tbody></table></div>'


def image(figure: Any, words: str) -> str:
    """Returns a figure as a picture within the page, with words for those who don't see it."""
    import matplotlib.pyplot as plt

    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DPI)
    plt.close(figure)
    source = base64.b64encode(data.getvalue()).decode()
    return f'<img alt="{html.escape(words)}" src="data:image/png;base64,{source}">'


def section(title: str, text: str, content: str) -> str:
    return f"<h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>{content}"


def groups_section(moves: Sequence[Mapping[str, Any]]) -> str:
    """Returns the groups before and after they have moved."""
    wrong = sum(bool(move["again"] or move["skipped"] or move["downstream"] < 0) for move in moves)
    columns = ("group", "partition", "offset on a", "offset on b", "unread on a", "read again on b", "skipped on b")
    names = ("group", "partition", "upstream", "downstream", "unread", "again", "skipped")
    verdict = f"{len(moves):,} positions moved, {wrong:,} wrong"
    return section(
        "Groups before and after",
        "Each group has stopped on a and gone on at its offset on b. What it then read was compared, record by record, "
        "with what it had read before.",
        f'<p class="{"bad" if wrong else "good"}">{verdict}.</p>'
        + rows_table(columns, ([move[name] for name in names] for move in moves)),
    )


def proof_section(statement: str, table: Any, *, passed: bool) -> str:
    """Returns the verdict of the verification, and its partitions."""
    return section(
        "The proof",
        "A verification reads both clusters, apart from the code that copies, and compares every record on the exact "
        "map: key, value, headers, timestamp and offset.",
        f'<p class="{"good" if passed else "bad"}">{html.escape(printable(statement))}</p>'
        + rows_table(PROVEN, ([_plain(row[name]) for name in PROVEN] for row in table.to_dict("records"))),
    )


def gate_section(results: Iterable[Mapping[str, Any]]) -> str:
    """Returns how often each expectation was evaluated, and how often it failed; the list of them opens at a click."""
    rows = [(row["suite"], row["expectation"], int(row["times"]), int(row["failed"])) for row in results]
    failed = sum(row[-1] for row in rows)
    verdict = f"{len(rows):,} expectations, evaluated {sum(row[2] for row in rows):,} times, {failed:,} times failed"
    return section(
        "The gate",
        "Before each commit, these expectations were evaluated on the records' offsets, with the transactions still "
        "open. Nothing becomes visible if one fails.",
        f'<p class="{"bad" if failed else "good"}">{verdict}.</p><details><summary>each of them</summary>'
        + rows_table(("suite", "expectation", "evaluated", "failed"), rows)
        + "</details>",
    )


def page(cards: str, sections: Iterable[str]) -> str:
    """Returns the whole page."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>mirrorlake: demo</title>'
        f"<style>{STYLE}</style></head><body><h1>Two clusters, one mirror, groups that moved</h1>"
        "<p>Three producers wrote to cluster a, six groups read there. mirrorlake copied everything to cluster b while "
        f"they were at work; then every group went on there.</p>{cards}{''.join(sections)}</body></html>\n"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return "-" if value is None or value != value else int(value)


def _gates(ledger: Ledger) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F

    found = ledger.read("expectation_results").groupBy("suite", "expectation")
    counted = found.agg(F.count("*").alias("times"), F.count_if(~F.col("success")).alias("failed"))
    return [row.asDict() for row in counted.orderBy("suite", "expectation").collect()]


def _map(ledger: Ledger, flow_name: str) -> tuple[str, list[tuple[int, int, int, int]]]:
    """Returns the partition with the most runs, and its runs."""
    from pyspark.sql import functions as F

    from mirrorlake.ledger import views

    source, _, target = flow_name.partition("->")
    found = views.read(ledger, "current_runs").filter((F.col("source") == source) & (F.col("target") == target))
    longest = found.groupBy("topic", "partition").count().orderBy(F.desc("count"), "topic", "partition").first()
    if longest is None:
        return "no partition", []
    columns = ("upstream_start", "upstream_end", "downstream_start", "downstream_end")
    mine = found.filter((F.col("topic") == longest["topic"]) & (F.col("partition") == longest["partition"]))
    runs: list[Any] = [tuple(row) for row in mine.select(*columns).orderBy("upstream_start").collect()]
    return f"{longest['topic']}-{longest['partition']}", runs


def _at_work(ledger: Ledger) -> tuple[datetime, datetime]:
    """Returns the time in which jobs were at work, with AROUND: an hour would show a demo as a line."""
    from pyspark.sql import functions as F

    row = ledger.read("cycles").agg(F.min("finished_at").alias("first"), F.max("finished_at").alias("last")).first()
    assert row is not None
    return row["first"] - AROUND, row["last"] + AROUND


def _verified(ledger: Ledger) -> datetime | None:
    """Returns the end of the newest verification."""
    from pyspark.sql import functions as F

    row = ledger.read("verifications").agg(F.max("finished_at").alias("last")).first()
    return None if row is None else row["last"]


def story_page(ledger: Ledger, flow_name: str, moves: Sequence[Mapping[str, Any]], proof: str) -> str:
    """Makes the page from the tables, the moves of groups, and the section about the proof.

    Args:
        ledger: the tables.
        flow_name: the flow, for the map.
        moves: the fields of `Move` of each position.
        proof: see `proof_section`.
    """
    from mirrorlake.notebook import figures, report_figures
    from mirrorlake.notebook.report import make_report

    since, end = _at_work(ledger)
    until = max(end, (_verified(ledger) or end) + AROUND)
    hours = (until - since) / timedelta(hours=1)
    report = make_report(ledger, flows=flow_name, hours=str(hours), until=str(until))
    figures_of = replace(report, until=end)
    name, runs = _map(ledger, flow_name)
    sections = [
        groups_section(moves),
        proof,
        section(
            "The map",
            f"The exact offsets of {name} on both clusters. Each step is a gap on the source: markers of transactions, "
            "and records of aborted ones.",
            image(
                figures.map_figure(runs, f"{name}: {len(runs):,} runs"), "offset on b minus offset on a, by offset on a"
            ),
        ),
        section(
            "Lag", "Offsets that were not mirrored.", image(report_figures.lag_figure(figures_of), "lag over time")
        ),
        section(
            "Throughput",
            "Records and bytes committed on b.",
            image(report_figures.throughput_figure(figures_of), "records and bytes per second over time"),
        ),
        gate_section(_gates(ledger)),
    ]
    return page(report_figures.cards(report), sections)


def main(directory: Path) -> int:
    import matplotlib

    matplotlib.use("Agg")
    from mirrorlake.config.flow import Flow
    from mirrorlake.jobs.verification.job import Verification
    from mirrorlake.jobs.verification.scope import VerificationScope
    from mirrorlake.ledger.store import Ledger
    from mirrorlake.local.session import local_session

    flow = Flow.load(directory / "mirrorlake.properties", FLOW)
    spark = local_session(resources.home(), "demo page")
    try:
        ledger = Ledger(spark, "spark_catalog", "mirrorlake", str(directory / "warehouse")).ensure_tables()
        suite = resources.expectations() / "verification.json"
        found = Verification(spark, flow, ledger, suite).run(VerificationScope.parse(mode="full"))
        proof = proof_section(found.statement(), found.table(), passed=found.passed)
        text = story_page(ledger, FLOW, json.loads(sys.stdin.read()), proof)
    finally:
        spark.stop()
    file = directory / PAGE
    file.write_text(text)
    print(f"{PAGE}: {file.stat().st_size / 1024:,.0f} KiB")
    return 0 if found.passed else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
