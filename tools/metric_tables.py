"""Writes the tables of metrics in docs/monitoring.md, from the metrics themselves.

Usage: PYTHONPATH=lib .venv/bin/python tools/metric_tables.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mirrorlake.metrics import Metrics
from mirrorlake.telemetry.details import FAMILIES
from prometheus_client.metrics import MetricWrapperBase

PAGE = Path(__file__).resolve().parents[1] / "docs/monitoring.md"
PLACE = re.compile(r"(<!-- (metrics|details) -->\n).*?(?=<!-- end of \2 -->)", re.DOTALL)


def rewrite(page: str) -> str:
    """Replaces the tables between the marks of a page."""
    tables = {"metrics": _metrics(), "details": _details()}
    return PLACE.sub(lambda place: f"{place[1]}\n{tables[place[2]]}\n", page)


def _metrics() -> str:
    lines = "| metric | type | labels | meaning |\n|---|---|---|---|\n"
    for metric in vars(Metrics()).values():
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = ", ".join(metric._labelnames)
            lines += f"| `{name}` | {family.type} | {labels} | {family.documentation} |\n"
    return lines


def _details() -> str:
    lines = "| metric | labels | meaning |\n|---|---|---|\n"
    for name, (documentation, labels) in FAMILIES.items():
        lines += f"| `{name}` | {', '.join(labels)} | {documentation} |\n"
    return lines


def main() -> int:
    PAGE.write_text(rewrite(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
