"""The starts of logs that the checkpoint job keeps from one look to the next."""

from __future__ import annotations

from typing import Any

from mirrorlake.translation.log_starts import LOOK_S, LogStarts

KEY, OTHER = ("t", 0), ("t", 1)


class Leaders:
    """Answers about the partitions whose leader is there."""

    def __init__(self) -> None:
        self.starts = {KEY: 101, OTHER: 7}
        self.away: set[tuple[str, int]] = set()

    def existing(self, keys: Any, *_: Any, **__: Any) -> list[tuple[str, int]]:
        return list(keys)

    def log_starts(self, keys: Any) -> tuple[dict[tuple[str, int], int], set[tuple[str, int]]]:
        return {key: self.starts[key] for key in keys if key not in self.away}, self.away & {*keys}


def test_a_start_that_is_not_told_now_is_the_last_one_and_one_that_was_never_told_is_not_guessed() -> None:
    leaders, now = Leaders(), [0.0]
    starts = LogStarts(leaders, 1_000, clock=lambda: now[0])  # type: ignore[arg-type]
    leaders.away = {OTHER}
    assert (starts.of([KEY, OTHER]), starts.unread) == ({KEY: 101}, {OTHER})
    now[0], leaders.away = LOOK_S, {KEY}
    assert (starts.of([KEY, OTHER]), starts.unread) == ({KEY: 101, OTHER: 7}, set())
    now[0], leaders.away, leaders.starts[KEY] = 2 * LOOK_S, set(), 120
    assert starts.of([KEY]) == {KEY: 120, OTHER: 7}


def test_the_start_of_a_log_before_a_topic_was_created_anew_is_forgotten_at_once() -> None:
    leaders = Leaders()
    starts = LogStarts(leaders, 1_000, clock=lambda: 0.0)  # type: ignore[arg-type]
    assert starts.of([KEY]) == {KEY: 101}
    starts.forget()
    leaders.starts[KEY] = 0
    assert starts.of([KEY]) == {KEY: 0}
    starts.forget()
    leaders.away = {KEY}
    assert (starts.of([KEY]), starts.unread) == ({}, {KEY}), "that of the log before is no answer"
