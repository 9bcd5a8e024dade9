"""Refills that are left to do, by the decisions and resets in the ledger."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from mirrorlake.config.flow import Flow
from mirrorlake.jobs.failover.lost_ends import pending_refills
from mirrorlake.ledger.store import Ledger
from mirrorlake.model.slot import Position

from tests.example_ledger import gap, run

PAIR = {"source": "north", "target": "south"}
COPY = {**PAIR, "target_topic": "orders"}


def flow_of(directory: Path) -> Flow:
    """Returns the flow that was failed over; both directions use the names of the source."""
    file = directory / "two.properties"
    file.write_text(
        "clusters = north, south\n"
        "north.bootstrap.servers = 127.0.0.1:1\nsouth.bootstrap.servers = 127.0.0.1:2\n"
        "north->south.enabled = true\nsouth->north.enabled = true\n"
        "replication.policy.class = IdentityReplicationPolicy\n"
    )
    return Flow.load(str(file), "north->south")


def decide(ledger: Ledger, action: str, minute: int, span: tuple[int, int]) -> None:
    """Writes a decision about a lost end, as the failback does."""
    row = {
        **PAIR,
        "topic": "orders",
        "partition": 0,
        "kind": "truncated",
        "from_offset": span[0],
        "to_offset": span[1],
        "records": span[1] - span[0],
        "detail": "",
        "action": action,
        "detected_at": datetime(2026, 11, 20, 10) + timedelta(minutes=minute),
    }
    append(ledger, "anomalies", [row])


def append(ledger: Ledger, table: str, rows: list[dict[str, Any]]) -> None:
    ledger.append_frame(table, ledger.spark.createDataFrame(rows, ledger.read(table).schema))


def test_the_newest_decision_about_a_lost_end_counts_with_the_map_from_before_its_reset(
    example: Ledger, tmp_path: Path
) -> None:
    flow, lost = flow_of(tmp_path), (100, 150)
    runs = [
        run(1, "orders", 0, (0, 150), 1_000, "09:00:00", **COPY),
        run(3, "orders", 0, (100, 180), 1_200, "11:00:00", 1, **COPY),  # other records, of the log that came back
    ]
    append(example, "offset_syncs", runs)
    append(example, "gaps", [gap(2, "orders", 0, lost, "truncated", 1_150, "10:00:00", 0, **PAIR)])

    def left(carried_to: int | None = None) -> list[tuple[int, int, int]]:
        """Returns the target offsets of the refills, and the records, once the flow back has got to an offset."""
        at = {} if carried_to is None else {("orders", 0): position(carried_to)}
        return [(one.from_offset, one.to_offset, of.records) for of, one in pending_refills(flow, example, at)]

    decide(example, "refill, signed by ann", 1, lost)
    assert left(1_120) == [(1_100, 1_150, 50)], "a part is missing"
    assert left(1_150) == [], "all of it is home"
    decide(example, "accept, signed by ann", 2, lost)
    assert left() == []
    decide(example, "refill, signed by ann", 3, lost)
    decide(example, "skipped, as configured", 4, lost)
    assert left() == [(1_100, 1_150, 50)], "what the mirror job writes is no decision"
    decide(example, "refilled, as decided", 5, lost)
    assert left() == [], "done, also if the flow back begins anew"


def position(upstream_next: int) -> Position:
    return Position("orders", 0, "", "orders", 0, upstream_next, 500, 0)
