"""An example day of two flows, for the report: one without problems, the other with problems in the afternoon."""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta
from typing import Any

from mirrorlake.ledger.journal import CycleJob
from mirrorlake.ledger.store import Ledger

from tests.example_ledger import run, verification

UNTIL = datetime(2026, 11, 20, 14, 0)
HOURS = 6
STEP = timedelta(seconds=30)
WELL, UNWELL = ("west", "east"), ("north", "south")
OUTAGE = (
    datetime(2026, 11, 20, 12, 0),
    datetime(2026, 11, 20, 12, 40),
)  # the checkpoint job of the second flow has stopped
LOSS_AT = datetime(2026, 11, 20, 12, 41)


def fill_report(ledger: Ledger) -> Ledger:
    """Writes the rows into empty tables."""
    dice = random.Random(6)
    rows: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("offset_syncs", "cycles", "expectation_results", "anomalies", "verifications")
    }
    for flow in (WELL, UNWELL):
        _mirrored(flow, rows, dice)
    for name, some in rows.items():
        ledger.append(name, some)
    return ledger


def _mirrored(flow: tuple[str, str], rows: dict[str, list[dict[str, Any]]], dice: random.Random) -> None:
    names = dict(zip(("source", "target"), flow, strict=True))
    offset, number, now = 0, 0, UNTIL - timedelta(hours=HOURS)
    while now < UNTIL:
        number += 1
        is_down = flow == UNWELL and OUTAGE[0] <= now < OUTAGE[1]
        records = 0 if is_down else int(30_000 * (1.2 + math.sin(number / 90)) * dice.uniform(0.8, 1.2))
        lag = int((now - OUTAGE[0]).total_seconds() * 1_100) if is_down else dice.randrange(0, 400)
        if records:
            rows["offset_syncs"].append(
                {
                    **run(number, "orders", 0, (offset, offset + records), offset, "00:00:00"),
                    **names,
                    "bytes": 300 * records,
                    "committed_at": now,
                    "last_timestamp": now,
                }
            )
            offset += records
            stages = {"plan": 20, "copy": 640 + records / 200, "gate": 90, "commit": 30}
            stages = {name: value * dice.uniform(0.9, 1.3) for name, value in stages.items()}
            counts = {"records": records, "bytes": 300 * records, "runs": 1, "partitions": 1, "lag": lag}
            rows["cycles"].append(
                {
                    **names,
                    "job": CycleJob.MIRROR,
                    "cycle_id": f"m-{number}",
                    "finished_at": now,
                    "duration_ms": sum(stages.values()),
                    "stages_ms": stages,
                    **counts,
                }
            )
        elif is_down:
            idle = {"records": 0, "bytes": 0, "runs": 0, "partitions": 0, "lag": lag}
            rows["cycles"].append(
                {
                    **names,
                    "job": CycleJob.MIRROR,
                    "cycle_id": "m-idle",
                    "finished_at": now,
                    "duration_ms": 0.0,
                    "stages_ms": {},
                    **idle,
                }
            )
        if not is_down:
            counts = {"positions": 48, "unfinished": 0}
            rows["cycles"].append(
                {
                    **names,
                    "job": CycleJob.CHECKPOINT,
                    "cycle_id": f"c-{number}",
                    "finished_at": now + timedelta(seconds=4),
                    "duration_ms": 1800.0,
                    "stages_ms": {"read": 900.0},
                    **counts,
                }
            )
        if number % 10 == 0 or now == OUTAGE[1]:
            success = not (flow == UNWELL and OUTAGE[1] <= now < OUTAGE[1] + STEP)
            for suite in ("offset_syncs", "checkpoints"):
                result = {
                    "suite": suite,
                    "subject": "->".join(flow),
                    "expectation": "expect_it",
                    "evaluated_at": now,
                    "cycle_id": f"{suite}-{number}",
                }
                rows["expectation_results"].append({**result, "success": success or suite == "checkpoints"})
        now += STEP
    if flow == WELL:
        rows["verifications"].append(
            {
                **verification(1, "orders", 0, (0, offset), "13:50:00"),
                **names,
                "verified_to": UNTIL - STEP,
                "started_at": UNTIL - 2 * STEP,
                "finished_at": UNTIL - STEP,
            }
        )
        return
    half = offset // 2
    rows["verifications"].append(
        {**verification(2, "orders", 0, (0, half), "11:00:00"), **names, "verified_to": datetime(2026, 11, 20, 9, 58)}
    )
    detail = "deleted on the source before they were mirrored (retention or DeleteRecords)"
    lost = {"topic": "orders", "partition": 0, "from_offset": half, "to_offset": half + 1_250, "records": 1_250}
    rows["anomalies"].append(
        {**names, **lost, "kind": "retention", "detail": detail, "action": "continue", "detected_at": LOSS_AT}
    )
