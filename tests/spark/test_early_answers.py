"""The answers of tasks, on real workers, while their Spark job still runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mirrorlake import errors
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.errors import SourceError
from mirrorlake.jobs.mirror import spark_engine
from mirrorlake.jobs.mirror.early_answers import EarlyAnswers
from mirrorlake.jobs.mirror.planning.plan import MirrorPlan
from mirrorlake.jobs.mirror.spark_engine import SparkTasks
from mirrorlake.model.copy_plan import Range

from tests.unit.test_throttle import PROPERTIES
from tests.world import eventually

LOST = json.dumps(errors.to_json(SourceError("lost")))


def test_an_answer_is_there_while_a_slower_task_runs_and_none_of_an_earlier_job_is(spark: Any, tmp_path: Path) -> None:
    early, may_end = EarlyAnswers(spark), str(tmp_path / "may_end")

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        from pathlib import Path
        from time import monotonic, sleep

        deadline = monotonic() + 60
        for batch in batches:
            while batch.column(0).to_pylist() == [1] and not Path(may_end).exists() and monotonic() < deadline:
                sleep(0.01)
            yield batch

    for _ in range(2):  # Python workers are used again
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(spark.range(0, 2, 1, 2).mapInArrow(early.of(task), "id BIGINT").collect)
            found: list[Any] = []
            eventually(lambda found=found: found.extend(early.take()) or found, what="the answer of the first task")
            assert found == [{"id": 0}]
            assert not job.done()
            Path(may_end).touch()
        assert sorted(row["id"] for row in job.result()) == [0, 1]
        assert early.take() == [{"id": 1}]
        Path(may_end).unlink()


def test_tasks_that_still_run_or_wait_end_with_a_micro_batch_that_is_given_up(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = str(tmp_path / "begun")

    def copy_task(*_: object) -> Any:
        def task(batches: Iterable[Any]) -> Iterator[Any]:
            from pathlib import Path
            from time import sleep

            import pyarrow as pa

            for batch in batches:
                (slot,) = batch.column(0).to_pylist()
                Path(f"{begun}-{slot}").touch()
                if slot:
                    sleep(600)
                values = {"slot": pa.array([slot], pa.int32()), "report": pa.array([""]), "error": pa.array([LOST])}
                yield pa.RecordBatch.from_pydict(values)

        return task

    monkeypatch.setattr(spark_engine, "copy_task", copy_task)
    flow = Flow.from_properties(Properties(PROPERTIES), "a->b")
    slots = 12  # more than there are cores
    plan = MirrorPlan(1, slots, ranges=tuple(Range("t", slot, "", slots, slot, 0, 1) for slot in range(slots)))
    answers = SparkTasks(spark, "", small_records=0).run(flow, plan)
    assert next(answer.slot for answer in answers if answer is not None) == 0
    began = time.monotonic()
    answers.close()
    eventually(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds(), what="the end of the job")
    assert time.monotonic() - began < 30
    assert not Path(f"{begun}-{slots - 1}").exists()
