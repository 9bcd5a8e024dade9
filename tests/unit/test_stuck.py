"""Slots that keep failing rest while others advance, longer each time, and are named after the retry timeout."""

from __future__ import annotations

from dataclasses import replace

from mirrorlake.jobs.mirror.planning.stuck import LONGEST_REST_S, MARKERS_S, SILENT_S, TURN_S, StuckPartitions
from mirrorlake.model.copy_plan import Range
from mirrorlake.model.slot import SlotState

RETRY_S = 300.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def state(slot: int, epoch: int = 0) -> SlotState:
    return SlotState(
        source="a",
        target="b",
        source_cluster_id="",
        slot=slot,
        slots=2,
        generation=1,
        transactional_id="x",
        producer_id=7,
        producer_epoch=epoch,
    )


def planned(slot: int) -> Range:
    return Range("t", slot, topic_id="", partitions=2, slot=slot, start=0, end=10)


class Job:
    """Makes plans of two slots, of which some fail."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.stuck = StuckPartitions(self.clock)
        self.states = {0: state(0), 1: state(1)}

    def plan(
        self,
        *,
        fails: tuple[int, ...] = (),
        work: tuple[int, ...] = (0, 1),
        lingering: frozenset[int] = frozenset(),
    ) -> list[int]:
        """Plans once, and lets the attempts of the planned slots succeed unless they fail."""
        self.stuck.observe(self.states)
        slots = [one.slot for one in self.stuck.planned([planned(slot) for slot in work], self.states, lingering)]
        for slot in slots:
            if slot not in fails:
                self.states[slot] = replace(self.states[slot], producer_epoch=self.states[slot].producer_epoch + 1)
        return slots


def test_a_slot_that_fails_rests_while_the_other_advances_and_is_tried_again_later_each_time() -> None:
    job, tried = Job(), 0
    for _ in range(3_600):
        tried += 0 in job.plan(fails=(0,))
        job.clock.now += 1
    assert 15 < tried < 30, "1 + 2 + 4 + ... + 256 s, then every 300 s"
    assert LONGEST_REST_S == 300


def test_a_slot_that_advances_again_is_planned_each_time() -> None:
    job = Job()
    for _ in range(10):
        job.plan(fails=(0,))
        job.clock.now += 100
    job.clock.now += LONGEST_REST_S
    assert job.plan() == [0, 1]
    assert all(job.plan() == [0, 1] for _ in range(5))


def test_what_was_committed_is_waited_for_as_its_marker_may_not_be_in_the_log_yet() -> None:
    job, waits = Job(), list[float]()
    before = dict(job.states)

    def wait(seconds: float) -> None:
        waits.append(seconds)
        job.clock.now += seconds

    def read(late: int) -> dict[int, SlotState]:
        """Reads the states, of which that of the second slot is late by so many looks."""
        del waits[:]
        return job.stuck.read(lambda: (job.states if len(waits) >= late else before | {0: job.states[0]}, {}), wait)[0]

    assert job.plan() == [0, 1]
    assert read(late=1) == before | {0: job.states[0]}, "nothing was committed that is known of"
    job.stuck.committed({0, 1})
    assert read(late=3) == job.states
    assert len(waits) == 3
    before = dict(job.states)
    assert job.plan() == [0, 1]
    assert read(late=1)[1] == before[1], "of this plan, nothing was committed yet"
    job.stuck.committed({0, 1})
    began = job.clock.now
    read(late=1_000_000)
    assert MARKERS_S <= job.clock.now - began < 2 * MARKERS_S, "a target may be slow: the plan is made without it"


def test_a_slot_that_waits_for_its_rate_does_not_rest_while_others_advance() -> None:
    job = Job()
    for _ in range(10):
        assert job.plan(fails=(1,)) == [0, 1]
        job.stuck.committed({0}, {1})
        job.clock.now += 0.1
    assert job.plan(fails=(1,)) == [0, 1]
    job.clock.now += 0.1
    assert job.plan() == [0], "it has failed, and told of no rate"


def test_nobody_rests_where_nothing_advances_or_nothing_else_is_to_be_done() -> None:
    job = Job()
    assert all(job.plan(fails=(0, 1)) == [0, 1] for _ in range(10))
    assert all(job.plan(fails=(0,), work=(0,)) == [0] for _ in range(10))
    job.plan(fails=(0,))
    job.plan(fails=(0,))
    assert job.plan(fails=(0,)) == [1]
    assert job.plan(fails=(0,), work=(0,)) == [0], "the other has nothing to do now"


def test_a_slot_that_fails_rests_also_while_the_others_linger() -> None:
    """An attempt may take half a minute, for which they would wait beside the time for which they linger."""
    job, tried, lingering = Job(), 0, frozenset({1})
    for second in range(3_600):
        is_due = second % 10 == 0
        work = (0, 1) if is_due else (0,)
        found = job.plan(fails=(0,), work=work, lingering=frozenset() if is_due else lingering)
        assert not is_due or 1 in found
        tried += 0 in found
        job.clock.now += 1
    assert 15 < tried < 30, "1 + 2 + 4 + ... + 256 s, then every 300 s"
    job.clock.now += LONGEST_REST_S
    assert job.plan(fails=(0,), work=(0,), lingering=lingering) == [0]
    assert job.plan(fails=(0, 1), work=(0, 1)) == [1]
    assert all(job.plan(fails=(0, 1), work=(0, 1)) == [0, 1] for _ in range(10)), "nothing advances any more"
    assert job.plan(fails=(0,), work=(0,), lingering=lingering) == [0]


def test_a_slot_that_fails_does_not_rest_for_its_own_partitions_that_linger() -> None:
    job = Job()
    job.plan(fails=(0,))
    assert job.plan(fails=(0,)) == [1]
    assert job.plan(fails=(0,), work=(0,), lingering=frozenset({0})) == [0]


def test_partitions_of_a_slot_that_keeps_failing_are_named_after_the_retry_timeout_in_the_same_words() -> None:
    job, said = Job(), set()
    for number in range(100):
        ranges = [planned(0), replace(planned(1), start=number, end=200)]
        job.plan(fails=(0,))
        job.clock.now += 10
        job.stuck.observe(job.states)
        found = job.stuck.failing(ranges, RETRY_S)
        assert found.keys() <= {("t", 0)}
        said.update(found.values())
    assert len(said) == 1
    assert "slot 0 has committed nothing since" in said.pop()


def test_a_leader_is_named_as_silent_only_after_the_time_of_an_election() -> None:
    clock = Clock()
    stuck, failed = StuckPartitions(clock), {("t", 3): "no leader"}
    assert not stuck.is_electing
    assert stuck.silent(failed) == {}
    assert stuck.is_electing, "a run that ends with what there is waits for it"
    clock.now += SILENT_S
    other_words = {("t", 3): "connection refused"}
    assert stuck.silent(other_words) == {("t", 3): "the leader of t-3 does not answer: no leader"}, "one row, not two"
    assert not stuck.is_electing
    assert stuck.silent({}) == {}
    assert stuck.silent(failed) == {}, "it had a leader in between"


def test_a_partition_that_stays_where_it_is_while_its_slot_advances_is_named_after_the_retry_timeout() -> None:
    clock = Clock()
    stuck, reasons = StuckPartitions(clock), []
    for number in range(100):
        ranges = [planned(0), replace(planned(1), start=number, end=200)]
        reasons.append(stuck.failing(ranges, RETRY_S))
        clock.now += 10
    assert not any(reasons[:30])
    assert all(found.keys() == {("t", 0)} for found in reasons[31:])
    assert "nothing was copied from offset 0 on since" in reasons[-1]["t", 0]
    assert stuck.failing([replace(planned(0), start=1)], RETRY_S) == {}


def test_partitions_that_wait_for_their_turn_at_an_operators_rate_are_not_held() -> None:
    clock = Clock()
    stuck, ranges = (
        StuckPartitions(clock),
        [replace(planned(0), partition=number) for number in range(int(10 * RETRY_S / TURN_S))],
    )
    found = []
    for _ in range(120):
        found.append(stuck.failing(ranges, RETRY_S, lambda topic: topic == "t"))
        clock.now += 30
    assert not any(found[:100]), "all of them had their turn by then, ten times as many as in five minutes"
    assert len(found[-1]) == len(ranges)
    assert StuckPartitions(clock).failing(ranges, 0.0) == {}


def test_a_slot_that_fails_for_weeks_rests_as_long_each_time() -> None:
    job, tried = Job(), 0
    for _ in range(4_000):
        tried += 1 in job.plan(fails=(1,))
        job.clock.now += LONGEST_REST_S
    assert 1_990 < tried < 2_010, "each rest begins when the next plan finds the attempt without a result"


def test_a_partition_that_does_not_advance_is_noticed_also_where_plans_take_turns() -> None:
    stuck, backfill, other = StuckPartitions(), planned(0), planned(1)
    assert not any(stuck.begins_again([one]) for one in (backfill, other))
    assert not stuck.begins_again([replace(backfill, start=5)])
    assert not stuck.begins_again([])
    assert stuck.begins_again([other]), "as in the plan before the last ones"
    assert not stuck.begins_again([replace(other, start=7)])
