"""Open transactions of the source: which of many are told of, and since when."""

from __future__ import annotations

from typing import Any

import pytest
from mirrorlake.jobs.mirror.planning import uncommitted
from mirrorlake.jobs.mirror.planning.uncommitted import LOOK_S, MOST_DESCRIBED, Uncommitted
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.open_transactions import OpenTransaction

HANGING: PartitionKey = ("z-payments", 0)


class Source:
    """Partitions of which each has one record behind its last stable offset."""

    net: Any = property(lambda self: self)

    def run(self, read: Any) -> dict[PartitionKey, OpenTransaction]:
        return read()

    def high_watermarks(self, stable: dict[PartitionKey, int]) -> dict[PartitionKey, int]:
        return {key: offset + 1 for key, offset in stable.items()}


class Looks:
    """Looks, each LOOK_S after the one before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.started_ms = 1_000_000.0, -1
        self.found = Uncommitted(lambda: self.now_s, lambda: self.now_s)
        monkeypatch.setattr(uncommitted, "oldest_open", self._described)

    def _described(self, _: Any, keys: list[PartitionKey]) -> dict[PartitionKey, OpenTransaction]:
        return {key: OpenTransaction(5, 7, "x", self.started_ms) for key in keys} if self.started_ms >= 0 else {}

    def look(self, stable: dict[PartitionKey, int]) -> None:
        self.now_s += LOOK_S
        self.found.look(Source(), stable, is_only_look=False)  # type: ignore[arg-type]


def test_the_transaction_that_waits_for_the_longest_is_told_of_however_many_others_are_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch)
    looks.look({HANGING: 5})
    for number in range(10):  # others last for two looks each, and are before it by name
        others = {("events", partition): number // 2 for partition in range(2 * MOST_DESCRIBED)}
        looks.look({HANGING: 5, **others})
        assert HANGING in {(one.topic, one.partition) for one in looks.found.waiting_for}
        assert len(looks.found.waiting_for) <= MOST_DESCRIBED


def test_a_transaction_whose_marker_is_missing_is_as_old_as_its_partition_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch)
    looks.look({HANGING: 5})
    began_ms = int(1000 * looks.now_s)
    for _ in range(5):
        looks.started_ms = int(1000 * looks.now_s)  # its producer lives on, and begins another one each time
        looks.look({HANGING: 5})
        assert [one.since_ms for one in looks.found.waiting_for] == [began_ms]


def test_a_transaction_that_hangs_is_told_of_also_after_a_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    wall_s = [5_000.0]
    looks.found = Uncommitted(lambda: looks.now_s, lambda: wall_s[0])
    looks.look({HANGING: 5})
    assert not looks.found.waiting_for
    wall_s[0] -= 1_800
    looks.look({HANGING: 5})
    assert [(one.topic, one.partition) for one in looks.found.waiting_for] == [HANGING]
