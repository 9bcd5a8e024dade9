"""The Fetch requests of a copying task: who is asked for which partitions, over which connection, and for how much.

Each connection to a leader has one request under way. There are several where the cluster is far. If a leader has fewer
partitions than connections, a partition is read over several of them. One request asks for what is to be read next. The
others ask for what is *ahead* of it: each begins where the one before will probably end. The reader passes over what
two responses have, and what no response has is asked for as soon as that shows.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from mirrorlake.config.flow import Flow
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.jobs.mirror.copy.throttle import Throttle
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.record_batch import FetchedLog
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.limits import Density, Limits, LogSize
from mirrorlake.protocol.requests.fetch import Fetched
from mirrorlake.protocol.requests.grouping import by

FETCH_BYTES, LEAST_FETCH_BYTES = 16 << 20, 64 << 10
PARTITION_FETCH_BYTES = 4 << 20
LEAST_AHEAD_BYTES = 1 << 20  # smaller responses are those of clusters that are slow, or just begin
LEAST_AHEAD_BATCHES = 8  # in a response: leaders return whole batches, so that one or two of them come twice
OVERLAP = 0.02  # besides a batch: to read a few of them twice costs less than to wait for those that no response has
SPARE = 0.1  # of what is left of a plan, for records that are larger than those before
FETCH_WAIT_MS = 500
MOST_ERRORS = 10  # of a partition in one attempt, a tenth of a second apart: longer, the others don't wait for it

LeaderLane = tuple[int, int]  # node id of a leader, and number of a connection to it


class LogPlace(NamedTuple):
    """A place in a log: an offset, and the leader epoch of the batch before it, -1 if that is unknown."""

    offset: int
    leader_epoch: int


def place_of(stretch: Stretch) -> LogPlace:
    """Returns the place from which a stretch is read next."""
    return LogPlace(stretch.upstream_next, stretch.leader_epoch)


@dataclass(frozen=True)
class PendingFetch:
    """A Fetch request whose response has not been read.

    Attributes:
        line: connection that it was sent over.
        places: where it asks for each partition.
        epochs: epoch of the leader of each partition, if there are several connections.
        response: future of the response.
        max_bytes: size limit of the response.
        partition_bytes: size limit of each partition.
        is_ahead: True if it asks for what is ahead, of one partition.
    """

    line: LeaderLane
    places: Mapping[PartitionKey, LogPlace]
    epochs: Mapping[PartitionKey, int]
    response: Any
    max_bytes: int
    partition_bytes: Mapping[PartitionKey, int]
    is_ahead: bool = False

    def offset(self, key: PartitionKey) -> int:
        """Returns the offset from which a partition is asked for."""
        return self.places[key].offset

    def leader(self, key: PartitionKey) -> tuple[int, int]:
        """Returns the node that is asked for a partition, and its epoch as the leader."""
        return self.line[0], self.epochs.get(key, -1)


@dataclass
class Fetcher:
    """The requests of one attempt.

    Attributes:
        flow: flow to mirror.
        source: cluster to read.
        limits: keeps what responses have.
        stretches: stretches by topic and partition.
        connections: number of connections to each leader.
        throttle: the rate that the operator allows; None for no limit.
        was_throttled: whether the last requests left something out that the rate did not allow yet.
    """

    flow: Flow
    source: Cluster
    limits: Limits
    stretches: Mapping[PartitionKey, Stretch]
    connections: int = 1
    throttle: Throttle | None = None
    was_throttled: bool = False
    _under_way: dict[LeaderLane, PendingFetch] = field(default_factory=dict)
    _late: dict[LeaderLane, PendingFetch] = field(default_factory=dict)  # of leaders that are silent
    _leaders: dict[PartitionKey, tuple[int, int]] = field(default_factory=dict)  # as of `PendingFetch.leader`
    _errors: Counter[PartitionKey] = field(default_factory=Counter)
    _topic_sizes: dict[str, LogSize | None] = field(default_factory=dict)  # of partitions not seen yet, by topic

    def __post_init__(self) -> None:
        # Brokers fill a response in the order of the request. Partitions that had their turn go to the end.
        self._order = dict.fromkeys(random.sample(list(self.stretches), k=len(self.stretches)))
        self._is_fetched = cache(lambda topic: self.flow.transform_of(topic) is None)  # else Spark reads it
        self._is_backfill = cache(self.flow.is_backfill)

    @property
    def is_under_way(self) -> bool:
        """True if a response is to be awaited or read, other than those of silent leaders."""
        return any(not fetch.response.is_done or self._is_next(fetch) for fetch in self._under_way.values())

    @property
    def asked_bytes(self) -> int:
        """Size limit of all responses that are not read, with those of silent leaders."""
        return sum(fetch.max_bytes for fetch in (*self._under_way.values(), *self._late.values()))

    # -- requests -----------------------------------------------------------------------------------

    def fetch(self, most_bytes: Callable[[int], int]) -> int:
        """Sends a Fetch request on each free connection to a leader, for the offsets that are left.

        Partitions without a leader are tried again the next time. Those of a leader that still owes a response are
        left out, so that they don't hold up the others. Spark reads the topics that have a transform.

        Args:
            most_bytes: returns the size limit of each of so many responses, as the pace of the attempt allows.

        Returns:
            The number of responses that are under way if something was asked for, else 0.
        """
        left = list(self._due())
        due = [stretch for stretch in left if not self.wait_s(stretch)]
        self.was_throttled = len(due) < len(left)
        # Each response has a batch, whatever was asked for. On a slow line, many of them would all be late.
        connections = self.connections if most_bytes(1) > LEAST_FETCH_BYTES else 1
        lines = self._lines(due, connections) if connections > 1 else {}
        pending = self._pending()
        self._give_up(pending, lines)
        next_ones: dict[LeaderLane, dict[PartitionKey, LogPlace]] = {}
        for stretch in due:
            key = stretch.key
            if key in pending and any(fetch.offset(key) <= stretch.upstream_next for fetch in pending[key]):
                continue
            own = lines.get(key) or ((self.source.leader(*key), 0),)
            line = next((line for line in own if self._is_free(line)), None) or self._freed(key, pending.get(key, ()))
            if line is not None:
                next_ones.setdefault(line, {})[key] = place_of(stretch)
        going = [
            (line, stretch)
            for stretch in (due if lines else ())
            if self._may_go_ahead(stretch, lines[stretch.key])
            for line in lines[stretch.key]
            if line not in next_ones and self._is_free(line)
        ]
        before = len(self._under_way)
        ahead, max_bytes = self._sizes(len(next_ones), going, most_bytes)
        for line, places in next_ones.items():
            self._send(line, places, max_bytes)
        for line, stretch in ahead:
            self._send_ahead(line, stretch, max_bytes)
        return len(self._under_way) if len(self._under_way) > before else 0

    def _sizes(
        self, wanted: int, going: list[tuple[LeaderLane, Stretch]], most_bytes: Callable[[int], int]
    ) -> tuple[list[tuple[LeaderLane, Stretch]], int]:
        """Returns the connections over which to ask ahead, as far as the responses are large enough, and their size.

        Args:
            wanted: number of requests for what is next.
            going: connections that are free besides, and the stretches that they are for.
            most_bytes: as of `fetch`.
        """
        # Of each connection, one response is written to the target while the next one comes.
        memory_bytes = self.flow.batch_memory_bytes // 2
        left_bytes, most = memory_bytes - self.asked_bytes, memory_bytes // LEAST_AHEAD_BYTES - len(self._under_way)
        ahead = sorted(going, key=lambda one: one[0][1])[: max(0, min(most, left_bytes // LEAST_AHEAD_BYTES) - wanted)]
        while wanted or ahead:
            responses = len(self._under_way) + wanted + len(ahead)
            share = min(memory_bytes // responses, left_bytes // (wanted + len(ahead)))
            max_bytes = max(LEAST_FETCH_BYTES, min(most_bytes(responses), share))
            sparse = [one for one in ahead if not self._is_dense(one[1].key, max_bytes)]
            if not sparse:
                return ahead, max_bytes
            ahead.remove(sparse[-1])  # the others get larger responses
        return [], 0

    def _due(self) -> list[Stretch]:
        """Returns the stretches that are read next, in the order of requests; topics that give way come last."""
        left = [
            stretch
            for stretch in (self.stretches[key] for key in self._order)
            if not stretch.is_done and self._is_fetched(stretch.topic) and self._errors[stretch.key] < MOST_ERRORS
        ]
        first = [stretch for stretch in left if not self._is_backfill(stretch.topic)]
        return first or left

    def _lines(self, due: Iterable[Stretch], connections: int) -> dict[PartitionKey, list[LeaderLane]]:
        """Returns the connections of each partition to its leader: some of its own, or one that it shares."""
        wanted = {stretch.key for stretch in due}
        left = [key for key in self.stretches if key in wanted]  # in an order that stays
        found: dict[PartitionKey, list[LeaderLane]] = {}
        for node, keys in by(lambda key: self.source.leader(*key), left).items():
            lines = [(node, lane) for lane in range(connections)]
            shares = [lines[number :: len(keys)] for number in range(min(len(keys), len(lines)))]
            found.update(zip(keys, itertools.cycle(shares)))
        return found

    def _is_free(self, line: LeaderLane) -> bool:
        return line not in self._under_way and line not in self._late

    def _pending(self) -> dict[PartitionKey, list[PendingFetch]]:
        """Returns the requests that are under way for each partition."""
        found: dict[PartitionKey, list[PendingFetch]] = {}
        for fetch in self._under_way.values():
            for key in fetch.places:
                found.setdefault(key, []).append(fetch)
        return found

    def _asked_for(self, key: PartitionKey) -> list[PendingFetch]:
        """Returns the requests that are under way for one partition."""
        return [fetch for fetch in self._under_way.values() if key in fetch.places]

    def _give_up(
        self, pending: dict[PartitionKey, list[PendingFetch]], lines: Mapping[PartitionKey, list[LeaderLane]]
    ) -> None:
        """Gives up what has come from ahead and is of no use now.

        It is from another leader, or further ahead than all connections of the partition reach, as records have become
        larger.
        """
        for key, fetches in pending.items():
            if not any(fetch.is_ahead for fetch in fetches):
                continue
            most_bytes = len(lines.get(key, ())) * max(fetch.max_bytes for fetch in fetches)
            reach = self.stretches[key].upstream_next + most_bytes * self.limits.densities[key].offsets_per_byte
            leader = self.source.leader(*key), self.source.leader_epoch(*key)
            for fetch in fetches:
                is_useless = fetch.offset(key) > reach or fetch.leader(key) != leader
                if fetch.is_ahead and fetch.response.is_done and is_useless:
                    del self._under_way[fetch.line]
            fetches[:] = [fetch for fetch in fetches if self._under_way.get(fetch.line) is fetch]

    def _freed(self, key: PartitionKey, pending: Iterable[PendingFetch]) -> LeaderLane | None:
        """Gives up what has come from furthest ahead, for something that is missing before it; returns its line."""
        come = [fetch for fetch in pending if fetch.is_ahead and fetch.response.is_done]
        if not come:
            return None
        last = max(come, key=lambda fetch: fetch.offset(key))
        del self._under_way[last.line]
        return last.line

    def _may_go_ahead(self, stretch: Stretch, lines: list[LeaderLane]) -> bool:
        """Returns True if a partition may be read over several connections."""
        is_rated = self.throttle is not None and self.throttle.limits(stretch.topic)
        has_epoch = self.source.leader_epoch(*stretch.key) >= 0  # by which answers of one leader belong together
        return len(lines) > 1 and has_epoch and not is_rated and stretch.key in self.limits.densities

    def _is_dense(self, key: PartitionKey, max_bytes: int) -> bool:
        """Returns True if responses of a size have enough batches of a partition."""
        batches = self.limits.densities[key].batches_per_byte * max_bytes
        return max_bytes >= LEAST_AHEAD_BYTES and batches >= LEAST_AHEAD_BATCHES

    def _send_ahead(self, line: LeaderLane, stretch: Stretch, max_bytes: int) -> None:
        """Asks for what nothing that is under way will have, as far as one can tell."""
        key, at = stretch.key, stretch.upstream_next
        rate, end = self.limits.densities[key].offsets_per_byte, at
        for offset, size in sorted((fetch.offset(key), fetch.max_bytes) for fetch in self._asked_for(key)):
            if offset > end:  # something is missing before it
                break
            end = max(end, offset + max(1, round(rate * size)))
            at = max(at, offset + max(1, round((1 - OVERLAP) * rate * size)))
        if stretch.upstream_next < at < stretch.planned_end:
            self._send(line, {key: LogPlace(at, -1)}, max_bytes, is_ahead=True)

    def _until_the_next(self, key: PartitionKey, at: int, max_bytes: int) -> int:
        """Returns the size that is missing before the next thing that was asked ahead, `max_bytes` at most."""
        ahead = (fetch.offset(key) for fetch in self._asked_for(key) if fetch.is_ahead)
        following = [offset for offset in ahead if offset > at]
        if not following:
            return max_bytes
        missing_bytes = (min(following) - at) / self.limits.densities[key].offsets_per_byte
        return min(max_bytes, LEAST_FETCH_BYTES + int((1 + OVERLAP) * missing_bytes))

    def _send(
        self, line: LeaderLane, places: Mapping[PartitionKey, LogPlace], max_bytes: int, *, is_ahead: bool = False
    ) -> None:
        if self.throttle is not None:
            max_bytes = self.throttle.most_bytes(max_bytes, {topic for topic, _ in places})
        most_bytes = max_bytes if self.source.is_far else min(max_bytes, PARTITION_FETCH_BYTES)
        if len(places) == 1:
            ((key, place),) = places.items()
            most_bytes = self._until_the_next(key, place.offset, most_bytes)
        least_bytes = min(LEAST_FETCH_BYTES, max_bytes // len(places))
        partition_bytes = {
            key: self._planned_bytes(key, place.offset, least_bytes, most_bytes) for key, place in places.items()
        }
        # One more partition may have a batch that is larger than what it is asked for; the others come besides.
        spare_bytes = PARTITION_FETCH_BYTES if len(places) > 1 else 0
        max_bytes = min(max_bytes, sum(partition_bytes.values()) + spare_bytes)
        node, lane = line
        response = self.source.fetch(
            node,
            {key: place.offset for key, place in places.items()},
            max_bytes=max_bytes,
            partition_max_bytes=partition_bytes,
            max_wait_ms=FETCH_WAIT_MS,
            epochs={key: place.leader_epoch for key, place in places.items()},
            lane=lane,
        )
        epochs = {key: self.source.leader_epoch(*key) for key in places} if self.connections > 1 else {}
        self._under_way[line] = PendingFetch(line, places, epochs, response, max_bytes, partition_bytes, is_ahead)

    def _planned_bytes(self, key: PartitionKey, at: int, least_bytes: int, most_bytes: int) -> int:
        """Returns the size that the plan has left of a partition, as far as one can tell.

        Of many partitions, each with a long log, the first few would otherwise fill a response with what is not
        planned yet. It would be dropped, and fetched again.
        """
        size = self.limits.log_sizes.get(key, self._topic_sizes.get(key[0]))
        if size is None:
            return most_bytes
        left = self.stretches[key].planned_end - at
        planned_bytes = (1 + SPARE) * left * size.bytes_per_offset + size.bytes_per_batch
        return min(most_bytes, max(least_bytes, int(planned_bytes)))

    def have_turn(self, key: PartitionKey) -> None:
        """Lets the other partitions come first in the next requests."""
        self._order[key] = self._order.pop(key)

    def note_error(self, key: PartitionKey) -> None:
        """Notes that a partition can't be read now; after several times, this attempt asks for it no more."""
        self._errors[key] += 1

    def wait_s(self, stretch: Stretch) -> float:
        """Returns the seconds until the allowed rate lets more of a stretch be read."""
        return 0.0 if self.throttle is None else max(0.0, self.throttle.wait_s(stretch.topic))

    @property
    def throttled_s(self) -> float:
        """Returns the seconds until anything may be read, 0 if nothing is left."""
        return min((self.wait_s(stretch) for stretch in self._due()), default=0.0)

    # -- responses ----------------------------------------------------------------------------------

    async def ready(self) -> list[PendingFetch]:
        """Waits for a response that can be read; returns those that have come, and those that are late.

        Returns nothing if all have come, and something is missing before each of them.
        """
        while not (ready := self._ready()):
            left = [fetch.response for fetch in self._under_way.values() if not fetch.response.is_done]
            if not left:
                break
            await self.source.first_of(left)
        return ready

    def _ready(self) -> list[PendingFetch]:
        return [
            fetch
            for fetch in self._under_way.values()
            if (self._is_next(fetch) if fetch.response.is_done else self.source.is_silent(*fetch.line))
        ]

    def _is_next(self, fetch: PendingFetch) -> bool:
        """Returns True if a response that has come can be read, or be dropped."""
        if not fetch.is_ahead or fetch.response.exception is not None:
            return True
        (stretch,) = (self.stretches[key] for key in fetch.places)
        return stretch.is_done or fetch.offset(stretch.key) <= stretch.upstream_next

    def late(self) -> list[PendingFetch]:
        """Returns the requests to leaders that were silent."""
        return list(self._late.values())

    def take(self, fetch: PendingFetch) -> None:
        """Takes a request whose response is read now."""
        for fetches in (self._under_way, self._late):
            if fetches.get(fetch.line) is fetch:
                del fetches[fetch.line]

    def postpone(self, fetch: PendingFetch) -> None:
        """Leaves a request to a silent leader for later, and asks nothing over its connection meanwhile."""
        self._late[fetch.line] = fetch

    def answers(self, fetch: PendingFetch, response: Any) -> list[tuple[Fetched, FetchedLog]]:
        """Returns what a response has of each partition that is still where it was asked for."""
        found, fetches = [], list(self.source.fetched(response))
        left_bytes = fetch.max_bytes - sum(len(fetched.records) for fetched in fetches)
        for fetched in fetches:
            if (key := (fetched.topic, fetched.partition)) not in fetch.places:
                continue
            if not fetched.records and fetch.partition_bytes[key] <= left_bytes:
                # Its next batch is larger than what it was asked for, and others came first.
                self.limits.log_sizes[key] = None
            log = FetchedLog(fetched.records, fetched.last_stable_offset, self.source.leader_epoch(*key))
            if self._continues(fetch, fetched, log):
                found.append((fetched, log))
                self._learn_size(fetch, key, log)
                self._learn_density(fetch, key, log)
        return found

    def _continues(self, fetch: PendingFetch, fetched: Fetched, log: FetchedLog) -> bool:
        """Returns True if an answer continues a stretch.

        A leader compares the log with the epoch that was read last only if it is asked for what is next. What was asked
        ahead is of the same log if the same leader has answered for it, in the same epoch. Only records are taken of
        it: an error there says nothing of the position.
        """
        stretch = self.stretches[key := (fetched.topic, fetched.partition)]
        has_answered = not fetched.error_code and fetched.diverges_at is None
        if not fetch.is_ahead:
            if has_answered and fetch.places[key] == place_of(stretch):
                self._leaders[key] = fetch.leader(key)
            return fetch.places[key] == place_of(stretch)
        continues = (
            has_answered
            and not stretch.is_done
            and fetch.offset(key) <= stretch.upstream_next < _end(log)
            and fetch.leader(key) == self._leaders.get(key)
        )
        passed = _passed(log, fetch.offset(key), stretch.upstream_next) if continues else None
        log.passed = passed or 0
        return passed is not None

    def _learn_size(self, fetch: PendingFetch, key: PartitionKey, log: FetchedLog) -> None:
        """Learns what an offset takes, where the log goes on behind what is planned."""
        end = _end(log)
        offsets = end - min(fetch.offset(key), log[0].base_offset) if end >= 0 else 0
        if offsets > 0:
            size = LogSize(log.bounds[-1] / offsets, log.bounds[-1] / len(log))
            behind = log.stable_end - self.stretches[key].planned_end
            goes_on = behind * size.bytes_per_offset > LEAST_FETCH_BYTES
            self._topic_sizes[key[0]] = self.limits.log_sizes[key] = size if goes_on else None

    def _learn_density(self, fetch: PendingFetch, key: PartitionKey, log: FetchedLog) -> None:
        """Learns what responses have, of a large one that does not reach the end of what is to be copied."""
        if self.connections == 1 or len(fetch.places) > 1 or fetch.max_bytes < LEAST_AHEAD_BYTES:
            return
        if (end := _end(log)) >= self.stretches[key].planned_end:
            return
        offsets = log[len(log) - 1].base_offset - fetch.offset(key) if end >= 0 else 0
        if offsets > 0:
            self.limits.densities[key] = Density(offsets / fetch.max_bytes, len(log) / fetch.max_bytes)
        elif known := self.limits.densities.get(key):  # one batch only, or a log of an old format
            self.limits.densities[key] = known._replace(batches_per_byte=0.0)


def _end(log: FetchedLog) -> int:
    """Returns the offset behind a log, -1 if it does not show."""
    if not len(log) or log.whole < len(log) or (last := log[len(log) - 1]).magic < 2:
        return -1
    return last.end_offset


def _passed(log: FetchedLog, asked: int, offset: int) -> int | None:
    """Returns the number of batches before an offset that another response had; None if this can't be told.

    CRCs don't cover first offsets. A batch that only seems to be before the offset would be left out, so all have to be
    where they say: the first one has the offset that was asked for, or follows it, and offsets grow from batch to
    batch, up to the second one behind the offset.
    """
    passed, before, is_behind = 0, -1, False
    for batch in log:
        if batch.magic < 2 or batch.base_offset < before or (before < 0 and batch.end_offset <= asked):
            return None
        if is_behind:
            break
        before, is_behind = batch.end_offset, batch.base_offset > offset
        if before <= offset:
            if not batch.crc_is_right:
                return None
            passed += 1
    return passed
