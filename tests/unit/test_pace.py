"""How much an attempt reads at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.jobs.mirror.copy.fetcher import FETCH_BYTES, LEAST_FETCH_BYTES
from mirrorlake.jobs.mirror.copy.pace import Pace
from mirrorlake.jobs.mirror.copy.slot_copy import SlotCopy
from mirrorlake.protocol.limits import Limits

from tests.unit.test_fetcher import finished
from tests.unit.test_throttle import PROPERTIES

RESPONSE_BYTES, TIME_S = 4 << 20, 0.5


class Reading:
    """An attempt that gets a response in half a second, of which a part is sent to a target."""

    def __init__(self, sent: float, answered: float) -> None:
        self.now, self.bytes, self.is_full, self.throttled_ms = 0.0, 0, False, 0.0
        self.is_under_way, self.sizes, self.limits, self.fetcher = True, list[int](), Limits(), self
        self.throttled_s, self.was_throttled = 0.0, False
        self._sent, self._answered = sent, answered
        self.outlet = SimpleNamespace(bytes=0, bytes_in_flight=0, produce=self.produce, settle=self.settle)

    def fetch(self, most_bytes: Any) -> int:
        self.sizes.append(most_bytes(1))
        return 1

    async def accept(self) -> None:
        self.now += TIME_S
        self.bytes += RESPONSE_BYTES
        self.is_under_way = self.now < 5

    async def accept_late(self, *, waits: bool) -> None:
        pass

    async def produce(self, _: Any) -> None:
        self.outlet.bytes_in_flight += self._sent * RESPONSE_BYTES
        answered = self._answered * self.outlet.bytes_in_flight
        self.outlet.bytes_in_flight -= answered
        self.outlet.bytes += answered

    async def settle(self) -> None:
        pass

    def run(self) -> Reading:
        flow = Flow.from_properties(Properties(PROPERTIES), "a->b")
        copying = SlotCopy(flow, self, self, None, 0, 1, 1, clock=lambda: self.now)  # type: ignore[arg-type]
        finished(copying._copy(self, self.outlet, deadline=5.0))  # type: ignore[arg-type]
        return self


@pytest.mark.parametrize("sent", [0, 0.01, 1])
def test_what_is_passed_over_counts_as_what_is_written(sent: float) -> None:
    reading = Reading(sent, answered=1).run()
    assert reading.limits.bytes_per_s == RESPONSE_BYTES / TIME_S
    assert min(reading.sizes) >= 1 << 20


def test_what_the_target_has_not_acknowledged_does_not_count() -> None:
    reading = Reading(sent=1, answered=0).run()
    assert reading.limits.bytes_per_s == 0
    assert reading.sizes[-1] == LEAST_FETCH_BYTES


def test_an_attempt_begins_with_a_megabyte_and_grows_and_reads_no_more_than_what_is_written_in_time() -> None:
    now, limits = [0.0], Limits()
    pace = Pace(limits, lambda: 0.0, lambda: now[0], deadline=5.0, latest=9.0)
    sizes = []
    for _ in range(6):
        sizes.append(pace.next_bytes(0, 1))
        pace.grow(1)
    assert sizes == [1 << 20, 2 << 20, 4 << 20, 8 << 20, FETCH_BYTES, FETCH_BYTES]
    now[0] = 4.0
    assert pace.next_bytes(4_000_000, 1) == 1_000_000
    assert pace.next_bytes(4_000_000, 4) == 250_000
    assert not pace.is_over(1)
    now[0] = 5.0
    assert pace.is_over(1)
