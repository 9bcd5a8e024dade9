"""What a mirror job tells of its micro-batches, and of having none."""

from __future__ import annotations

from typing import Any, cast

from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.jobs.mirror.ledger_keeper import LedgerKeeper
from mirrorlake.jobs.mirror.observation.progress_keeper import IDLE_NOTE_S, ProgressKeeper
from mirrorlake.ledger.anomaly import Anomaly
from mirrorlake.ledger.journal import Cycle
from mirrorlake.metrics import Metrics
from mirrorlake.model.anomaly import AnomalyKind
from mirrorlake.spark.timing import STAGES
from mirrorlake.state.slot_report import SlotReport
from mirrorlake.telemetry.job_telemetry import JobTelemetry

FLOW = "a->b"
PROPERTIES = {
    "clusters": "a, b",
    "a.bootstrap.servers": "a:9092",
    "b.bootstrap.servers": "b:9092",
    f"{FLOW}.enabled": "true",
}
LOST = {"topic": "orders", "partition": 0, "from_offset": 5, "to_offset": 8, "kind": "retention"}


class Kept:
    """A progress keeper whose rows are kept, and whose clock is set."""

    def __init__(self) -> None:
        self.cycles: list[Cycle] = []
        self.anomalies: list[Anomaly] = []
        self.runs, self.now_s = 0, 0.0
        flow, self.metrics = Flow.from_properties(Properties(PROPERTIES), FLOW), Metrics()
        self.keeper = ProgressKeeper(
            flow,
            self.metrics,
            JobTelemetry(flow, "mirror", self.metrics, "offset_syncs"),
            cast("LedgerKeeper", self),
            self.anomalies.extend,
            "job",
            now=lambda: self.now_s,
        )

    def note(self, table: str, rows: list[Cycle]) -> None:
        assert table == "cycles"
        self.cycles += rows

    def count_runs(self, *, committed: int) -> None:
        self.runs += committed

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"flow": FLOW, **labels})


def reported(**changes: Any) -> SlotReport:
    run = {"records": 7, "bytes": 700}
    stretch = {"upstream_from": 0, "upstream_next": 10, "runs": [run], "gaps": [LOST]}
    values = {"stretches": [stretch], "warnings": [], "throttled_ms": {"source": 500.0}, **changes}
    return SlotReport(0, "id", 1, 1, is_open=True, **values)


def test_a_micro_batch_is_told_as_a_row_as_metrics_and_in_the_result() -> None:
    kept = Kept()
    kept.keeper.planned(lag_records=15)
    kept.keeper.committed(4, 3, [reported(), reported(warnings=["others write"])], dict.fromkeys(STAGES, 250.0), 0.0)
    (cycle,) = kept.cycles
    assert (cycle.cycle_id, cycle.duration_ms, cycle.records, cycle.bytes) == ("job-4", 1000.0, 14, 1400)
    assert (cycle.runs, cycle.partitions, cycle.lag, kept.runs) == (2, 2, 0, 2)
    assert kept.value("mirrorlake_mirrored_records_total") == 14
    assert kept.value("mirrorlake_lag_records") == 0
    waited_s = kept.value("mirrorlake_throttled_seconds_total", cluster="source")
    assert waited_s == 0.5, "two slots that wait beside each other hold up the micro-batch once"
    result = kept.keeper.result(3, seconds=2.0, paused=None)
    assert (result.generation, result.batches, result.records, result.lag, len(result.history)) == (3, 1, 14, 0, 1)


def test_records_of_other_programs_and_lost_ones_are_told() -> None:
    kept = Kept()
    kept.keeper.committed(1, 1, [reported(warnings=["others write"])], dict.fromkeys(STAGES, 1.0), 0.0)
    assert [(row.kind, row.detail) for row in kept.anomalies] == [(AnomalyKind.FOREIGN, "others write")]
    assert kept.value("mirrorlake_anomalies_total", kind="retention") == 1


def test_an_idle_job_records_a_cycle_in_each_minute_with_its_lag() -> None:
    kept = Kept()
    kept.keeper.planned(lag_records=5)
    for kept.now_s in range(0, 200, 10):
        kept.keeper.idle_if_due()
    assert [(cycle.cycle_id, cycle.records, cycle.lag) for cycle in kept.cycles] == [("job-idle", 0, 5)] * 2
    kept.keeper.committed(1, 1, [reported()], dict.fromkeys(STAGES, 1.0), 0.0)
    kept.now_s += IDLE_NOTE_S
    kept.keeper.idle_if_due()
    assert len(kept.cycles) == 3, "a micro-batch is a cycle, too"


def test_a_run_that_has_committed_nothing_records_one_cycle_at_its_end() -> None:
    kept = Kept()
    kept.keeper.planned(lag_records=3)
    kept.keeper.ended()
    assert [(cycle.cycle_id, cycle.records, cycle.lag) for cycle in kept.cycles] == [("job-idle", 0, 3)]
    busy = Kept()
    busy.keeper.committed(1, 1, [reported()], dict.fromkeys(STAGES, 1.0), 0.0)
    busy.keeper.ended()
    assert [cycle.cycle_id for cycle in busy.cycles] == ["job-1"]
