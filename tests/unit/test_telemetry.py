"""What others see of a job: served over HTTP, pushed by OTLP, and never in its way."""

from __future__ import annotations

import gzip
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.errors import ConfigurationError, SourceError
from mirrorlake.metrics import Metrics, count_age, resident_bytes
from mirrorlake.model.partition_lag import PartitionLag, PartitionState
from mirrorlake.telemetry.details import (
    CHECKPOINT_CONNECTOR,
    FAMILIES,
    KEPT_S,
    SOURCE_CONNECTOR,
    WINDOW_S,
    Details,
    details_of,
)
from mirrorlake.telemetry.health import Health
from mirrorlake.telemetry.job_telemetry import JobTelemetry
from mirrorlake.telemetry.otlp import LAST_PUSH_S, Pusher, as_otlp
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.log_lines import logged

DEADLINE_S = 30.0
SUITE = "offset_syncs"


def flow(**properties: str) -> Flow:
    names = {name.replace("_", "."): value for name, value in properties.items()}
    base = {"clusters": "a, b", "a.bootstrap.servers": "a:1", "b.bootstrap.servers": "b:1", "a->b.enabled": "true"}
    return Flow.from_properties(Properties({**base, **names}), "a->b")


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def get(port: int, path: str) -> tuple[int, str, bytes]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=DEADLINE_S) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except HTTPError as refusal:
        return refusal.code, refusal.headers["Content-Type"], refusal.read()


def filled() -> Metrics:
    metrics = Metrics()
    metrics.mirrored_records.labels("a->b").inc(12)
    metrics.lag_seconds.labels("a->b").set(2.5)
    for seconds in (0.003, 0.3, 7.0, 900.0):
        metrics.micro_batch_seconds.labels("a->b").observe(seconds)
    metrics.anomalies.labels("a->b", "held").inc()
    return metrics


# -- served -------------------------------------------------------------------------------------------


def test_metrics_and_health_are_served_on_loopback_and_end_with_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    port, metrics = free_port(), filled()
    with JobTelemetry(flow(mirrorlake_metrics_port=str(port)), "mirror", metrics, SUITE) as telemetry:
        status, kind, body = get(port, "/metrics")
        assert (status, kind.partition(";")[0]) == (200, "text/plain")
        found = {family.name: family for family in text_string_to_metric_families(body.decode())}
        assert found["mirrorlake_mirrored_records"].samples[0].value == 12
        assert found["mirrorlake_memory_bytes"].samples[0].value > 10e6
        status, kind, body = get(port, "/health")
        report = json.loads(body)
        assert (status, kind) == (200, "application/json")
        assert (report["alive"], report["ready"], report["last_progress"]) == (True, False, None)
        telemetry.health.ready()
        telemetry.health.progressed()
        report = json.loads(get(port, "/health")[2])
        assert (report["flow"], report["job"], report["ready"], report["error"]) == ("a->b", "mirror", True, None)
        assert report["last_progress"].endswith("+00:00")
        assert get(port, "/")[0] == 404
        with socket.create_connection(("127.0.0.1", port)) as hasty:  # gone before its answer
            hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            hasty.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert get(port, "/health")[0] == 200
        with JobTelemetry(flow(mirrorlake_metrics_port=str(port - 1)), "checkpoint", metrics, SUITE), logged() as said:
            pass
        assert not said
        with logged() as said, JobTelemetry(flow(mirrorlake_metrics_port=str(port)), "mirror", metrics, SUITE):
            pass
        assert "metrics_not_served" in said[0], "the second job goes on without"
    with pytest.raises(OSError, match="refused"):
        urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
    assert "Traceback" not in capsys.readouterr().err


def test_what_has_not_happened_yet_is_0_and_a_lag_that_is_never_measured_can_be_noticed() -> None:
    metrics = Metrics()
    began = time.time()
    with JobTelemetry(flow(), "mirror", metrics, SUITE), JobTelemetry(flow(), "checkpoint", metrics, SUITE):
        found = {
            sample.name: sample.value
            for family in metrics.registry.collect()
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
    zero = ("mirrored_records", "mirrored_bytes", "micro_batches", "ledger_appends", "ledger_runs", "checkpoint_cycles")
    assert [found[f"mirrorlake_{name}_total"] for name in (*zero, "throttled_seconds", "gate_failures")] == [0.0] * 8
    assert found["mirrorlake_ledger_away_seconds"] == 0
    assert began <= found["mirrorlake_lag_measured_timestamp_seconds"] <= time.time()
    unmeasured = Metrics()
    with JobTelemetry(flow(mirrorlake_lag_interval_seconds="0"), "mirror", unmeasured, SUITE):
        assert b"lag_measured_timestamp_seconds{" not in generate_latest(unmeasured.registry)


def test_a_job_begins_to_serve_without_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(name: str = "") -> str:
        raise AssertionError(name)

    monkeypatch.setattr(socket, "getfqdn", ask)
    with JobTelemetry(flow(mirrorlake_metrics_port=str(port := free_port())), "mirror", Metrics(), SUITE):
        assert get(port, "/health")[0] == 200


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_address_of_ipv6_is_listened_on(host: str) -> None:
    port = free_port()
    with JobTelemetry(
        flow(mirrorlake_metrics_port=str(port), mirrorlake_metrics_host=host), "mirror", Metrics(), SUITE
    ):
        assert urlopen(f"http://[::1]:{port}/health", timeout=DEADLINE_S).status == 200


def test_a_name_that_no_host_can_have_is_said_and_stops_no_job() -> None:
    nowhere = flow(mirrorlake_metrics_port="9464", mirrorlake_metrics_host="a..b")
    with logged() as said, JobTelemetry(nowhere, "mirror", Metrics(), SUITE):
        pass
    assert "metrics_not_served" in said[0]


def test_health_is_503_once_there_was_no_progress_for_the_bound() -> None:
    now = [100.0]
    health = Health("a->b", "mirror", 60.0, lambda: now[0])
    health.ready()
    now[0] += 60
    assert health.report()["ready"]
    now[0] += 1
    health.failed(SourceError("cluster a, password xyz"))
    report = health.report()
    assert (report["alive"], report["ready"], report["error"]) == (False, False, "SourceError")
    health.progressed()
    assert health.report()["alive"]
    assert health.report()["error"] is None
    with JobTelemetry(flow(mirrorlake_metrics_port=str(port := free_port())), "mirror", Metrics(), SUITE) as telemetry:
        telemetry.health._since -= 301
        assert get(port, "/health")[0] == 503


def test_an_age_grows_between_two_readings() -> None:
    metrics = Metrics()
    count_age(metrics.last_commit_age_seconds, "a->b")
    name, labels = "mirrorlake_last_commit_age_seconds", {"flow": "a->b"}
    first = metrics.registry.get_sample_value(name, labels)
    until(lambda: (metrics.registry.get_sample_value(name, labels) or 0) > (first or 0))
    assert 10e6 < resident_bytes() < 100e9
    with JobTelemetry(flow(), "mirror", metrics, SUITE):
        assert metrics.registry.get_sample_value("mirrorlake_progress_age_seconds", labels) is not None
    for age in (name, "mirrorlake_progress_age_seconds"):
        assert metrics.registry.get_sample_value(age, labels) is None, "of a job that has ended"


# -- pushed -------------------------------------------------------------------------------------------


@contextmanager
def collector(status: int = 200, hold: threading.Event | None = None) -> Iterator[tuple[str, list[Any]]]:
    """Serves an address that takes OTLP, refuses it, or does not answer; yields the address and the requests."""
    taken: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
            taken.append((dict(self.headers.items()), body))
            if hold is not None:
                hold.wait(DEADLINE_S)
            self.send_response(answer[0])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    answer = [status]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/metrics", taken
    finally:
        server.shutdown()
        server.server_close()


def test_what_is_pushed_is_what_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTLP_TOKEN", "Bearer abc\n")  # as a file has it that Kubernetes mounts
    metrics = filled()
    with collector() as (endpoint, taken):
        monkeypatch.setenv("OTLP_PORT", endpoint.split(":")[2].split("/")[0])
        pushes = flow(
            mirrorlake_metrics_otlp_endpoint="http://127.0.0.1:${env:OTLP_PORT}/v1/metrics",
            mirrorlake_metrics_otlp_headers="authorization=${env:OTLP_TOKEN}, x-tenant=1",
        )
        assert "OTLP_TOKEN" not in repr(pushes)
        with JobTelemetry(pushes, "mirror", metrics, SUITE):
            # The job is shorter than the interval, so there is one push, at its end.
            text = generate_latest(metrics.registry).decode()
        ((headers, body),) = taken
    assert (headers["authorization"], headers["x-tenant"]) == ("Bearer abc", "1")
    request = ExportMetricsServiceRequest.FromString(body)
    (resource,) = request.resource_metrics
    names = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (names["service.name"], names["service.instance.id"]) == ("mirrorlake", "mirror a->b")
    pushed = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    served = {family.name: family for family in text_string_to_metric_families(text)}
    assert pushed.keys() == {name for name, family in served.items() if family.samples} - {
        name for name in served if name.endswith("_created")
    }
    counted = pushed["mirrorlake_mirrored_records"]
    assert (counted.unit, counted.sum.is_monotonic, counted.sum.aggregation_temporality) == ("{records}", True, 2)
    (point,) = counted.sum.data_points
    assert point.as_double == 12
    assert 0 < point.start_time_unix_nano <= point.time_unix_nano
    assert [(one.key, one.value.string_value) for one in point.attributes] == [("flow", "a->b")]
    assert pushed["mirrorlake_lag_seconds"].unit == "s"
    assert pushed["mirrorlake_lag_seconds"].gauge.data_points[0].as_double == 2.5
    (histogram,) = pushed["mirrorlake_micro_batch_seconds"].histogram.data_points
    assert (histogram.count, round(histogram.sum, 3)) == (4, 907.303)
    assert not histogram.HasField("min")
    assert len(histogram.bucket_counts) == len(histogram.explicit_bounds) + 1
    assert sum(histogram.bucket_counts) == 4
    assert (histogram.bucket_counts[0], histogram.bucket_counts[-1]) == (1, 1)
    within = dict(zip(histogram.explicit_bounds, histogram.bucket_counts, strict=False))
    assert (within[0.5], within[10.0]) == (1, 1)


def test_a_collector_that_is_down_slow_or_refuses_is_said_once_and_waited_for_by_none() -> None:
    hold = threading.Event()
    with collector(status=401) as (refusing, refused), collector(hold=hold) as (slow, _):
        down = f"http://user:hidden@127.0.0.1:{free_port()}/v1/metrics"
        pushers = {}
        with logged() as said:
            began = time.monotonic()
            for endpoint, interval_s in ((refusing, 0.05), (slow, 60.0), (down, 0.05)):
                pushers[endpoint] = Pusher("a->b", "mirror", filled().registry, endpoint, {}, interval_s)
            assert time.monotonic() < began + 1, "none was waited for"
            until(lambda: len(refused) > 2)
            until(lambda: len(said) == 2)
            for pusher in pushers.values():
                began = time.monotonic()
                pusher.close()
                assert time.monotonic() < began + LAST_PUSH_S + 2
            hold.set()
    assert sorted(line.split()[1] for line in said) == ["metrics_not_pushed"] * 2
    assert any("401" in line for line in said)
    assert not any("hidden" in line for line in said)


def test_headers_and_an_endpoint_of_another_form_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="gRPC is not supported"):
        flow(mirrorlake_metrics_otlp_endpoint="localhost:4317")
    for endpoint in ("http://h:43x18/v1/metrics", "http://h:99999", "http://[::1/v1", "http:///v1/metrics"):
        with pytest.raises(ConfigurationError, match=r"is no address\. Write it like http://collector:4318"):
            flow(mirrorlake_metrics_otlp_endpoint=endpoint)
    monkeypatch.setenv("OTLP", "collector:4317")
    with (
        pytest.raises(ConfigurationError, match="gRPC is not supported"),
        JobTelemetry(flow(mirrorlake_metrics_otlp_endpoint="${env:OTLP}"), "mirror", Metrics(), SUITE),
    ):
        pass
    with (
        pytest.raises(ConfigurationError, match="name=value") as refused,
        JobTelemetry(
            flow(mirrorlake_metrics_otlp_endpoint="http://h:1", mirrorlake_metrics_otlp_headers="s3cret"),
            "mirror",
            Metrics(),
            SUITE,
        ),
    ):
        pass
    assert "s3cret" not in str(refused.value)


# -- MirrorMaker 2's names ----------------------------------------------------------------------------


def run(partition: int, records: int, first_ms: int, last_ms: int) -> dict[str, Any]:
    return {
        "target_topic": "a.t",
        "target_partition": partition,
        "records": records,
        "bytes": 100 * records,
        "first_timestamp": first_ms,
        "last_timestamp": last_ms,
    }


def values(details: Details) -> dict[tuple[str, ...], float]:
    return {
        (family.name, *(sample.labels[name] for name in FAMILIES[family.name][1])): sample.value
        for family in details.collect()
        for sample in family.samples
    }


def test_a_long_name_makes_no_long_series_and_none_that_begins_alike_is_lost() -> None:
    details, groups = Details(), [f"{'g' * 32_000}{number}" for number in range(2)]
    details.groups("a->b", {(group, "t", 0): 17 for group in groups})
    details.checkpointed([("a", "b", group, "a.t", "0") for group in groups], 250.0)
    found = [key for key in values(details) if key[0] == "mirrorlake_group_lag_records"]
    assert len(found) == 2
    assert max(len(label) for key in values(details) for label in key) < 250


def test_topics_and_groups_have_the_names_of_mirrormaker_2_and_its_windows() -> None:
    now = [1_000.0]
    details = Details(lambda: now[0])
    details.mirrored("b", [run(0, 30, 90_000, 98_000)], read_at_ms=100_000, committed_at_ms=101_000)
    now[0] += 20
    details.mirrored("b", [run(0, 10, 119_000, 119_000)], read_at_ms=120_000, committed_at_ms=120_500)
    details.checkpointed([("a", "b", "g", "a.t", "0")], 250.0)
    details.groups("a->b", {("g", "t", 0): 17})
    found, place = values(details), ("b", "a.t", "0")
    assert found[f"{SOURCE_CONNECTOR}record_count", *place] == 40
    assert found[f"{SOURCE_CONNECTOR}byte_count", *place] == 4_000
    assert found[f"{SOURCE_CONNECTOR}record_rate", *place] == pytest.approx(40 / 30)
    ages = [found[f"{SOURCE_CONNECTOR}record_age_ms{suffix}", *place] for suffix in ("", "_min", "_max", "_avg")]
    assert ages == [1_000, 1_000, 10_000, (30 * 6_000 + 10 * 1_000) / 40]
    assert found[f"{SOURCE_CONNECTOR}replication_latency_ms", *place] == 1_500
    assert found[f"{CHECKPOINT_CONNECTOR}checkpoint_latency_ms_avg", "a", "b", "g", "a.t", "0"] == 250
    assert found["mirrorlake_group_lag_records", "a->b", "g", "t", "0"] == 17
    now[0] += 100
    found = values(details)
    assert found[f"{SOURCE_CONNECTOR}record_count", *place] == 40
    assert found[f"{SOURCE_CONNECTOR}record_rate", *place] == 0
    assert found[f"{SOURCE_CONNECTOR}record_age_ms_max", *place] == 0


def test_topics_and_groups_that_are_gone_make_room_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorlake.telemetry.details.MOST_SERIES", 2)
    now = [0.0]
    details = Details(lambda: now[0])

    def news(*partitions: int) -> set[str]:
        for partition in partitions:
            details.mirrored("b", [run(partition, 1, 1, 1)], 5, 5)
            details.checkpointed([("a", "b", "g", "a.t", str(partition))], 250.0)
        found = values(details)
        shown = {key[-1] for key in found if key[0] == f"{SOURCE_CONNECTOR}record_count"}
        assert shown == {key[-1] for key in found if key[0] == f"{CHECKPOINT_CONNECTOR}checkpoint_latency_ms"}
        assert shown == {key[-1] for key in found if key[0] == f"{SOURCE_CONNECTOR}record_age_ms"}
        return shown

    assert news(0, 1, 2) == {"0", "1"}
    now[0] += KEPT_S - 1
    assert news(1, 2) == {"0", "1"}
    now[0] += WINDOW_S
    assert news(2, 3) == {"1", "2"}


def test_details_are_off_unless_asked_for_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    assert JobTelemetry(flow(), "mirror", metrics, SUITE).details is None
    details = JobTelemetry(flow(mirrorlake_metrics_detailed="true"), "mirror", metrics, SUITE).details
    assert details is details_of(metrics.registry)
    monkeypatch.setattr("mirrorlake.telemetry.details.MOST_SERIES", 5)
    assert details is not None
    for number in range(20):
        details.mirrored("b", [run(number, 1, 1, 1)], 5, 5)
    details.groups("a->b", {(f"g{number}", "t", 0): number for number in range(20)})
    state = PartitionState.MIRRORING
    details.lag("a->b", [PartitionLag("t", age, state, lag=age, lag_seconds=float(age)) for age in range(20)])
    text = generate_latest(metrics.registry).decode()
    assert text.count(f"\n{SOURCE_CONNECTOR}record_count{{") == 5
    for name in ("group_lag_records", "partition_lag_records", "partition_lag_seconds"):
        shown = re.findall(rf"\nmirrorlake_{name}{{.*}} (\d+)\.0", text)
        assert sorted(map(int, shown)) == [15, 16, 17, 18, 19], "the longest"
    assert len(as_otlp(metrics.registry, "a->b", "mirror").resource_metrics[0].scope_metrics[0].metrics) > 5
