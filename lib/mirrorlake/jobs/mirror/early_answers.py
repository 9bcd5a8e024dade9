"""The answers of copying tasks while their Spark job still runs.

The result of a Spark job is there when its last task has ended. An accumulator has what a task adds as soon as that
task has ended. If Spark loses an update, the answer comes with the result of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

Task = Callable[[Iterable[Any]], Iterator[Any]]
Answers = list[tuple[int, dict[str, Any]]]  # number of the job, row


class EarlyAnswers:
    """Collects the rows that tasks return, one job after the other.

    Args:
        spark: a classic session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._job, self._taken = 0, 0
        self._accumulator: Accumulator[Answers] | None = None  # one for all jobs: PySpark never drops one

    def of(self, task: Task) -> Task:
        """Returns the function of the tasks of a new job: it notes the rows of `task`."""
        if self._accumulator is None:
            from pyspark.accumulators import AddingAccumulatorParam

            param: Any = AddingAccumulatorParam([])  # a list can be added to, too
            self._accumulator = self._spark.sparkContext.accumulator([], param)
        self._accumulator.value = []
        self._job, self._taken = self._job + 1, 0
        accumulator, job = self._accumulator, self._job

        def noting(batches: Iterable[Any]) -> Iterator[Any]:
            for batch in task(batches):
                accumulator.add([(job, row) for row in batch.to_pylist()])
                yield batch

        return noting

    def take(self) -> list[dict[str, Any]]:
        """Returns the rows that have come since the last call."""
        answers = [] if self._accumulator is None else self._accumulator.value[self._taken :]
        self._taken += len(answers)
        return [row for job, row in answers if job == self._job]
