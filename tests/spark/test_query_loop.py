"""Micro-batches of a real streaming query, handled in the driver."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from mirrorlake.errors import ConfigurationError, TargetError
from mirrorlake.metrics import Metrics
from mirrorlake.spark.query_loop import Batches
from pyspark.sql.streaming import StreamingQuery

from tests.log_lines import logged


@pytest.fixture
def endless(spark: Any) -> Any:
    """Returns a stream with new rows at every micro-batch."""
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()


def test_a_micro_batch_that_comes_while_the_query_is_being_stopped_does_not_hold_it_up(
    endless: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping, entered, handled = threading.Event(), threading.Event(), []
    stop, enter = StreamingQuery.stop, Batches._batch

    def stop_late(query: Any) -> None:
        stopping.set()
        assert entered.wait(30)
        stop(query)

    def enter_seen(batches: Batches, frame: Any, number: int) -> None:
        if stopping.is_set():
            entered.set()
        enter(batches, frame, number)

    monkeypatch.setattr(StreamingQuery, "stop", stop_late)
    monkeypatch.setattr(Batches, "_batch", enter_seen)

    def handle(_: Any, number: int) -> None:
        handled.append((number, stopping.is_set()))
        batches.stop()

    batches = Batches(handle, 10, "a->b")
    batches.run(endless, "stopped", str(tmp_path), interval_s=0)
    assert handled
    assert not any(during_stop for _, during_stop in handled), "the micro-batch that came late was left to the next run"


def test_it_is_stopped_between_two_micro_batches_never_inside_one(endless: Any, tmp_path: Any) -> None:
    begun, ended = threading.Event(), []

    def slow(frame: Any, number: int) -> None:
        begun.set()
        ended.append(len(frame.collect()))
        assert not threading.Event().wait(3)
        ended.append("end")

    def stop() -> None:
        assert begun.wait(60)
        batches.stop()

    batches = Batches(slow, 10, "a->b")
    stopping = threading.Thread(target=stop)
    stopping.start()
    batches.run(endless, "slow", str(tmp_path), interval_s=0)
    stopping.join()
    assert ended == [1, "end"]


def test_retriable_errors_are_tried_again_and_said_until_the_deadline(endless: Any, tmp_path: Any) -> None:
    attempts: list[int] = []
    metrics = Metrics()

    def twice(frame: Any, number: int) -> None:
        attempts.append(number)
        if len(attempts) < 3:
            raise TargetError("a broker is away", retriable=True)

    with logged() as said:
        batches = Batches(twice, 60, "a->b", metrics, once=True)
        batches.run(endless, "retried", str(tmp_path / "a"), interval_s=0)
    assert len(attempts) == 3
    assert [line.partition(" left_s=")[0] for line in said] == [
        f"WARNING retrying flow=a->b failures={number}" for number in (1, 2)
    ]
    assert all(line.endswith('error="a broker is away"') for line in said)
    labels = {"flow": "a->b", "kind": "TargetError"}
    assert metrics.registry.get_sample_value("mirrorlake_retries_total", labels) == 2

    def always(frame: Any, number: int) -> None:
        raise TargetError("a broker is away", retriable=True)

    with pytest.raises(TargetError, match="a broker is away"):
        Batches(always, 1, "a->b").run(endless, "given up", str(tmp_path / "b"), interval_s=0)


def test_a_run_whose_time_is_up_goes_on_until_a_micro_batch_succeeds_or_its_retries_are_used_up(
    endless: Any, tmp_path: Any
) -> None:
    attempts: list[int] = []

    def twice(frame: Any, number: int) -> None:
        attempts.append(number)
        if len(attempts) < 3:
            raise TargetError("a broker is away", retriable=True)

    Batches(twice, 60, "a->b").run(endless, "short", str(tmp_path / "a"), interval_s=0, run_for_s=0)
    assert len(attempts) >= 3

    def always(frame: Any, number: int) -> None:
        raise TargetError("a broker is away", retriable=True)

    with pytest.raises(TargetError, match="a broker is away"):
        Batches(always, 1, "a->b").run(endless, "short and given up", str(tmp_path / "b"), interval_s=0, run_for_s=0)


def test_a_run_whose_time_is_up_while_attempts_fail_ends_once_one_has_succeeded(endless: Any, tmp_path: Any) -> None:
    is_well: list[bool] = []

    def fails_for_a_while(frame: Any, number: int) -> None:
        is_well.append(len(is_well) not in {1, 2, 3, 4})
        if not is_well[-1]:
            raise TargetError("a broker is away", retriable=True)

    # The pauses behind failures take 3 s, of which the time that is given is a third.
    Batches(fails_for_a_while, 60, "a->b").run(endless, "failing", str(tmp_path), interval_s=0, run_for_s=1)
    assert is_well[-1]


def test_what_a_micro_batch_raises_ends_the_query_and_is_raised_as_it_was(endless: Any, tmp_path: Any) -> None:
    def refuses(frame: Any, number: int) -> None:
        raise ConfigurationError("not like this")

    with pytest.raises(ConfigurationError, match="not like this"):
        Batches(refuses, 10, "a->b").run(endless, "refused", str(tmp_path), interval_s=0, run_for_s=30)
