"""Pushes metrics by OTLP over HTTP, for jobs that can't be scraped.

The metrics are those of the registry that `/metrics` shows, under the same names. A collector that is down, slow or
refuses holds up no job. It is logged once, until it takes something again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from mirrorlake.log import event

log = logging.getLogger(__name__)

PUSH_TIMEOUT_S = 10.0
LAST_PUSH_S = 3.0  # for which the end of a job waits
UNITS = {"seconds": "s", "bytes": "By", "ratio": ""}  # UCUM; what is counted is in braces
OPENTELEMETRY = "opentelemetry"


class Pusher:
    """Pushes all metrics of a registry, at an interval and once at the end, in a thread of its own.

    Args:
        flow: the flow of the job, for log lines and the resource.
        job: mirror, checkpoint or verify.
        registry: the metrics.
        endpoint: the address of the collector's `/v1/metrics`.
        headers: headers of each request.
        interval_s: the seconds between two pushes.
    """

    def __init__(
        self,
        flow: str,
        job: str,
        registry: CollectorRegistry,
        endpoint: str,
        headers: Mapping[str, str],
        interval_s: float,
    ) -> None:
        self._flow, self._job, self._registry = flow, job, registry
        self._endpoint, self._headers, self._interval_s = endpoint, dict(headers), interval_s
        self._trouble = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"otlp {flow}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Pushes a last time, and ends; waits for LAST_PUSH_S at most."""
        self._ending.set()
        self._thread.join(LAST_PUSH_S)

    def _keep(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        _quiet()
        # A push may not last longer than an interval: the next one has newer figures.
        timeout_s = min(PUSH_TIMEOUT_S, max(1.0, self._interval_s))
        exporter = OTLPMetricExporter(endpoint=self._endpoint, headers=self._headers, timeout=timeout_s)
        while not self._ending.wait(self._interval_s):
            self._push(exporter, timeout_s)
        self._push(exporter, LAST_PUSH_S)
        exporter.shutdown(timeout_millis=0)

    def _push(self, exporter: Any, timeout_s: float) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        causes = _LastWord()
        logger = logging.getLogger(OPENTELEMETRY)
        logger.addHandler(causes)
        try:
            result = exporter.export(as_otlp(self._registry, self._flow, self._job), timeout_millis=1000 * timeout_s)
            trouble = "" if result is MetricExportResult.SUCCESS else (causes.last or "it does not take them")
        except Exception as error:  # the exporter's own, and those of the libraries below
            trouble = type(error).__name__
        finally:
            logger.removeHandler(causes)
        if trouble and not self._trouble:
            place = urlsplit(self._endpoint)
            where = f"{place.scheme}://{place.hostname}:{place.port or ''}{place.path}"  # without a password in it
            log.warning(event("metrics_not_pushed", flow=self._flow, endpoint=where, error=trouble))
        elif self._trouble and not trouble:
            log.info(event("metrics_pushed_again", flow=self._flow))
        self._trouble = trouble


class _LastWord(logging.Handler):
    """Keeps the last thing that the exporter says; its result is only yes or no."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        code = next((value for value in record.args or () if isinstance(value, int) and value >= 400), None)
        self.last = f"it answers with status {code}" if code else "it can't be reached, or not in time"


def _quiet() -> None:
    """Keeps the exporter's own lines, one for each attempt, out of the log."""
    logger = logging.getLogger(OPENTELEMETRY)
    logger.propagate = False
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())


def as_otlp(registry: CollectorRegistry, flow: str, job: str) -> Any:
    """Returns the present values of all metrics of a registry as OTLP's data (`MetricsData`).

    Counters become monotonic sums, gauges stay gauges, histograms are cumulative. OTLP names have no `_total`; what
    writes them to Prometheus adds it.
    """
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    now_ns = time.time_ns()
    metrics = [converted for family in registry.collect() for converted in _converted(family, now_ns)]
    resource = Resource({"service.name": "mirrorlake", "service.instance.id": f"{job} {flow}"})
    scope = ScopeMetrics(InstrumentationScope("mirrorlake"), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _converted(family: Metric, now_ns: int) -> Iterator[Any]:
    from opentelemetry.sdk.metrics import export

    points = _points(family, now_ns)
    if not points:
        return
    cumulative = export.AggregationTemporality.CUMULATIVE
    data: Any
    match family.type:
        case "counter":
            data = export.Sum(points, cumulative, is_monotonic=True)
        case "histogram":
            data = export.Histogram(points, cumulative)
        case _:
            data = export.Gauge(points)
    unit = UNITS.get(family.unit, f"{{{family.unit}}}" if family.unit else "")
    yield export.Metric(family.name, family.documentation, unit, data)


def _points(family: Metric, now_ns: int) -> list[Any]:
    """Returns one data point for each set of labels of a family."""
    from opentelemetry.sdk.metrics import export

    by_labels: dict[tuple[tuple[str, str], ...], list[Any]] = {}
    for sample in family.samples:
        labels = tuple((name, value) for name, value in sorted(sample.labels.items()) if name != "le")
        by_labels.setdefault(labels, []).append(sample)
    points: list[Any] = []
    for labels, samples in by_labels.items():
        values = {
            sample.name.removeprefix(family.name): sample.value for sample in samples if "le" not in sample.labels
        }
        start_ns = int(1e9 * values.get("_created", 0.0)) or now_ns
        if family.type == "histogram":
            steps = [(float(sample.labels["le"]), sample.value) for sample in samples if "le" in sample.labels]
            counts = [int(count - before) for (_, count), (_, before) in zip(steps, [(0.0, 0.0), *steps], strict=False)]
            bounds = [bound for bound, _ in steps if bound != float("inf")]
            count, total = int(steps[-1][1]), values.get("_sum", 0.0)
            no: Any = None  # the least and the largest value are not kept
            points.append(
                export.HistogramDataPoint(dict(labels), start_ns, now_ns, count, total, counts, bounds, no, no)
            )
        else:
            value = values.get("_total", values.get("", 0.0))
            points.append(export.NumberDataPoint(dict(labels), start_ns, now_ns, value))
    return points
