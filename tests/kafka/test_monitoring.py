"""Alerts and the dashboard, in a real Prometheus and Alertmanager."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from mirrorlake.metrics import Metrics, of_process
from mirrorlake.telemetry.health import Health
from mirrorlake.telemetry.server import Server
from selenium.webdriver.common.by import By

from tests.pictures import chromium, take_picture
from tests.prometheus import free_ports, monitoring, program
from tests.world import DEADLINE_S, World, eventually
from tools.alerts import ALERTS, RULES, rules

ROOT = Path(__file__).resolve().parents[2]

# Of each alert: a series that breaks its limit, and one that keeps it; the notation is promtool's, a sample a minute.
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "MirrorlakeDown": ({'up{job="mirrorlake"}': "0x60"}, {'up{job="mirrorlake"}': "1x60", 'up{job="other"}': "0x60"}),
    "MirrorlakeRestarting": ({'up{job="mirrorlake"}': "0 1 " * 30}, {'up{job="mirrorlake"}': "1x20 0 1x38"}),
    "MirrorlakeNoProgress": (
        {"mirrorlake_progress_age_seconds": "0+60x60"},
        {"mirrorlake_progress_age_seconds": "9x60"},
    ),
    "MirrorlakeLag": ({"mirrorlake_lag_seconds": "400x60"}, {"mirrorlake_lag_seconds": "0x28 400x3 0x30"}),
    "MirrorlakeLagNotMeasured": (
        {"mirrorlake_lag_measured_timestamp_seconds": "0x60"},
        {"mirrorlake_lag_measured_timestamp_seconds": "0+60x60"},
    ),
    "MirrorlakeGateFailed": (
        {"mirrorlake_gate_failures_total": "0x25 1x35"},
        {"mirrorlake_gate_failures_total": "3x60"},
    ),
    "MirrorlakeAnomaly": (
        {'mirrorlake_anomalies_total{kind="retention"}': "0x25 1x35"},
        {'mirrorlake_anomalies_total{kind="held"}': "0x25 1x35", 'mirrorlake_anomalies_total{kind="foreign"}': "2x60"},
    ),
    "MirrorlakeHeld": (
        {"mirrorlake_held_topics": "1x60"},
        {"mirrorlake_held_topics": "0x60", "mirrorlake_held_partitions": "0x60"},
    ),
    "MirrorlakePaused": ({"mirrorlake_paused_partitions": "3x300"}, {"mirrorlake_paused_partitions": "0x300"}),
    "MirrorlakeOpenTransaction": (
        {"mirrorlake_open_transaction_age_seconds": "0+60x60"},
        {"mirrorlake_open_transaction_age_seconds": "100x60"},
    ),
    "MirrorlakeLedgerAway": ({"mirrorlake_ledger_away_seconds": "0+60x60"}, {"mirrorlake_ledger_away_seconds": "0x60"}),
    "MirrorlakeCheckpointStale": (
        {"mirrorlake_checkpoint_age_seconds": "0+60x60"},
        {"mirrorlake_checkpoint_age_seconds": "5x60"},
    ),
    "MirrorlakeGroupUnfinished": (
        {"mirrorlake_checkpoint_worst_group_seconds": "0+60x60"},
        {"mirrorlake_checkpoint_worst_group_seconds": "600x60"},
    ),
    "MirrorlakeGroupRefused": (
        {'mirrorlake_checkpoint_synced_positions{status="refused"}': "1x60"},
        {'mirrorlake_checkpoint_synced_positions{status="held"}': "1x60"},
    ),
    "MirrorlakeThrottled": (
        {"mirrorlake_throttled_seconds_total": "0+45x60"},
        {"mirrorlake_throttled_seconds_total": "0+15x60"},
    ),
    "MirrorlakeRetries": ({"mirrorlake_retries_total": "0+5x60"}, {"mirrorlake_retries_total": "0+1x60"}),
    "MirrorlakeUnverified": (
        {"mirrorlake_verified_timestamp_seconds": "-172000x60"},
        {"mirrorlake_verified_timestamp_seconds": "0x60"},
    ),
    "MirrorlakeCanaryLate": ({"mirrorlake_canary_burn_ratio": "2x60"}, {"mirrorlake_canary_burn_ratio": "0.9x60"}),
    "MirrorlakeMemory": ({"mirrorlake_memory_bytes": "5000000000x60"}, {"mirrorlake_memory_bytes": "500000000x60"}),
}


def test_every_rule_fires_where_its_limit_is_broken_and_nowhere_else(tmp_path: Path) -> None:
    assert RULES.read_text() == rules(), "run tools/alerts.py"
    assert CASES.keys() == {alert.name for alert in ALERTS}
    tests = [
        _case(name, series, fires=fires)
        for name, both in CASES.items()
        for series, fires in zip(both, (1, 0), strict=True)
    ]
    file = tmp_path / "alerts.test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    asked = subprocess.run([program("promtool"), "test", "rules", file], capture_output=True, text=True, timeout=60)
    assert asked.returncode == 0, asked.stdout + asked.stderr
    broken = tmp_path / "broken.test.yml"
    tests = [_case("MirrorlakeLag", CASES["MirrorlakeLag"][1], fires=1)]
    broken.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    asked = subprocess.run([program("promtool"), "test", "rules", broken], capture_output=True, text=True, timeout=60)
    assert asked.returncode, "promtool notices an alert that does not fire"


def _case(name: str, series: dict[str, str], *, fires: int) -> dict[str, Any]:
    """Returns a test for promtool: whether the alert fires after half an hour."""
    return {
        "name": f"{name}: {fires}",
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}})',
                "eval_time": "250m" if name == "MirrorlakePaused" else "30m",
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
        ],
    }


def queries() -> list[str]:
    """Returns the queries of the dashboard, with its variables set to everything."""
    dashboard = json.loads((ROOT / "monitoring/grafana.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return [
        re.sub(r"\$(flow|topic)", ".*", one).replace("$__rate_interval", "1m").replace("15m", "1m") for one in found
    ]


# Those of events that a flow in good health does not have.
SILENT = re.compile(r"throttled|retries|ledger_away|verified|canary")


def test_an_alert_fires_when_a_flow_breaks_and_ends_when_it_recovers(plain_world: World, tmp_path: Path) -> None:
    of_process.cache_clear()  # jobs have processes of their own, without the series of the tests before
    world, port = plain_world, free_ports(2)[0]
    topic = world.topic("orders", 2)
    world.produce(topic, 100)
    group = world.commit("readers", {(topic, 0): 10})
    world.write_config(
        mirrorlake_lag_interval_seconds="1",
        mirrorlake_metrics_port=str(port),
        mirrorlake_metrics_detailed="true",
        mirrorlake_metrics_health_seconds="600",
        mirrorlake_transaction_timeout_ms="120000",
    )
    going = threading.Event()
    going.set()

    def disturb(step: str) -> None:
        if step == "driver.planned":
            assert going.wait(DEADLINE_S)

    changed = rules({"lag": 2, "lag_for": 0.0, "no_progress": 3, "down_for": 0})
    with ExitStack() as running:
        pool = running.enter_context(ThreadPoolExecutor(1))
        job = world.disturbed_job(disturb)
        mirroring = pool.submit(job.run, 0.2)
        running.callback(job.stop)
        running.callback(going.set)
        running.enter_context(world.checkpointing())
        watched = running.enter_context(monitoring(tmp_path / "monitoring", [port, port + 1], changed))
        flow = f'flow="{world.flow_name}"'
        eventually(lambda: len(watched.query("up == 1")) == 2, what="two targets that are up")
        eventually(lambda: watched.query(f"mirrorlake_partition_lag_records{{{flow}}}"), what="a measurement")
        eventually(lambda: watched.query(f'mirrorlake_group_lag_records{{{flow}, group="{group}"}}'))
        world.produce(topic, 50, seed=2)
        for query in queries():
            if SILENT.search(query):
                watched.query(query)
            else:
                eventually(lambda query=query: watched.query(query), 30, what=query)
        assert "MirrorlakeLag" not in watched.alerts()

        going.clear()
        world.produce(topic, 50, seed=3)
        fired = eventually(
            lambda: {"MirrorlakeLag", "MirrorlakeNoProgress"} <= watched.alerts().keys() and watched.alerts()
        )
        lag = fired["MirrorlakeLag"]
        assert lag["labels"]["flow"] == world.flow_name
        assert "behind its source" in lag["annotations"]["summary"]
        assert lag["annotations"]["runbook"] == "docs/troubleshooting.md#mirrorlakelag"
        going.set()
        eventually(
            lambda: not {"MirrorlakeLag", "MirrorlakeNoProgress"} & watched.alerts().keys(), what="the end of it"
        )

        job.stop()
        mirroring.result(DEADLINE_S)
        down = eventually(lambda: watched.alerts().get("MirrorlakeDown"), what="an alert about the job that has ended")
        assert down["labels"]["instance"] == f"127.0.0.1:{port}"
        job = world.disturbed_job(disturb)
        mirroring = pool.submit(job.run, 0.2)
        running.callback(job.stop)
        eventually(lambda: "MirrorlakeDown" not in watched.alerts(), what="the end of it")
    assert world.assert_equal(topic) == 200


def test_the_page_of_alerts_shows_what_fires_why_and_what_to_do(tmp_path: Path) -> None:
    metrics, port = Metrics(), free_ports(1)[0]
    for flow, seconds in (("west->east", 412.0), ("east->west", 0.4)):
        metrics.lag_seconds.labels(flow).set(seconds)
    with ExitStack() as running:
        server = Server("127.0.0.1", port, metrics.registry, Health("west->east", "mirror", 300))
        running.callback(server.close)
        changed = rules({"lag_for": 0.0})
        watched = running.enter_context(monitoring(tmp_path / "monitoring", [port], changed))
        eventually(lambda: "MirrorlakeLag" in watched.alerts(), what="the alert")
        browser = running.enter_context(chromium(tmp_path / "chromium"))
        browser.set_window_size(1_000, 1_180)
        browser.get(watched.alerts_page)

        def shown() -> str:
            return browser.find_element(By.TAG_NAME, "body").text

        eventually(lambda: "MirrorlakeLag" in shown(), what="the page")
        # Of the classic page: what does not fire is left out, and what does is unfolded.
        for selector in ("label:has(#inactiveAlerts)", ".alert-danger.alert_header", "button.show-annotations"):
            for element in browser.find_elements(By.CSS_SELECTOR, selector):
                element.click()
        browser.execute_script("document.querySelector('#alertsTable tr')?.remove()")  # the place of the rules
        eventually(lambda: "Flow west->east is 6m 52s behind its source." in shown(), what="the annotations")
        assert "east->west" not in shown()
        take_picture(browser, "alerts")


def test_canaries_travel_the_whole_way_and_leave_no_group(plain_world: World) -> None:
    world = plain_world
    topic = world.topic("orders", 1)
    world.produce(topic, 10, 1)
    world.write_config(
        heartbeats_replication_enabled="true",
        mirrorlake_canary_enabled="true",
        mirrorlake_canary_interval_seconds="1",
    )
    group = world.flow.canary_group
    with world.mirroring(), world.checkpointing():
        for path in ("record", "group"):
            eventually(lambda path=path: world.metric("canary_seconds_count", path=path), what=f"a canary by {path}")
        assert world.metric("canary_quantile_seconds", path="record", quantile="0.5") < 10
        assert world.metric("canary_burn_ratio", path="record") == 0
        assert world.metric("canary_late_probes_total", path="group") in (None, 0)
        assert world.committed(group)
    assert not world.flow.moves_group(group)
    for admin in (world.source_admin, world.target_admin):
        eventually(
            lambda admin=admin: group not in {one.group_id for one in admin.list_consumer_groups().result().valid},
            what="the end of the canary's group",
        )
    assert {row["group_id"] for row in world.rows("checkpoints")} == {group}
