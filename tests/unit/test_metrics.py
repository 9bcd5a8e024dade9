"""The names of metrics, on which dashboards and alerts depend."""

from __future__ import annotations

import re
from typing import Any

import pytest
from mirrorlake.metrics import Metrics, of_process
from mirrorlake.telemetry.details import FAMILIES
from prometheus_client import CollectorRegistry, generate_latest

from tools import alerts, metric_tables

# https://prometheus.io/docs/practices/naming/: base units only; what is counted is a unit, too.
BASE_UNITS = {"seconds", "bytes"}
COUNTED = {
    "records",
    "batches",
    "runs",
    "topics",
    "partitions",
    "positions",
    "appends",
    "cycles",
    "evaluations",
    "failures",
    "anomalies",
    "retries",
    "generation",
    "probes",
    "ratio",
}
LABELS = {"flow", "suite", "status", "stage", "kind", "cluster", "path", "quantile"}
METRICS = {name: metric for name, metric in vars(Metrics()).items() if name != "registry"}
PARAMETERS = [pytest.param(metric, id=name) for name, metric in METRICS.items()]


def families() -> list[Any]:
    return [*Metrics().registry.collect()]


@pytest.mark.parametrize("metric", PARAMETERS)
def test_a_metric_has_the_name_that_prometheus_asks_for(metric: Any) -> None:
    (family,) = metric.describe()
    assert re.fullmatch(r"mirrorlake(_[a-z]+)+", family.name)
    assert family.unit in BASE_UNITS | COUNTED
    assert family.name.endswith(f"_{family.unit}")
    assert family.type in {"counter", "gauge", "histogram"}
    assert family.type != "histogram" or family.unit in BASE_UNITS


@pytest.mark.parametrize("metric", PARAMETERS)
def test_a_metric_says_what_it_measures(metric: Any) -> None:
    (family,) = metric.describe()
    assert re.fullmatch(r"[A-Z][^\n]{15,}\.", family.documentation)


@pytest.mark.parametrize("metric", PARAMETERS)
def test_labels_are_bounded_and_every_metric_names_its_flow(metric: Any) -> None:
    assert metric._labelnames[0] == "flow"
    assert set(metric._labelnames) <= LABELS
    assert len(set(metric._labelnames)) == len(metric._labelnames)


def test_no_metric_is_there_twice_and_all_are_registered() -> None:
    names = [family.name for family in families()]
    assert len(names) > 15
    assert sorted(names) == sorted({metric.describe()[0].name for metric in METRICS.values()})
    assert len({metric.describe()[0].documentation for metric in METRICS.values()}) == len(METRICS)


def test_counters_are_exposed_as_totals_and_nothing_else_is() -> None:
    metrics = Metrics()
    for metric in (value for name, value in vars(metrics).items() if name != "registry"):
        child = metric.labels(*("x" for _ in metric._labelnames))
        child.observe(0.2) if hasattr(child, "observe") else child.inc(2)
    for family in metrics.registry.collect():
        samples = {sample.name for sample in family.samples}
        assert (f"{family.name}_total" in samples) == (family.type == "counter")
    assert b'mirrorlake_mirrored_records_total{flow="x"} 2.0' in generate_latest(metrics.registry)


def test_a_registry_can_be_given_and_the_process_has_one_of_its_own() -> None:
    registry = CollectorRegistry()
    Metrics(registry).lag_records.labels("a->b").set(7)
    assert registry.get_sample_value("mirrorlake_lag_records", {"flow": "a->b"}) == 7
    assert of_process() is of_process()
    assert of_process().registry is not registry
    assert Metrics().registry.get_sample_value("mirrorlake_lag_records", {"flow": "a->b"}) is None


def test_the_page_on_monitoring_has_a_row_for_each_metric_and_each_alert() -> None:
    page = metric_tables.PAGE.read_text()
    assert metric_tables.rewrite(page) == page, "run tools/metric_tables.py"
    assert alerts.table(page) == page, "run tools/alerts.py"
    rows = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    counters = {family.name for family in families() if family.type == "counter"}
    known = {f"{family.name}_total" if family.name in counters else family.name for family in families()}
    assert rows == known | FAMILIES.keys()


def exposed() -> set[str]:
    """Returns the names under which metrics are scraped."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    return {f"{family.name}{suffix}" for family in families() for suffix in suffixes[family.type]} | FAMILIES.keys()


def test_pages_name_metrics_as_they_are_scraped() -> None:
    known = exposed() | {family.name for family in families() if family.type == "histogram"}
    for page in (*alerts.ROOT.glob("*.md"), *(alerts.ROOT / "docs").rglob("*.md")):
        named = set(re.findall(r"`(mirrorlake_\w+)[`{]", page.read_text()))
        assert named - known == set(), page


def test_alerts_and_dashboard_ask_for_metrics_that_exist() -> None:
    known = exposed()
    asked = alerts.RULES.read_text() + (alerts.ROOT / "monitoring/grafana.json").read_text()
    names = set(re.findall(r"\b(?:mirrorlake|kafka_connect_mirror)_\w+", asked))
    assert len(names) > 25
    assert names - known == set()
