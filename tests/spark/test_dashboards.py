"""The queries of the dashboard and of the SQL alerts on Databricks, on the views that they will find there.

Tables are temporary views of a few rows, in a session of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mirrorlake.ledger.sql_text import filled
from mirrorlake.ledger.tables import TABLES
from mirrorlake.ledger.views import VIEWS, Definition

from tests.example_ledger import checkpoint, counted, gap, run, verification
from workflows.alerts import ALERTS
from workflows.dashboard import TILES
from workflows.settings import LATE_MINUTES, Cadence

FLOW, OTHER = {"source": "north", "target": "south"}, {"source": "east", "target": "west"}
LEFT = {"source": "left", "target": "south"}  # a failover has closed it
NEW = {"source": "new", "target": "south"}
LATE = LATE_MINUTES[Cadence.CONTINUOUS]
THRESHOLDS = {alert.key: LATE if alert.threshold is None else alert.threshold for alert in ALERTS}

Rows = Mapping[str, list[dict[str, Any]]]


def ago(**amount: float) -> datetime:
    return datetime.now(UTC).replace(tzinfo=None) - timedelta(**amount)


def cycle(job: str, finished_at: datetime, lag: int | None = None) -> dict[str, Any]:
    named = {**FLOW, "job": job, "cycle_id": f"{job}-{finished_at}", "finished_at": finished_at}
    return {**named, "duration_ms": 1.0, "stages_ms": {}, "lag": lag}


def measured(seconds: float, state: str = "mirroring", **flow: str) -> dict[str, Any]:
    partition = ("t", 0, state, None, 100, 200, 200, 100, 0, ago(minutes=1), seconds)
    return {**flow, "measured_at": ago(seconds=1), "due_at": ago(hours=-1), "partitions": [partition]}


STOPPED = {**FLOW, "kind": "stopped", "action": "stop"}
REFUSED = {"suite": "offset_syncs", "subject": "north->south", "expectation": "e", "success": False, "cycle_id": "c"}


def well() -> Rows:
    """Returns rows of now: a module may be loaded long before its tests run."""
    return {
        "lag_samples": [measured(1.0, **FLOW)],
        "cycles": [
            *(cycle("mirror", ago(minutes=1), 0), cycle("checkpoint", ago(minutes=1))),
            *({**cycle("mirror", ago(hours=3), 9), **LEFT}, {**cycle("checkpoint", ago(hours=3)), **LEFT}),
            {**cycle("close", ago(hours=2)), **LEFT},
        ],
        "offset_syncs": [
            run(1, "t", 0, (0, 100), 0, "10:00:00", **FLOW, committed_at=ago(minutes=1)),
            run(1, "t", 0, (0, 9), 0, "10:00:00", **LEFT, committed_at=ago(hours=4)),
        ],
        "gaps": [gap(1, "t", 0, (100, 101), "marker", 100, "10:00:00", **FLOW, committed_at=ago(minutes=1))],
        "checkpoints": [checkpoint("g", "t", 0, (5, 5), "10:00:00", **FLOW)],
        "verifications": [verification(1, "t", 0, (0, 100), "10:00:00", **FLOW, finished_at=ago(hours=3))],
        "counts": [counted("t", 1, 10, (100, 100), "12:00:00", **FLOW)],
    }


def ill() -> Rows:
    """Returns what is to be added for each alert to fire.

    Of the other flow, the jobs have died long ago, while it had records to mirror and could not. The one that was left
    is open again, and nobody has started its jobs. Of the new one, neither checkpoints nor a verification ever worked.
    """
    return {
        "lag_samples": [measured(3600.0, **OTHER)],
        "anomalies": [{**STOPPED, "detected_at": ago(minutes=5)}],
        "expectation_results": [{**REFUSED, "evaluated_at": ago(minutes=5)}],
        "gaps": [gap(2, "t", 0, (101, 120), "retention", 100, "10:00:00", **FLOW, committed_at=ago(hours=2))],
        "checkpoints": [checkpoint("g", "t", 0, (9, 9), "11:00:00", sync="refused", **FLOW)],
        "verifications": [
            verification(2, "t", 0, (0, 100), "11:00:00", passed=False, **FLOW, finished_at=ago(hours=2)),
            # Records are late.
            verification(3, "t", 0, (0, 9), "11:00:00", **NEW, unmirrored=7, finished_at=ago(hours=1)),
        ],
        "counts": [counted("t", 2, 11, (100, 150), "13:00:00", **FLOW, window_start=ago(hours=26))],
        "cycles": [
            *({**row, **OTHER} for row in (cycle("mirror", ago(hours=1), 500), cycle("checkpoint", ago(hours=1)))),
            {**cycle("open", ago(minutes=30)), **LEFT},
            *({**cycle("mirror", ago(hours=hours), 0), **NEW} for hours in (60, 0.01)),
        ],
        # A second more than an hour before the job's last sign of life, which is taken above.
        "offset_syncs": [run(1, "t", 0, (0, 9), 0, "10:00:00", **OTHER, committed_at=ago(hours=2, seconds=1))],
    }


def session_with(spark: Any, *several: Rows) -> Any:
    """Returns a session that has these rows as its tables, and the views."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    for name, (definition, _) in TABLES.items():
        schema = session.createDataFrame([], definition.replace(" NOT NULL", "")).schema
        rows = [tuple(row.get(column) for column in schema.names) for some in several for row in some.get(name, [])]
        session.createDataFrame(rows, schema).createOrReplaceTempView(name)
    for name in VIEWS:
        session.sql(f"CREATE TEMPORARY VIEW {name} AS {Definition.load(name).filled(lambda used: used)}")
    return session


def values(session: Any) -> dict[str, float]:
    """Asks all alerts in one query; returns the value of each."""
    parts = [f"SELECT '{one.key}' AS alert, ({filled(one.query, lambda name: name)}) AS value" for one in ALERTS]
    return {row["alert"]: row["value"] for row in session.sql(" UNION ALL ".join(parts)).collect()}


@pytest.fixture(scope="module")
def unwell(spark: Any) -> Any:
    return session_with(spark, well(), ill())


def test_no_alert_fires_while_all_is_well_and_each_one_does_on_what_it_is_for(spark: Any, unwell: Any) -> None:
    for rows in ((), (well(),)):
        found = values(session_with(spark, *rows))
        assert {name for name, value in found.items() if not value <= THRESHOLDS[name]} == set()
    found = values(unwell)
    assert {name for name, value in found.items() if value <= THRESHOLDS[name]} == set()
    assert found["records_lost"] == 19
    assert found["mirror_stuck"] == found["mirror_behind"] == 60
    assert found["mirror_silent"] >= 180
    assert found["checkpoint_silent"] >= 3600
    assert found["unverified"] == 60


def test_no_alert_fires_for_what_an_operator_has_paused_for_what_has_gone_or_for_what_is_long_over(spark: Any) -> None:
    gone = {"source": "gone", "target": "south"}
    rest: Rows = {
        "lag_samples": [measured(86_400.0, "paused", **OTHER)],
        "cycles": [
            *({**row, **OTHER} for row in (cycle("mirror", ago(minutes=1), 500), cycle("checkpoint", ago(minutes=1)))),
            *({**row, **gone} for row in (cycle("mirror", ago(days=91), 5), cycle("checkpoint", ago(days=91)))),
        ],
        "offset_syncs": [
            run(1, "t", 0, (0, 9), 0, "10:00:00", **OTHER, committed_at=ago(hours=2)),
            run(1, "t", 0, (0, 9), 0, "10:00:00", **gone, committed_at=ago(days=92)),
        ],
        "checkpoints": [checkpoint("g", "t", 0, (9, 9), "11:00:00", sync="refused", **one) for one in (gone, LEFT)],
        "verifications": [
            verification(2, "t", 0, (0, 9), "11:00:00", passed=False, **one, finished_at=ago(days=92))
            for one in (gone, LEFT)
        ],
        "counts": [counted("t", 2, 11, (100, 150), "13:00:00", **FLOW, window_start=ago(days=8))],
    }
    found = values(session_with(spark, well(), rest))
    assert {name for name, value in found.items() if not value <= THRESHOLDS[name]} == set()


def test_a_topic_that_was_created_anew_is_no_loss_of_all_that_was_ever_mirrored(spark: Any) -> None:
    rows: Rows = {"gaps": [gap(3, "t", 0, (0, 500_000), "recreated", 9, "10:00:00", **FLOW, committed_at=ago(hours=2))]}
    assert values(session_with(spark, well(), rows))["records_lost"] == 1


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.key)
def test_every_tile_of_the_dashboard_has_the_columns_that_it_shows(unwell: Any, tile: Any) -> None:
    found = unwell.sql("".join(tile.dataset()["queryLines"]))
    assert sorted(found.columns) == sorted(tile.columns)
    assert found.limit(1).collect(), "the rows of this module have some for every tile"
