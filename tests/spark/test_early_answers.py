"""The answers of tasks, on real workers, while their Spark job still runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mirrorlake.jobs.mirror.early_answers import EarlyAnswers

from tests.world import eventually


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
