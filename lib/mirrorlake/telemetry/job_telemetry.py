"""Serves and pushes the metrics of one job for as long as it runs."""

from __future__ import annotations

import logging
from contextlib import suppress
from types import TracebackType

from prometheus_client import Counter, Gauge

from mirrorlake.config.flow import Flow, require_otlp_address
from mirrorlake.config.properties import OTLP_ENDPOINT, OTLP_HEADERS
from mirrorlake.config.secret_reference import resolve
from mirrorlake.errors import ConfigurationError
from mirrorlake.log import event
from mirrorlake.metrics import Metrics, count_age, resident_bytes
from mirrorlake.model.anomaly import KINDS
from mirrorlake.telemetry.details import Details, details_of
from mirrorlake.telemetry.health import Health
from mirrorlake.telemetry.otlp import Pusher
from mirrorlake.telemetry.server import Server

log = logging.getLogger(__name__)

PORT_OFFSETS = {"mirror": 0, "checkpoint": 1}  # jobs that are scraped; of the others, metrics are pushed only


class JobTelemetry:
    """What others see of one job, from its beginning to its end, as the flow's properties say.

    A port that is taken and a collector that can't be reached stop no job. Both are logged.

    Args:
        flow: the flow of the job.
        job: mirror, checkpoint or verify.
        metrics: the metrics of the process.
        suite: the name of the suite of expectations that the job evaluates.

    Attributes:
        health: the progress of the job.
        details: the metrics of topics, partitions and groups; None if they are off.
    """

    def __init__(self, flow: Flow, job: str, metrics: Metrics, suite: str) -> None:
        self._flow, self._job, self._metrics, self._suite = flow, job, metrics, suite
        self.health = Health(flow.name, job, flow.metrics_health_s)
        self.details: Details | None = details_of(metrics.registry) if flow.metrics_detailed else None
        by_job = {
            "mirror": (metrics.progress_age_seconds, metrics.last_commit_age_seconds),
            "checkpoint": (metrics.checkpoint_age_seconds,),
        }
        self._ages: tuple[Gauge, ...] = by_job.get(job, ())
        counters = {
            "mirror": (
                metrics.mirrored_records,
                metrics.mirrored_bytes,
                metrics.micro_batches,
                metrics.ledger_appends,
                metrics.ledger_runs,
            ),
            "checkpoint": (metrics.checkpoint_cycles,),
        }
        self._counters: tuple[Counter, ...] = counters.get(job, ())
        self._server: Server | None = None
        self._pusher: Pusher | None = None

    def __enter__(self) -> JobTelemetry:
        """Begins to serve and to push.

        Raises:
            ConfigurationError: a header of the pushes is not of the form `name=value`, their address is none, or a
                reference of either has no value.
        """
        flow, metrics = self._flow, self._metrics
        headers, endpoint = _headers(flow), resolve(OTLP_ENDPOINT, flow.metrics_otlp_endpoint).strip()
        require_otlp_address(flow.name, endpoint)
        metrics.memory_bytes.labels(flow.name).set_function(resident_bytes)
        self._begin_counters()
        if self._job == "mirror":
            metrics.ledger_away_seconds.labels(flow.name)
            if flow.lag_interval_s:  # a lag that can never be measured must be noticed, too
                metrics.lag_measured_seconds.labels(flow.name).set_to_current_time()
            metrics.progress_age_seconds.labels(flow.name).set_function(lambda: self.health.age_s)
            count_age(metrics.last_commit_age_seconds, flow.name)
        if self._job == "checkpoint":
            count_age(metrics.checkpoint_age_seconds, flow.name)
        if flow.metrics_port and self._job in PORT_OFFSETS:
            port = flow.metrics_port + PORT_OFFSETS[self._job]
            try:
                self._server = Server(flow.metrics_host, port, metrics.registry, self.health)
                log.info(event("metrics_served", flow=flow.name, job=self._job, host=flow.metrics_host, port=port))
            except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host can be like this
                detail = "the job goes on without; give each flow two ports of its own (mirrorlake.metrics.port)"
                log.warning(
                    event(
                        "metrics_not_served",
                        flow=flow.name,
                        host=flow.metrics_host,
                        port=port,
                        error=getattr(error, "strerror", None) or type(error).__name__,
                        detail=detail,
                    )
                )
        if endpoint:
            self._pusher = Pusher(
                flow.name,
                self._job,
                metrics.registry,
                endpoint,
                headers,
                flow.metrics_otlp_interval_s,
            )
        return self

    def _begin_counters(self) -> None:
        """Lets each counter begin at 0: one that begins with 1 has no increase, and nothing is not 0 to a query."""
        flow, metrics = self._flow.name, self._metrics
        for kind in KINDS:
            metrics.anomalies.labels(flow, kind)
        for evaluations in (metrics.gate_evaluations, metrics.gate_failures):
            evaluations.labels(flow, self._suite)
        for counter in self._counters:
            counter.labels(flow)
        if self._job == "mirror":
            for side in ("source", "target"):
                metrics.throttled_seconds.labels(flow, side)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.health.failed(error)
        if self._pusher is not None:
            self._pusher.close()
        if self._server is not None:
            self._server.close()
        for gauge in self._ages:  # they would grow on in a process that goes on with other jobs
            with suppress(KeyError):
                gauge.remove(self._flow.name)


def _headers(flow: Flow) -> dict[str, str]:
    """Returns the headers of pushes, with the values of references."""
    found = {}
    for part in filter(None, (part.strip() for part in flow.metrics_otlp_headers.split(","))):
        name, divider, value = part.partition("=")
        if not divider or not name.strip():
            raise ConfigurationError(
                f"flow {flow.name}: property {OTLP_HEADERS} is not of the form name=value, name=value"
            )
        found[name.strip().lower()] = resolve(OTLP_HEADERS, value.strip()).strip()
    return found
