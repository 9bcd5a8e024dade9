"""Which Fetch requests the reading half of a copying task has under way, on a source that answers none by itself."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError
from kafka.future import Future
from mirrorlake.config.flow import Flow
from mirrorlake.config.name_filter import NameFilter
from mirrorlake.config.properties import Properties
from mirrorlake.errors import SourceError
from mirrorlake.jobs.mirror.copy import fetcher as fetcher_module
from mirrorlake.jobs.mirror.copy.fetcher import (
    FETCH_BYTES,
    LEAST_FETCH_BYTES,
    MOST_ERRORS,
    PARTITION_FETCH_BYTES,
    Fetcher,
)
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.jobs.mirror.copy.source_reader import Intake
from mirrorlake.jobs.mirror.copy.throttle import Throttle
from mirrorlake.model.gap import GapKind
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.codecs import NONE
from mirrorlake.protocol.batches.record_batch import FetchedLog
from mirrorlake.protocol.batches.records import read_records
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.protocol.limits import Density, Limits
from mirrorlake.protocol.requests.fetch import Fetched

from tests.unit.test_merging import encoded, records_of
from tests.unit.test_small_batches import FIRST, RandomLog
from tests.unit.test_throttle import PROPERTIES

Asked = tuple[int, int, frozenset[int], int]  # node, lane, partitions, size limit


class SilentSource:
    """A source with a leader for each residue of the partitions' numbers."""

    def __init__(self, leaders: int, *, is_far: bool = False) -> None:
        self.leaders, self.is_far, self.moved = leaders, is_far, 0
        self.asked: list[Asked] = []
        self.partition_bytes: list[dict[int, int]] = []  # size limit of each partition, by request
        self.places: list[dict[int, tuple[int, int]]] = []  # offset and epoch of each partition, by request
        self.responses: list[Any] = []

    def leader_epoch(self, *_: Any) -> int:
        return 9

    def is_silent(self, *_: int) -> bool:
        return False

    async def topic_config(self, *_: str) -> str:
        return "compact"

    def explained(self, what: str, error: Exception, **_: Any) -> Exception:
        raise AssertionError(f"an error that says nothing was taken for one: {what}: {error}")

    def fetched(self, answer: list[Fetched]) -> list[Fetched]:
        return answer

    def leader(self, _: str, partition: int) -> int:
        return partition % self.leaders + self.moved

    def fetch(self, node: int, offsets: Mapping[PartitionKey, int], max_bytes: int, lane: int, **given: Any) -> Any:
        self.asked.append((node, lane, frozenset(partition for _, partition in offsets), max_bytes))
        self.partition_bytes.append({key[1]: size for key, size in given["partition_max_bytes"].items()})
        self.places.append({key[1]: (offset, given["epochs"][key]) for key, offset in offsets.items()})
        self.responses.append(Future())
        return self.responses[-1]


@pytest.fixture
def flow() -> Flow:
    return Flow.from_properties(Properties(PROPERTIES), "a->b")


def fetcher(flow: Flow, source: Any, partitions: int, connections: int = 1, **given: Any) -> Fetcher:
    limits, made = given.pop("limits", None) or Limits(), given.pop("stretches", None)
    stretches = {
        ("t", partition): Stretch("t", partition, "", "a.t", 0, 0, 0, 1_000) for partition in range(partitions)
    }
    return Fetcher(flow, source, limits, stretches if made is None else made, connections, **given)


def test_each_connection_has_one_request_under_way_with_partitions_of_its_own(flow: Flow) -> None:
    source = SilentSource(2, is_far=True)
    reading = fetcher(flow, source, partitions=7, connections=2)
    for source.moved in (0, 0, 10):  # other leaders in the end
        reading.fetch(lambda _: FETCH_BYTES)
    assert len({(node, lane) for node, lane, *_ in source.asked}) == len(source.asked)
    assert sorted(partition for *_, partitions, _ in source.asked for partition in partitions) == [*range(7)]
    assert all(partition % 2 == node for node, _, partitions, _ in source.asked for partition in partitions)
    shares = sorted((node, lane, len(partitions)) for node, lane, partitions, _ in source.asked)
    assert shares == [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 1)]
    sizes = {size for sizes in source.partition_bytes for size in sizes.values()}
    assert sizes == {flow.batch_memory_bytes // 8}, "one partition may have a whole response"


@pytest.mark.parametrize("leaders", [1, 4, 30])
def test_what_is_held_is_bounded_however_many_leaders_there_are(flow: Flow, leaders: int) -> None:
    source = SilentSource(leaders)
    fetcher(flow, source, partitions=60).fetch(lambda _: FETCH_BYTES)
    assert len(source.asked) == leaders
    # One response of each connection is written while the next one arrives.
    assert 2 * sum(size for *_, size in source.asked) <= flow.batch_memory_bytes
    assert max(size for sizes in source.partition_bytes for size in sizes.values()) <= PARTITION_FETCH_BYTES


def test_what_is_held_is_bounded_though_leaders_are_asked_one_after_the_other(flow: Flow) -> None:
    source = SilentSource(30)
    reading = fetcher(flow, source, partitions=0, stretches={})
    for partition in range(30):  # as they are found, for example
        stretch = Stretch("t", partition, "", "a.t", 0, 0, 0, 1_000)
        reading.stretches |= {stretch.key: stretch}  # type: ignore[operator]
        reading._order[stretch.key] = None
        reading.fetch(lambda _: FETCH_BYTES)
    assert len(source.asked) == 30
    least = 28 * LEAST_FETCH_BYTES  # the first two have all but this
    assert reading.asked_bytes == sum(size for *_, size in source.asked) <= flow.batch_memory_bytes // 2 + least


def test_topics_that_give_way_are_read_last_and_nothing_is_while_the_rate_is_used_up(flow: Flow) -> None:
    flow = replace(flow, backfill_topics=NameFilter("mirrorlake.backfill.topics", ("old",)), max_bytes_per_s=1_000)
    source, now = SilentSource(1), [0.0]
    stretches = {(topic, 0): Stretch(topic, 0, "", f"a.{topic}", 0, 0, 0, 10) for topic in ("old", "new")}
    throttle = Throttle(flow, Limits(), lambda: now[0])
    reading = fetcher(flow, source, 0, stretches=stretches, throttle=throttle)
    throttle.spend("new", 500)
    reading.fetch(lambda _: FETCH_BYTES)
    assert (source.asked, reading.throttled_s) == ([], pytest.approx(0.5))
    now[0] = 1.0
    assert (reading.was_throttled, reading.throttled_s) == (True, 0.0), "a wait that has ended is no end of the work"
    reading.fetch(lambda _: FETCH_BYTES)
    assert not reading.was_throttled
    assert {*reading._under_way[0, 0].places} == {("new", 0)}
    stretches["new", 0].upstream_next = 10
    reading._under_way.clear()
    reading.fetch(lambda _: FETCH_BYTES)
    assert {*reading._under_way[0, 0].places} == {("old", 0)}


class Wide:
    """Reads 300 partitions of one leader, of each of which a plan has a few batches."""

    def __init__(self, flow: Flow, planned: int = 20) -> None:
        self.source, self.end = SilentSource(1), 10 * planned
        self.stretches = {("t", number): Stretch("t", number, "", "a.t", 0, 0, 0, self.end) for number in range(300)}
        self.asking = fetcher(flow, self.source, 0, stretches=self.stretches)
        self.intake = Intake(flow, self.source, None, self.asking.limits, self.stretches, self.asking)  # type: ignore[arg-type]

    def ask(self) -> dict[int, int]:
        """Asks for more; returns the size limit of each partition."""
        self.asking.fetch(lambda _: FETCH_BYTES)
        return self.source.partition_bytes[-1]

    def answer(self, partitions: Iterable[int], batches: int, stable_end: int) -> None:
        """Answers with as many batches of each partition, whose logs end where they do."""
        given = NOTHING | {"records": even_log(batches), "last_stable_offset": stable_end}
        self.source.responses[-1].success([Fetched("t", partition, **given) for partition in partitions])
        finished(self.intake.accept())


def test_partitions_with_long_logs_are_asked_for_what_is_planned_so_that_a_response_has_many_of_them(
    flow: Flow,
) -> None:
    wide = Wide(flow, planned=200)
    assert {*wide.ask().values()} == {PARTITION_FETCH_BYTES}, "nothing is known"
    wide.answer(range(4), 400, stable_end=1_000_000)
    asked = wide.ask()
    assert asked.keys() == {*range(4, 300)}, "the plan has no more of those that have come"
    (size,) = {*asked.values()}
    assert 220 * BATCH_BYTES < size < 222 * BATCH_BYTES, "their topic tells what they will take"
    assert wide.asking.asked_bytes == FETCH_BYTES < 296 * size
    wide.answer([4], 50, stable_end=1_000_000)
    assert 165 * BATCH_BYTES < wide.ask()[4] < 167 * BATCH_BYTES, "what is left of it"


def test_partitions_are_asked_for_as_much_as_ever_where_little_lies_behind_what_is_planned(flow: Flow) -> None:
    wide = Wide(flow)
    wide.ask()
    wide.answer([0], 19, stable_end=wide.end)
    assert {*wide.ask().values()} == {PARTITION_FETCH_BYTES}
    wide.answer([1], 20, stable_end=1_000_000)
    asked = wide.ask()
    assert asked[0] == PARTITION_FETCH_BYTES, "its last record may be as large as any"
    assert asked[2] < PARTITION_FETCH_BYTES


def test_a_partition_whose_next_batch_is_larger_than_what_it_is_asked_for_is_asked_for_more_at_once(flow: Flow) -> None:
    wide = Wide(flow, planned=200)
    nothing = NOTHING | {"last_stable_offset": 1_000_000}
    whole = nothing | {"records": even_log(200)}

    def answer(full: Iterable[int], empty: Iterable[int]) -> dict[int, int]:
        answers = [Fetched("t", number, **whole) for number in full] + [Fetched("t", n, **nothing) for n in empty]
        wide.source.responses[-1].success(answers)
        finished(wide.intake.accept())
        return wide.ask()

    wide.ask()
    assert answer([0], [])[1] < PARTITION_FETCH_BYTES
    assert answer(range(2, 2 + FETCH_BYTES // len(even_log(200))), [1])[1] < PARTITION_FETCH_BYTES, "it had no room"
    asked = answer([], [1])
    assert (asked[1], asked[299] < PARTITION_FETCH_BYTES) == (PARTITION_FETCH_BYTES, True)


def test_a_large_batch_of_one_partition_leaves_room_for_the_others(flow: Flow) -> None:
    wide = Wide(flow)
    wide.ask()
    wide.answer(range(3), 5, stable_end=1_000_000)
    wide.asking._order = dict.fromkeys(("t", number) for number in range(3))
    small = sum(wide.ask().values())
    assert wide.asking.asked_bytes == small + PARTITION_FETCH_BYTES


def test_a_partition_is_asked_for_its_share_at_least_whatever_its_log_claims(flow: Flow) -> None:
    wide = Wide(flow, planned=1)
    wide.ask()
    wide.answer([0], 400, stable_end=1_000_000)
    share = FETCH_BYTES // 299
    assert {*wide.ask().values()} == {max(share, int(2.1 * BATCH_BYTES))}


# -- what is asked ahead ----------------------------------------------------------------------------

KEY = ("t", 0)


class LogSource(SilentSource):
    """A far source of one partition, which answers its requests in any order."""

    def __init__(self, made: RandomLog, dice: random.Random) -> None:
        super().__init__(1, is_far=True)
        self.log, self.made, self.dice = FetchedLog(made.bytes), made, dice
        self.most = 0
        self._asked: list[tuple[Any, int, int]] = []
        # Where the markers of aborted transactions are
        self._aborted = [
            (producer, first, next(b.base_offset for b in self.log if b.is_control and b.base_offset > first))
            for producer, first in made.aborted
        ]

    def fetch(self, node: int, offsets: Mapping[PartitionKey, int], max_bytes: int, lane: int, **given: Any) -> Any:
        self._asked.append((Future(), offsets[KEY], max_bytes))
        self.most = max(self.most, len(self._asked))
        return self._asked[-1][0]

    async def first_of(self, futures: Iterable[Any]) -> None:
        future, offset, max_bytes = self._asked.pop(self.dice.randrange(len(self._asked)))
        future.success([self._answer(offset, max_bytes)])

    def _answer(self, offset: int, max_bytes: int) -> Fetched:
        parts: list[Any] = []
        end = offset
        for number in range(len(self.log)):
            batch = self.log[number]
            if batch.end_offset > offset and (not parts or sum(map(len, parts)) + len(batch.raw) <= max_bytes):
                parts.append(batch.raw)
                end = batch.end_offset
            elif parts:
                break
        aborted = [(producer, first) for producer, first, last in self._aborted if last >= offset and first < end]
        return Fetched("t", 0, 0, 0, -1, aborted, b"".join(parts))


def finished(coroutine: Any) -> None:
    with pytest.raises(StopIteration):
        coroutine.send(None)


def read(flow: Flow, source: LogSource, connections: int, sizes: Callable[[], int], limits: Limits) -> Any:
    """Reads a log as an attempt does; returns all that became of it."""
    stretch = Stretch(*KEY, "id", "remote", FIRST, FIRST, 0, source.log[len(source.log) - 1].end_offset)
    asking = Fetcher(flow, source, limits, {KEY: stretch}, connections)  # type: ignore[arg-type]
    intake = Intake(flow, source, None, limits, {KEY: stretch}, asking)  # type: ignore[arg-type]
    for _ in range(10_000):
        asking.fetch(lambda _: sizes())
        if not asking.is_under_way:
            break
        finished(intake.accept())
    intake.pack(stretch)
    records = [
        (offset, record.timestamp, record.rest)
        for _, batch in stretch.waiting
        for offset, record in zip(
            (offset for start, end in batch.ranges for offset in range(start, end)), read_records(batch), strict=True
        )
    ]
    assert stretch.is_done
    gaps: list[tuple[int, int, GapKind]] = []
    for start, end, kind in stretch.gaps:  # if a response ends with a corrupt batch, the end of the batch is not known
        if gaps and gaps[-1][2] is GapKind.CORRUPT and (start, kind) == (gaps[-1][1], GapKind.COMPACTED):
            start, _, kind = gaps.pop()
        gaps.append((start, end, kind))
    return records, gaps, stretch.skipped, stretch.leader_epoch, stretch.epoch_from, intake.bytes


@pytest.mark.parametrize("seed", range(30))
def test_any_log_is_read_over_several_connections_as_it_is_over_one(
    flow: Flow, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "LEAST_AHEAD_BYTES", 1)
    monkeypatch.setattr(fetcher_module, "LEAST_FETCH_BYTES", 100)
    monkeypatch.setattr(fetcher_module, "LEAST_AHEAD_BATCHES", 1)
    flow = replace(flow, passes_over_losses=True)
    dice = random.Random(seed)
    made = RandomLog(dice)
    expected = read(flow, LogSource(made, dice), 1, lambda: 1 << 20, Limits())
    least = dice.choice((200, 1_000, 4_000))
    limits = Limits(densities={KEY: Density(dice.choice((1e-6, 0.001, 0.01, 0.1, 1.0)), 1.0)})
    source = LogSource(made, dice)
    assert read(flow, source, dice.choice((2, 3, 8)), lambda: dice.randint(least, 2 * least), limits) == expected
    assert source.most > 1 or len(made.bytes) < 20 * least, "several requests were under way"


@cache
def even_log(batches: int, first: int = 0, epoch: int = 3) -> bytes:
    """Returns a log whose batches have ten records each, and one size."""
    records = [records_of(random.Random(1), first + 10 * number, 10, is_plain=True) for number in range(batches)]
    return b"".join(encoded(one, NONE, epoch=epoch) for one in records)


BATCH_BYTES = len(even_log(1))
DENSITY = Density(10 / BATCH_BYTES, 1 / BATCH_BYTES)


class Far:
    """Reads a partition of a far source over some connections; a response has 100 batches."""

    def __init__(self, flow: Flow, connections: int = 3, **given: Any) -> None:
        self.source = SilentSource(1, is_far=True)
        self.stretch = Stretch(*KEY, "", "a.t", 0, 0, 0, given.pop("end", 100_000))
        limits = Limits(densities=given.pop("densities", {KEY: DENSITY}))
        self.size = given.pop("size", 1 << 20)
        self.asking = fetcher(flow, self.source, 0, connections, stretches={KEY: self.stretch}, limits=limits, **given)
        self.intake = Intake(flow, self.source, None, limits, {KEY: self.stretch}, self.asking)  # type: ignore[arg-type]
        self.ask()

    def ask(self) -> list[int]:
        """Asks for more; returns all offsets so far that were asked for."""
        self.asking.fetch(lambda _: self.size)
        return [places[0][0] for places in self.source.places]

    def answer(self, number: int, **given: Any) -> None:
        """Answers a request, and reads what can be read."""
        self.source.responses[number].success([Fetched("t", 0, **{**NOTHING, **given})])
        if self.asking.is_under_way and self.asking._ready():
            self.accept()

    def accept(self) -> None:
        """Reads what has come."""
        finished(self.intake.accept())


NOTHING = {"error_code": 0, "log_start_offset": 0, "last_stable_offset": -1, "aborted": [], "records": b""}


def test_a_partition_of_a_far_source_is_read_over_all_connections_with_little_overlap(flow: Flow) -> None:
    far = Far(flow)
    step = round(0.98 * 10 / BATCH_BYTES * (1 << 20))
    assert far.ask() == [0, step, 2 * step]
    assert [places[0][1] for places in far.source.places] == [-1, -1, -1]
    assert {lane for _, lane, *_ in far.source.asked} == {0, 1, 2}
    assert far.asking.asked_bytes == 3 << 20
    least = step // 10 + 2  # batches
    far.answer(1, records=even_log(least, first=step // 10 * 10))
    assert far.stretch.upstream_next == 0, "what is before it has not come"
    far.answer(0, records=even_log(least))
    assert far.stretch.upstream_next == 10 * least
    far.accept()
    assert far.stretch.upstream_next == step // 10 * 10 + 10 * least
    assert far.stretch.leader_epoch == 3
    assert len(far.ask()) == 5


def test_what_is_missing_before_what_has_come_is_asked_for_and_no_more(flow: Flow) -> None:
    far = Far(flow)
    _, second, third = far.ask()
    for number, at in ((1, second), (2, third)):
        far.answer(number, records=even_log(5, first=at // 10 * 10))
    few = second // 10 - 100
    far.answer(0, records=even_log(few))
    assert far.ask()[3:] == [10 * few], "all other connections have what is ahead"
    *_, (_, _, _, size) = far.source.asked
    assert 101 * BATCH_BYTES < size < 150 * BATCH_BYTES + (64 << 10)
    far.answer(3, records=even_log(101, first=10 * few))
    far.accept()
    assert far.stretch.upstream_next == second // 10 * 10 + 50


def test_what_came_from_far_ahead_is_given_up_where_records_have_become_larger(flow: Flow) -> None:
    far = Far(flow)
    _, second, third = far.ask()
    for number, at in ((1, second), (2, third)):
        far.answer(number, records=even_log(5, first=at // 10 * 10))
    far.answer(0, records=even_log(9))
    assert far.ask()[3:] == [90, 90 + 78, 90 + 78 + 78], "all connections ask for what comes next"


def test_what_came_from_furthest_ahead_is_given_up_where_no_connection_is_left_for_what_is_missing(flow: Flow) -> None:
    far = Far(flow)
    far.answer(1, records=even_log(5, first=far.ask()[1] // 10 * 10))
    far.answer(2, records=even_log(5, first=far.ask()[2] // 10 * 10))
    first = far.asking._under_way.pop((0, 0))
    far.asking.postpone(first)  # its connection is silent
    assert far.ask()[3:] == [0]
    assert far.source.asked[-1][1] == 2, "the connection of what was furthest ahead"


def test_nothing_waits_for_what_is_missing_when_no_more_is_asked_for(flow: Flow) -> None:
    far = Far(flow)
    _, second, third = far.ask()
    far.answer(1, records=even_log(5, first=second // 10 * 10))
    far.answer(0, records=even_log(5))
    assert far.asking.is_under_way, "the third one is to come"
    far.answer(2, records=even_log(5, first=third // 10 * 10))
    assert not far.asking.is_under_way
    far.accept()


@pytest.mark.parametrize(
    "given",
    [
        {"error_code": 6},
        {"diverges_at": 3, "diverging_epoch": 1},
        {"records": b""},
        {"records": even_log(5)[:-1]},
        {"records": b"\xff" * 300},
    ],
    ids=["error", "diverging", "empty", "cut off", "no log"],
)
def test_an_answer_from_ahead_that_is_no_log_says_nothing_and_is_asked_for_again(
    flow: Flow, given: dict[str, Any]
) -> None:
    far = Far(flow, connections=2)
    second = far.ask()[1]
    far.answer(1, **{"records": even_log(50, first=second // 10 * 10), **given})
    far.answer(0, records=even_log(second // 10 + 1))
    position = far.stretch.upstream_next
    far.accept()
    assert far.stretch.upstream_next == position > second
    assert not far.intake.problem
    assert position in far.ask()


def test_a_late_answer_from_ahead_is_not_read_before_what_comes_first(flow: Flow) -> None:
    far = Far(flow, connections=2)
    second = far.ask()[1]
    far.asking.postpone(far.asking._under_way.pop((0, 1)))
    far.answer(0, records=even_log(5))
    far.answer(1, records=even_log(50, first=second // 10 * 10))
    finished(far.intake.accept_late(waits=False))
    assert (far.stretch.upstream_next, far.stretch.gaps) == (50, [])


@pytest.mark.parametrize("batches", [1, 2, 5])
def test_a_wrong_bit_in_the_first_offset_of_a_batch_that_was_read_before_makes_no_gap(flow: Flow, batches: int) -> None:
    """CRCs don't cover it, and in an answer from ahead, any batch before the position could look like the next one."""
    for number in range(batches + 2):
        for bit in range(40):
            far = Far(flow, connections=2, end=1 << 40)
            second = far.ask()[1] // 10 * 10
            log = bytearray(even_log(batches + 9, first=second))
            at = number * BATCH_BYTES
            wrong = int.from_bytes(log[at : at + 8], "big") ^ 1 << bit
            log[at : at + 8] = wrong.to_bytes(8, "big")
            far.answer(1, records=bytes(log))
            far.answer(0, records=even_log(second // 10 + batches))
            position = far.stretch.upstream_next
            with contextlib.suppress(SourceError):
                far.accept()
            assert not far.stretch.gaps
            taken = [start for _, batch in far.stretch.waiting for start, _ in batch.ranges]
            assert taken == sorted({*taken})
            assert far.stretch.upstream_next in (position, second + 10 * (batches + 9), wrong)
            assert far.stretch.upstream_next != wrong or position == wrong


def test_the_pace_grows_only_where_something_was_asked_for(flow: Flow) -> None:
    far = Far(flow)
    assert far.asking.fetch(lambda _: 1 << 20) == 0, "all connections are in use"
    far = Far(flow, connections=2, size=1 << 19)
    assert far.asking.fetch(lambda _: 1 << 19) == 0, "too little to ask ahead"
    far.answer(0, records=even_log(9))
    assert far.asking.fetch(lambda _: 1 << 20) == 2


def test_connections_that_would_have_too_little_are_not_used_and_take_nothing_from_the_others(flow: Flow) -> None:
    def sizes(leaders: int, most: int = 1 << 40) -> list[int]:
        stretches = {("t", number): Stretch("t", number, "", "a.t", 0, 0, 0, 1 << 40) for number in range(leaders)}
        limits = Limits(densities=dict.fromkeys(stretches, DENSITY))
        source = SilentSource(leaders, is_far=True)
        fetcher(flow, source, 0, 8, stretches=stretches, limits=limits).fetch(lambda responses: most // responses)
        return [size for *_, size in source.asked]

    memory_bytes = flow.batch_memory_bytes // 2
    assert sizes(1) == [memory_bytes // 8] * 8
    assert sizes(9) == [memory_bytes // 24] * 24, "each has a megabyte"
    assert sizes(30) == [memory_bytes // 30] * 30
    assert sizes(1, most=2 << 20) == [1 << 20] * 2
    assert sizes(1, most=1 << 20) == [1 << 20]


def test_what_a_former_leader_has_answered_from_ahead_holds_no_connection_and_no_memory(flow: Flow) -> None:
    far = Far(flow, connections=2)
    second = far.ask()[1]
    far.answer(0, records=even_log(second // 10 - 20))
    far.answer(1, records=even_log(50, first=second // 10 * 10 + 100))
    far.source.moved = 5
    far.asking.fetch(lambda _: far.size)
    assert [(node, lane) for node, lane, *_ in far.source.asked[2:]] == [(5, 0), (5, 1)]
    assert far.asking.asked_bytes == sum(size for *_, size in far.source.asked[2:])


def test_metadata_is_refreshed_once_for_all_connections_that_are_lost(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, refreshed = Far(flow), list[Exception]()

    async def refresh(error: Exception) -> None:
        refreshed.append(error)

    monkeypatch.setattr(far.intake, "_refresh", refresh)
    for response in far.source.responses:
        response.failure(KafkaConnectionError())
    far.accept()
    assert len(refreshed) == 1
    assert not far.asking.is_under_way


@pytest.mark.parametrize("change", ["epoch", "node", "never answered"])
def test_what_another_leader_has_answered_from_ahead_is_not_believed(flow: Flow, change: str) -> None:
    far = Far(flow, connections=2)
    second = far.ask()[1]
    asked = far.asking._under_way[0, 1]
    if change == "epoch":
        far.asking._under_way[0, 1] = replace(asked, epochs={KEY: 8})
    if change == "node":
        far.asking._under_way[0, 1] = replace(asked, line=(5, 1))
    far.answer(0, records=even_log(second // 10 + 1))
    if change == "never answered":
        far.asking._leaders.clear()
    far.answer(1, records=even_log(50, first=second // 10 * 10))
    assert far.stretch.upstream_next == second // 10 * 10 + 10
    assert not far.stretch.gaps


@pytest.mark.parametrize(
    "given",
    [
        {"connections": 1},
        {"densities": {}},
        {"densities": {KEY: DENSITY._replace(batches_per_byte=7 / (1 << 20))}},
        {"size": 512 << 10},
        {"end": 50},
        {"throttled": True},
    ],
    ids=["one connection", "not known", "large batches", "slow", "all asked for", "rate set"],
)
def test_nothing_is_asked_ahead_where_that_gains_nothing(flow: Flow, given: dict[str, Any]) -> None:
    if given.pop("throttled", False):
        flow = replace(flow, max_bytes_per_s=1 << 30)
        given["throttle"] = Throttle(flow, Limits(), lambda: 0.0)
    assert Far(flow, **given).ask() == [0]


def test_how_much_a_response_has_is_learnt_of_large_ones_that_do_not_reach_the_end(flow: Flow) -> None:
    far = Far(flow, densities={})
    far.answer(0, records=even_log(300))
    size, up_to_the_last = 1 << 20, 2_990
    assert far.asking.limits.densities == {KEY: Density(up_to_the_last / size, 300 / size)}
    step = round(0.98 * up_to_the_last)
    assert far.ask() == [0, 3_000, 3_000 + step, 3_000 + 2 * step]
    far.size = 8 << 10
    far.answer(1, records=even_log(1, first=3_000))
    assert far.asking.limits.densities[KEY].batches_per_byte == 0, "one batch is no measure"

    for given in ({"end": 3_000}, {"size": 100_000}):
        far = Far(flow, densities={}, **given)
        far.answer(0, records=even_log(300))
        assert not far.asking.limits.densities


def test_a_hole_behind_what_another_response_had_is_no_damage(flow: Flow) -> None:
    far = Far(flow, connections=2)
    position = far.ask()[1] // 10 * 10 + 20
    far.answer(1, records=even_log(2, first=position - 20) + even_log(5, first=position + 10))
    far.answer(0, records=even_log(position // 10))
    far.accept()
    assert far.stretch.gaps == [(position, position + 10, GapKind.COMPACTED)]
    assert far.stretch.upstream_next == position + 60
    assert not far.asking.limits.damaged


def test_a_damaged_batch_before_the_position_is_none_that_was_read(flow: Flow) -> None:
    far = Far(flow, connections=2)
    position = far.ask()[1] // 10 * 10 + 20
    log = bytearray(even_log(7, first=position - 20))
    log[BATCH_BYTES - 1] ^= 1
    far.answer(1, records=bytes(log))
    far.answer(0, records=even_log(position // 10))
    far.accept()
    assert (far.stretch.upstream_next, far.asking.limits.damaged) == (position, {})


def test_over_a_line_that_carries_next_to_nothing_each_leader_has_one_request_at_once(flow: Flow) -> None:
    for size, requests in ((LEAST_FETCH_BYTES, 3), (1 << 20, 12)):
        source = SilentSource(3, is_far=True)
        fetcher(flow, source, 12, connections=8).fetch(lambda _, size=size: size)
        assert len(source.asked) == requests


# -- what a response has ----------------------------------------------------------------------------


def test_a_partition_that_cannot_be_read_holds_up_no_other_and_is_asked_for_some_times_only(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, errors = SilentSource(1), list[Exception]()
    stretches = {("t", number): Stretch("t", number, "", "a.t", 0, 0, 0, 100_000) for number in range(2)}
    asking = fetcher(flow, source, 0, stretches=stretches)
    intake = Intake(flow, source, None, asking.limits, stretches, asking)  # type: ignore[arg-type]

    async def refresh(error: Exception) -> None:
        errors.append(error)

    monkeypatch.setattr(intake, "_refresh", refresh)
    for round_number in range(MOST_ERRORS + 5):
        asking.fetch(lambda _: 1 << 20)
        broken = Fetched("t", 0, **{**NOTHING, "error_code": ErrorCode.UNKNOWN})
        whole = Fetched("t", 1, **{**NOTHING, "records": even_log(5, first=50 * round_number)})
        source.responses[-1].success([broken, whole])
        finished(intake.accept())
    assert stretches["t", 1].upstream_next == 50 * (MOST_ERRORS + 5)
    assert len(errors) == MOST_ERRORS
    assert source.asked[-1][2] == {1}


@pytest.mark.parametrize(("end", "is_kept"), [(10, False), (20, True)], ids=["little", "most"])
def test_a_response_of_which_little_is_to_be_written_is_let_go(flow: Flow, end: int, is_kept: bool) -> None:
    source = SilentSource(1)
    stretches = {KEY: Stretch(*KEY, "", "a.t", 0, 0, 0, end)}
    asking = fetcher(flow, source, 0, stretches=stretches)
    intake = Intake(flow, source, None, asking.limits, stretches, asking)  # type: ignore[arg-type]
    asking.fetch(lambda _: 1 << 20)
    response = memoryview(even_log(3))  # too few to be merged
    source.responses[0].success([Fetched(*KEY, **{**NOTHING, "records": response})])
    finished(intake.accept())
    waiting = [batch.raw for _, batch in stretches[KEY].waiting]
    assert b"".join(waiting) == response[: sum(map(len, waiting))]
    assert {raw.obj is response.obj for raw in waiting} == {is_kept}
