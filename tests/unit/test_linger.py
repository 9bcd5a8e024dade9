"""Partitions with few new records, which wait for each other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mirrorlake.jobs.mirror.planning.linger import BATCH_RECORDS, Linger
from mirrorlake.model.copy_plan import Partition
from mirrorlake.model.slot import Position
from mirrorlake.partition_key import PartitionKey

LINGER_MS = 10_000


def position(partition: int, offset: int = 0) -> Position:
    return Position("t", partition, "id", "a.t", partition, upstream_next=offset, downstream_next=offset, slot=0)


@dataclass
class Job:
    """Plans in each second what waits for no more records, and copies it, but what `fails`."""

    now: float = 1_000.0
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(4), 0))
    positions: dict[PartitionKey, Position] = field(default_factory=dict)
    changed: dict[int, dict[str, object]] = field(default_factory=dict)
    most: int = BATCH_RECORDS * 10

    def __post_init__(self) -> None:
        self.linger = Linger(lambda: self.now)
        self.positions |= {("t", number): position(number) for number in self.ends}
        assert self.second() == []

    def second(self, *, linger_ms: int = LINGER_MS, fails: tuple[int, ...] = ()) -> list[int]:
        """Returns the partitions with new records that are planned."""
        offered = [
            replace(Partition("t", number, "id", 4, 0, end), **self.changed.get(number, {}))
            for number, end in self.ends.items()
        ]
        planned = []
        for one in self.linger.due(offered, self.positions, linger_ms):
            key = one.topic, one.partition
            begun = self.positions[key].upstream_next if key in self.positions else 0
            if one.stable > begun or one.is_set_back:
                planned.append(one.partition)
                if one.partition not in fails:
                    self.positions[key] = position(one.partition, min(one.stable, begun + self.most))
        self.now += 1
        return planned

    def seconds(self, count: int, **given: int) -> dict[int, list[int]]:
        """Returns what is planned, by the second in which it is."""
        return {number: planned for number in range(count) if (planned := self.second(**given))}


def test_partitions_with_few_records_wait_until_the_first_has_waited_for_long_enough_and_go_together() -> None:
    job = Job()
    job.ends[0] += 1
    assert job.seconds(4) == {}
    job.ends[1] += BATCH_RECORDS - 1
    job.ends[0] += 1
    assert job.seconds(7) == {6: [0, 1]}
    job.ends[2] += 1
    assert job.seconds(30) == {10: [2]}, "nothing that has gone lets others go"


def test_a_partition_that_gets_a_record_each_second_takes_part_in_one_commit_in_that_time() -> None:
    job, commits = Job(), 0
    for _ in range(110):
        job.ends = {number: end + 1 for number, end in job.ends.items()}
        planned = job.second()
        assert planned in ([], [0, 1, 2, 3])
        commits += bool(planned)
    assert commits == 10


def test_what_is_worth_a_commit_or_has_no_place_yet_goes_at_once_and_alone() -> None:
    job = Job()
    job.ends[0] += 1
    job.ends[1] += BATCH_RECORDS
    job.ends[2] += 1
    job.changed[2] = {"is_set_back": True}
    del job.positions["t", 3]
    job.ends[3] = 1
    assert job.second() == [1, 2, 3]
    assert Job().second(linger_ms=0) == []


def test_a_backlog_is_copied_without_a_pause_to_where_it_ended_though_one_plan_takes_little_of_it() -> None:
    job = Job(most=BATCH_RECORDS // 4)
    job.ends[0] = 2 * BATCH_RECORDS
    assert job.seconds(30) == {second: [0] for second in range(8)}


def test_what_failed_goes_again_and_again_and_the_others_still_wait() -> None:
    job = Job()
    job.ends[0] = 1
    assert job.seconds(11) == {10: [0]}
    job.ends[0] = 2
    assert [job.second(fails=(0,)) for _ in range(12)][-2:] == [[0], [0]]
    job.ends[1] = 1
    assert [job.second(fails=(0,)) for _ in range(3)] == [[0]] * 3
    assert job.second() == [0]
    assert job.seconds(9) == {6: [1]}


def test_what_is_there_when_a_job_starts_waits_no_longer() -> None:
    job = Job()
    job.ends = dict.fromkeys(range(4), 1)
    job.linger = Linger(lambda: job.now)
    assert job.second() == [0, 1, 2, 3]


def test_the_time_can_be_changed_while_partitions_wait() -> None:
    job = Job()
    job.ends[0] = 1
    assert job.seconds(3) == {}
    assert job.second(linger_ms=3_000) == [0]
    job.ends[1] = 1
    assert job.second() == []
    assert job.second(linger_ms=0) == [1]
