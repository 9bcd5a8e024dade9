"""The queries of the dashboard and of the SQL alerts on Databricks, on the views that they will find there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mirrorlake.ledger.sql_text import filled
from mirrorlake.ledger.store import Ledger
from mirrorlake.ledger.views import ensure_views

from tests.empty_ledger import ledger_in
from tests.example_ledger import checkpoint, counted, gap, run, verification
from workflows.alerts import ALERTS, LATE_MINUTES
from workflows.dashboard import TILES
from workflows.settings import Cadence

NOW = datetime.now(UTC).replace(tzinfo=None)
FLOW = {"source": "north", "target": "south"}


def ago(**amount: float) -> datetime:
    return NOW - timedelta(**amount)


@pytest.fixture(scope="module")
def ledger(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    made = ledger_in(spark, "alerted", tmp_path_factory.mktemp("alerted"))
    ensure_views(made)
    return made


def cycle(job: str, finished_at: datetime, lag: int | None = None) -> dict[str, Any]:
    named = {**FLOW, "job": job, "cycle_id": f"{job}-{finished_at}", "finished_at": finished_at}
    return {**named, "duration_ms": 1.0, "stages_ms": {}, "lag": lag}


def values(ledger: Ledger) -> dict[str, float]:
    """Asks all alerts in one query; returns the value of each."""
    parts = [f"SELECT '{alert.key}' AS alert, ({filled(alert.query, ledger.table)}) AS value" for alert in ALERTS]
    return {row["alert"]: row["value"] for row in ledger.spark.sql(" UNION ALL ".join(parts)).collect()}


def test_no_alert_fires_on_a_quiet_ledger_and_each_one_does_on_what_it_is_for(ledger: Ledger) -> None:
    late = LATE_MINUTES[Cadence.CONTINUOUS]
    thresholds = {alert.key: late if alert.threshold is None else alert.threshold for alert in ALERTS}
    ledger.append("cycles", [cycle("mirror", ago(minutes=1), 0), cycle("checkpoint", ago(minutes=1))])
    ledger.append("offset_syncs", [run(1, "t", 0, (0, 100), 0, "10:00:00", **FLOW, committed_at=ago(minutes=1))])
    ledger.append("gaps", [gap(1, "t", 0, (100, 101), "marker", 100, "10:00:00", **FLOW, committed_at=ago(minutes=1))])
    ledger.append("checkpoints", [{**checkpoint("g", "t", 0, (5, 5), "10:00:00"), **FLOW}])
    ledger.append("verifications", [{**verification(1, "t", 0, (0, 100), "10:00:00"), **FLOW}])
    ledger.append("counts", [{**counted("t", 1, 10, (100, 100), "12:00:00"), **FLOW}])
    assert {name for name, value in values(ledger).items() if value > thresholds[name]} == set()

    stopped, refused = {**FLOW, "kind": "stopped", "action": "stop"}, {"subject": "north->south", "success": False}
    ledger.append("anomalies", [{**stopped, "detected_at": ago(minutes=5)}])
    ledger.append(
        "expectation_results",
        [{"suite": "offset_syncs", "expectation": "e", **refused, "evaluated_at": ago(minutes=5), "cycle_id": "c"}],
    )
    ledger.append("gaps", [gap(2, "t", 0, (101, 120), "retention", 100, "10:00:00", **FLOW, committed_at=ago(hours=2))])
    ledger.append("checkpoints", [{**checkpoint("g", "t", 0, (9, 9), "11:00:00", sync="refused"), **FLOW}])
    ledger.append("verifications", [{**verification(2, "t", 0, (0, 100), "11:00:00", passed=False), **FLOW}])
    ledger.append("counts", [{**counted("t", 2, 11, (100, 150), "13:00:00"), **FLOW}])
    # Another flow, whose jobs died long ago, while it had records to mirror and could not.
    other = {"source": "east", "target": "west"}
    died = [cycle("mirror", ago(hours=1), 500), cycle("checkpoint", ago(hours=1))]
    ledger.append("cycles", [{**row, **other} for row in died])
    ledger.append("offset_syncs", [run(1, "t", 0, (0, 9), 0, "10:00:00", **other, committed_at=ago(hours=2))])
    fired = values(ledger)
    assert {name for name, value in fired.items() if value <= thresholds[name]} == set()
    assert fired["records_lost"] == 19
    assert fired["mirror_stuck"] == fired["mirror_silent"] == 60


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.key)
def test_every_tile_of_the_dashboard_has_the_columns_that_it_shows(ledger: Ledger, spark: Any, tile: Any) -> None:
    spark.sql("USE spark_catalog.alerted")
    found = spark.sql("".join(tile.dataset()["queryLines"]))
    assert tuple(sorted(found.columns)) == tuple(sorted(tile.columns))
    assert found.limit(1).collect(), "the ledger of this module has rows for every tile"
