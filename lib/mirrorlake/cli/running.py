"""Log lines, signals and the Spark session of a command."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from mirrorlake.cli import output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mirrorlake.notebook.stop_signal import StoppableJob


STOPPING = (
    "stopping after the micro-batch under way. A second signal interrupts what the job waits for, a third one ends it "
    "at once"
)


def set_up_log(level: str) -> None:
    """Sends log lines to standard error, from a level on; with --debug all of them.

    A program that runs commands in its own process, and has set up its log, keeps it.
    """
    from mirrorlake.log import ROOT, configure

    if not logging.getLogger(ROOT).handlers:
        configure(level="DEBUG" if output.given("debug") else level)


@contextmanager
def session(name: str) -> Iterator[SparkSession]:
    """Starts Spark for the length of a block; log lines go to standard error."""
    set_up_log("INFO")
    from mirrorlake import resources
    from mirrorlake.local.session import local_session

    spark = local_session(resources.home(), name)
    try:
        yield spark
    finally:
        # The JVM is about to end; a second signal must not leave it behind. One that is gone has nothing to stop.
        with _ignored(), suppress(Exception):
            spark.stop()


@contextmanager
def stopped_by_signals(job: StoppableJob) -> Iterator[None]:
    """Lets Ctrl-C and SIGTERM end a job between two micro-batches; a second signal interrupts what the job waits for.

    On Spark, the micro-batch under way is one more thing to wait for, which the third signal interrupts.
    """

    from mirrorlake.notebook.stop_signal import done_aside

    def stop_and_say() -> None:
        job.stop()  # first, as nobody may read standard error any more
        click.echo(STOPPING, err=True)

    asked = list[int]()

    def handle(number: int, _: object) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        stop()

    with done_aside(stop_and_say) as stop:
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Terminated(KeyboardInterrupt):
    """SIGTERM has come. Whatever cleans up after Ctrl-C does so after this, too."""


@contextmanager
def terminated_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM end a block like Ctrl-C, so that it cleans up.

    Raises:
        Terminated: SIGTERM has come.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(*_: object) -> None:
    raise Terminated


@contextmanager
def _ignored() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
