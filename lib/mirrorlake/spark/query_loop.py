"""Runs a streaming query whose micro-batches the driver handles: retries, deadlines, and a stop between two batches."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mirrorlake.errors import MirrorlakeError, unexpected, without_contents
from mirrorlake.log import event
from mirrorlake.metrics import Metrics, of_process
from mirrorlake.spark.retries import Retries
from mirrorlake.spark.session_state import why_ended

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger(__name__)

POLL_S = 0.25


@dataclass
class Batches:
    """The handler of the micro-batches of one query.

    Args:
        handle: called with the frame and number of each micro-batch. After a retriable MirrorlakeError, the next
            micro-batch tries again; any other error ends the query.
        retry_timeout_s: the longest time of retriable errors in a row, without a success in between.
        flow: the flow of the job.
        metrics: the metrics that count retries.
        once: True to end the query after the first micro-batch that succeeds.
    """

    handle: Callable[[DataFrame, int], None]
    retry_timeout_s: float
    flow: str
    metrics: Metrics = field(default_factory=of_process)
    once: bool = False
    _error: MirrorlakeError | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)
    _busy: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._retries = Retries(self.retry_timeout_s, self._stopping.wait, self.flow, self.metrics)

    def run(
        self,
        source: DataFrame,
        name: str,
        checkpoint: str,
        interval_s: float,
        run_for_s: float | None = None,
    ) -> None:
        """Runs the query until it is interrupted, or until its time is up.

        A run whose time is up before a micro-batch has succeeded, or while attempts fail, goes on until one succeeds or
        retries are used up, so that no run ends well that has done nothing.

        Args:
            source: a streaming frame.
            name: the name of the query.
            checkpoint: the checkpoint directory of the query.
            interval_s: the seconds between two micro-batches.
            run_for_s: the seconds after which the query ends; None for no limit.

        Raises:
            MirrorlakeError: the error that ended the query. The query never stops in the middle of a micro-batch.
        """
        deadline = None if run_for_s is None else time.monotonic() + run_for_s
        writer = source.writeStream.foreachBatch(self._batch).queryName(name).option("checkpointLocation", checkpoint)
        query = writer.trigger(processingTime=f"{interval_s} seconds").start()
        try:
            self._wait(query, deadline)
        except KeyboardInterrupt:
            log.info(event("interrupted", flow=self.flow, query=name))
        except Exception as error:  # Spark wraps the error of a micro-batch
            self._error = self._error or why_ended(source.sparkSession, self.flow)
            self._error = self._error or MirrorlakeError(f"query {name} failed: {without_contents(error)}")
        finally:
            self._stopping.set()
            with self._busy:  # lets the current micro-batch finish; a later one returns at once
                pass
            # stop() waits for the query's thread, which may need the lock to enter a micro-batch.
            with contextlib.suppress(Exception) if self._error is not None else contextlib.nullcontext():
                query.stop()  # fails without a session
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Ends the run after the current micro-batch; any thread may call it."""
        self._stopping.set()

    def _wait(self, query: StreamingQuery, deadline: float | None) -> None:
        # A wait in Python, unlike one in the JVM, can be interrupted at once.
        while (
            query.isActive
            and not self._is_done
            and not self._stopping.is_set()
            and (not self._retries.is_well or deadline is None or time.monotonic() < deadline)
        ):
            self._stopping.wait(POLL_S)
        problem = query.exception()
        if problem is not None:
            raise problem

    @property
    def _is_done(self) -> bool:
        return self.once and self._retries.is_well

    def _batch(self, frame: DataFrame, number: int) -> None:
        with self._busy:
            if self._stopping.is_set() or self._is_done:
                return
            try:
                self.handle(frame, number)
                self._retries.succeeded()
            except MirrorlakeError as error:
                if not self._retries.may_go_on(error):
                    self._error = error
                    raise
            except Exception as error:
                self._error = unexpected("handling a micro-batch", error)
                raise
