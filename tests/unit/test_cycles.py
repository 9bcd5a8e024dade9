"""The cycles of the checkpoint job, as far as they need no Spark."""

from __future__ import annotations

from unittest.mock import MagicMock

from mirrorlake.jobs.checkpoint.cycles import CycleRun, SparkCycles
from mirrorlake.metrics import Metrics


def test_a_stop_while_the_job_still_prepares_is_kept() -> None:
    spark, flow = MagicMock(), MagicMock(retry_timeout_ms=1_000)
    flow.name = "a->b"
    cycles = SparkCycles(spark)
    cycles.stop()
    cycles.run(CycleRun("c", flow, "query", "checkpoint", 1.0, 0.0, handle=lambda *_: None, metrics=Metrics()))
    frame = spark.readStream.format.return_value.option.return_value.option.return_value.load.return_value
    assert not frame.writeStream.mock_calls
