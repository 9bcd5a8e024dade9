"""Positions of groups from the ledger, and when they were confirmed."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from mirrorlake.config.flow import Flow
from mirrorlake.jobs.checkpoint.group_positions import confirmed_at
from mirrorlake.ledger.journal import Cycle, CycleJob
from mirrorlake.ledger.store import Ledger

from tests.example_ledger import at, checkpoint


def test_a_position_is_confirmed_by_the_newest_cycle_also_if_the_job_was_killed_before_it_had_recorded_one(
    example: Ledger, tmp_path: Path
) -> None:
    config = tmp_path / "mirrorlake.properties"
    config.write_text(
        "clusters = killed, east\nkilled.bootstrap.servers = x:1\neast.bootstrap.servers = y:1\n"
        "killed->east.enabled = true\n"
    )
    flow = Flow.load(str(config), "killed->east")
    assert confirmed_at(example, flow, None) is None
    changes = [checkpoint("g", "t", 0, (5, 5), time, source="killed") for time in ("09:00:00", "09:00:10")]
    example.append("checkpoints", changes)
    assert confirmed_at(example, flow, None) == at("09:00:10")
    assert confirmed_at(example, flow, at("09:00:05")) == at("09:00:00")

    def finished(job: CycleJob, time: str) -> tuple[Cycle, datetime]:
        return Cycle("killed", "east", job, time, 1.0, {}, finished_at=at(time)), at(time)

    cycle, later = finished(CycleJob.CHECKPOINT, "09:05:00")
    example.append("cycles", [cycle, finished(CycleJob.MIRROR, "09:06:00")[0]])
    assert confirmed_at(example, flow, None) == later
    assert confirmed_at(example, flow, at("08:59:59")) is None
