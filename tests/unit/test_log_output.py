"""Log lines in a notebook are readable, and their number is bounded for any duration of the job."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from mirrorlake.log import event
from mirrorlake.notebook.log_output import EVERY_S, FIRST, NotebookOutput

WEEK_S = 7 * 24 * 3600
LOG = logging.getLogger("mirrorlake.tests.log_output")


class PaperPage:
    """A page as papermill keeps it: lines, and one block that is replaced."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.blocks: list[str] = []

    def append(self, line: str) -> None:
        self.lines.append(line)

    def replace(self, text: str) -> None:
        self.blocks.append(text)

    @property
    def block(self) -> list[str]:
        return self.blocks[-1].splitlines()[1:]


class Clock:
    """A clock that only the test advances, with scheduled calls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.due.append((self.now + seconds, call))

    def pass_to(self, at: float) -> None:
        for item in [item for item in self.due if item[0] <= at]:
            self.due.remove(item)
            self.now = item[0]
            item[1]()
        self.now = at


@pytest.fixture
def page() -> PaperPage:
    return PaperPage()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def output(page: PaperPage, clock: Clock) -> NotebookOutput:
    return NotebookOutput(page, clock, clock.later)


def record(name: str, level: int = logging.INFO, **fields: object) -> logging.LogRecord:
    made = LOG.makeRecord(LOG.name, level, __file__, 1, event(name, **fields), (), None)
    made.created = 1795388712.0
    return made


def test_the_first_lines_are_shown_as_they_come_with_the_level_where_it_matters(
    output: NotebookOutput, page: PaperPage
) -> None:
    output.handle(record("generation_opened", flow="a->b", generation=3))
    output.handle(record("topic_held", logging.WARNING, topic="orders"))
    assert page.lines == [
        "23:05:12 generation_opened flow=a->b generation=3",
        "23:05:12 WARNING topic_held topic=orders",
    ]
    assert page.blocks == []


def test_weeks_of_progress_and_trouble_stay_on_one_small_page(
    output: NotebookOutput, page: PaperPage, clock: Clock
) -> None:
    committed, retried = record("micro_batch_committed", lag=0), record("micro_batch_retried", logging.WARNING)
    weeks, step_s, number = 3, 7, 0
    for number, at in enumerate(range(0, weeks * WEEK_S, step_s), 1):
        clock.pass_to(float(at))
        output.handle(committed)
        if number % 5 == 0:
            output.handle(retried)
    assert number > 250_000
    assert len(page.lines) == 2 * FIRST
    assert len(page.blocks) <= weeks * WEEK_S / EVERY_S + 1, "the block is replaced once a minute at most"
    assert max(len(block.splitlines()) for block in page.blocks) == 3
    output.flush()
    assert page.block == [
        f"{number - FIRST:,} more: 23:05:12 micro_batch_committed lag=0",
        f"{number // 5 - FIRST:,} more: 23:05:12 WARNING micro_batch_retried",
    ]


def test_what_comes_before_a_silence_is_counted_a_minute_later(
    output: NotebookOutput, page: PaperPage, clock: Clock
) -> None:
    for lag in range(FIRST + 10):
        output.handle(record("micro_batch_committed", lag=lag))
    assert page.block == [f"1 more: 23:05:12 micro_batch_committed lag={FIRST}"]
    assert len(clock.due) == 1
    clock.pass_to(EVERY_S - 1)
    assert len(page.blocks) == 1
    clock.pass_to(EVERY_S)
    assert page.block == [f"10 more: 23:05:12 micro_batch_committed lag={FIRST + 9}"]
    clock.pass_to(WEEK_S)
    output.flush()
    assert len(page.blocks) == 2, "a block that is up to date is left alone"


def test_a_rare_event_is_shown_at_once_among_thousands_of_others(output: NotebookOutput, page: PaperPage) -> None:
    for _ in range(5_000):
        output.handle(record("micro_batch_committed"))
    output.handle(record("mirror_failed", logging.ERROR, error="the log has lost records"))
    assert page.lines[-1] == '23:05:12 ERROR mirror_failed error="the log has lost records"'


def test_another_cell_begins_anew(output: NotebookOutput, page: PaperPage) -> None:
    for _ in range(2 * FIRST):
        output.handle(record("micro_batch_committed"))
    output.begin()
    output.handle(record("micro_batch_committed"))
    assert len(page.lines) == FIRST + 1
    assert len(page.blocks) == 1


def test_a_page_that_fails_does_not_fail_the_job(
    output: NotebookOutput, page: PaperPage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(line: str) -> None:
        raise OSError("the kernel's socket is closed")

    monkeypatch.setattr(page, "append", fail)
    output.handle(record("micro_batch_committed"))
    assert "the kernel's socket is closed" in capsys.readouterr().err
