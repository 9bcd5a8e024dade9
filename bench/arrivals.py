"""The rate at which records arrive: polls the part of a remote topic that a read_committed consumer sees.

The rate is that of a steady state. The window begins once a share of the records has arrived, or after some seconds.
Start-up and a cold JVM are therefore not measured. The window ends with the last record, or after some seconds. A
contestant that commits seldom shows its records in bursts. A window therefore begins and ends at the end of a burst, so
that it holds as many pauses as bursts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from mirrorlake.protocol.cluster import LATEST_TIMESTAMP, Cluster
from mirrorlake.protocol.log_reader import read_stretch

LOOK_S = 0.04
# On a slow machine, MirrorMaker 2 needs 40 s to reach its full rate. Who needs a minute in all is cut off there.
WARM_SHARE, WARM_S = 0.5, 40.0
WINDOW_S = 20.0
PAUSE_S, BURST_S = 0.15, 0.5  # a burst ends with a pause, or after BURST_S without one
QUIET_S = 2.0
FIRST_S, STALL_S = 120.0, 60.0
TIMEOUT_MS = 30_000
SAMPLE_PARTITIONS, SAMPLE_OFFSETS, SAMPLE_BYTES = 8, 20_000, 4 << 20


class StalledError(Exception):
    """Raised when no more records arrive although some are missing."""


@dataclass(frozen=True)
class Mark:
    """A moment of an arrival: the sum of the end offsets of all partitions, and the usage of resources until then."""

    at: float
    offsets: int
    usage: tuple[float, ...]


@dataclass(frozen=True)
class Window:
    """The time between two marks.

    `first` is the first arrival at all. `share` is the share of offsets that are records, not transaction markers.
    """

    first: Mark
    begin: Mark
    end: Mark
    share: float

    @property
    def seconds(self) -> float:
        """Returns the length of the window."""
        return self.end.at - self.begin.at

    @property
    def records(self) -> float:
        """Returns the number of records that arrived in the window."""
        return (self.end.offsets - self.begin.offsets) * self.share

    @property
    def usage(self) -> tuple[float, ...]:
        """Returns the usage of resources in the window."""
        return tuple(after - before for before, after in zip(self.begin.usage, self.end.usage, strict=True))


class Arrivals:
    """Watches one remote topic, from before its creation.

    Args:
        target: the cluster of the topic.
        topic: the name of the topic.
        partitions: the number of its partitions.
        usage: returns the usage of resources so far.
        alive: returns False once no process is left that could write.
    """

    def __init__(
        self,
        target: Cluster,
        topic: str,
        partitions: int,
        usage: Callable[[], tuple[float, ...]],
        alive: Callable[[], bool],
    ) -> None:
        self._target, self._topic, self._partitions = target, topic, partitions
        self._usage, self._alive = usage, alive
        self._last = Mark(time.monotonic(), 0, usage())

    def window(self, records: int) -> Window:
        """Waits for that many records, or for as many as arrive within the time of a window.

        Args:
            records: number of records.

        Raises:
            StalledError: no record arrives.
        """
        self._await_topic()
        first = self._await(lambda: self._last.offsets > 0, FIRST_S)
        self._await(
            lambda: self._last.offsets >= WARM_SHARE * records or time.monotonic() >= first.at + WARM_S, STALL_S
        )
        begin = self._end_of_burst()
        self._await(
            lambda: (self._last.offsets >= records and self._is_quiet()) or self._last.at >= begin.at + WINDOW_S,
            STALL_S,
        )
        end = self._last if self._last.offsets >= records else self._end_of_burst()
        if end.at <= begin.at:
            raise StalledError(
                f"topic {self._topic}: all {end.offsets:,} offsets came at once; a steady state takes more of them"
            )
        return Window(first, begin, end, self._share_of_records())

    def _await_topic(self) -> None:
        deadline = time.monotonic() + FIRST_S
        while True:
            found = self._target.refresh([self._topic], TIMEOUT_MS).get(self._topic)
            if found and found.partitions >= self._partitions and -1 not in found.leaders.values():
                return
            if time.monotonic() > deadline or not self._alive():
                raise StalledError(f"topic {self._topic} was not created")
            time.sleep(0.1)

    def _await(self, is_done: Callable[[], bool], stall_s: float) -> Mark:
        began = time.monotonic()
        while not is_done():
            if time.monotonic() > max(began, self._last.at) + stall_s or not self._alive():
                raise StalledError(
                    f"topic {self._topic}: nothing has arrived for {time.monotonic() - self._last.at:.0f} s behind "
                    f"{self._last.offsets:,} offsets"
                )
            time.sleep(LOOK_S)
            self._look()
        return self._last

    def _look(self) -> bool:
        """Returns True if new offsets have arrived."""
        offsets = sum(
            self._target.offsets(
                [(self._topic, partition) for partition in range(self._partitions)], LATEST_TIMESTAMP, TIMEOUT_MS
            ).values()
        )
        is_news = offsets > self._last.offsets
        if is_news:
            self._last = Mark(time.monotonic(), offsets, self._usage())
        return is_news

    def _end_of_burst(self) -> Mark:
        deadline = time.monotonic() + BURST_S
        while time.monotonic() < deadline:
            time.sleep(LOOK_S)
            if not self._look() and time.monotonic() > self._last.at + PAUSE_S:
                break
        return self._last

    def _is_quiet(self) -> bool:
        return time.monotonic() > self._last.at + QUIET_S

    def _share_of_records(self) -> float:
        """Counts records in the middle of some partitions; frequent commits fill many offsets with markers."""
        records = offsets = 0
        for key, end in list(
            self._target.offsets(
                [(self._topic, partition) for partition in range(self._partitions)], LATEST_TIMESTAMP, TIMEOUT_MS
            ).items()
        )[:SAMPLE_PARTITIONS]:
            start = max(0, end // 2 - SAMPLE_OFFSETS // 2)
            stop = min(end, start + SAMPLE_OFFSETS)
            found = self._target.net.run(lambda key=key, start=start, stop=stop: self._count(key, start, stop))
            records, offsets = records + found[0], offsets + found[1]
        return records / offsets if offsets else 1.0

    async def _count(self, key: tuple[str, int], start: int, stop: int) -> tuple[int, int]:
        records, first, end = 0, None, start
        async for batch, is_aborted in read_stretch(self._target, key, start, stop, SAMPLE_BYTES):
            first = batch.base_offset if first is None else first
            records += 0 if batch.is_control or is_aborted else batch.records
            end = batch.end_offset
        return records, end - (start if first is None else first)
