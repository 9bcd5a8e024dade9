"""The judge of consumers' journals accepts what may be, and notices each thing that may not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from chaos.failover import journal
from chaos.failover.journal import Event, EventKind, Progress
from chaos.failover.judge import (
    Commit,
    Cycle,
    Log,
    Stay,
    Verdict,
    copier_commits,
    judge_copier,
    judge_group,
    judge_logs,
    judge_written,
    landing,
    positions_between,
    positions_seen,
)

KEY = ("orders", 0)
SOURCE: Log = [(2 * number, f"o.{number}") for number in range(10)]  # with markers between the records
MIRRORED = 8
TARGET: Log = [(100 + number, f"o.{number}") for number in range(MIRRORED)] + [(200, "t.0"), (201, "t.1")]
CYCLE_MS = 50.0


class Member:
    """Writes the journal of one process, one event in each millisecond."""

    def __init__(self, log: Log, at_ms: float, name: str = "a") -> None:
        self._log, self._at_ms, self._name = log, at_ms, name
        self.events: list[Event] = []

    def _add(self, kind: EventKind, offset: int = 0, value: str = "") -> None:
        self._at_ms += 1
        self.events.append(Event(kind, self._at_ms, self._name, KEY, offset, value))

    def joins(self) -> Member:
        self._add(EventKind.ASSIGNED)
        return self

    def reads(self, begin: int, end: int) -> Member:
        for offset, value in self._log[begin:end]:
            self._add(EventKind.READ, offset, value)
        return self

    def commits(self, index: int, *, is_confirmed: bool = True) -> Member:
        offset = self._log[index - 1][0] + 1
        self._add(EventKind.COMMITTING, offset)
        if is_confirmed:
            self._add(EventKind.COMMITTED, offset)
        return self

    def rewinds(self, index: int) -> Member:
        self._add(EventKind.REWOUND, self._log[index][0])
        return self

    def at(self, at_ms: float) -> Member:
        self._at_ms = at_ms
        return self


def source() -> Member:
    """Returns a member that has committed 4 records before the checkpoint cycle, 6 after it, and read 7."""
    before = Member(SOURCE, 0).joins().reads(0, 4).commits(4)
    return before.at(CYCLE_MS + 1).reads(4, 6).commits(6).reads(6, 7)


def judged(left: Sequence[Event], joined: Sequence[Event], log: Log = TARGET) -> Verdict:
    verdict = Verdict()
    stays = [Stay({KEY: SOURCE}, left), Stay({KEY: log}, joined, reads_to_end=True)]
    judge_group(verdict, "g", stays, [[Cycle(CYCLE_MS, CYCLE_MS)]], ["orders"])
    return verdict


def on_target(log: Log = TARGET) -> Member:
    return Member(log, 1_000).joins()


def test_a_group_that_goes_on_at_the_offset_that_the_last_cycle_has_seen_is_as_promised_and_counted() -> None:
    verdict = judged(source().events, on_target().reads(4, 10).events)
    assert verdict.findings == []
    assert (verdict.moved, verdict.read, verdict.read_again, verdict.uncommitted) == (1, 13, 2, 1)


@pytest.mark.parametrize(
    ("what", "joined", "said"),
    [
        ("skips", lambda member: member.reads(5, 10), "1 records were skipped before o.5: ['o.4']"),
        ("skips", lambda member: member.reads(8, 10), "4 records were skipped before t.0"),
        ("begins too early", lambda member: member.reads(3, 10), "1 records were read again from o.3 on"),
        ("begins anew", lambda member: member.reads(0, 10), "4 records were read again from o.0 on"),
        ("skips later", lambda member: member.reads(4, 6).reads(7, 10), "1 records were skipped before o.7: ['o.6']"),
        ("reads twice", lambda member: member.reads(4, 6).reads(5, 10), "1 records were read again from o.5 on"),
        ("swaps", lambda member: member.reads(4, 5).reads(6, 7).reads(5, 6).reads(7, 10), "were skipped before o.6"),
        ("ends early", lambda member: member.reads(4, 9), "the last record, t.1, was not read"),
        ("reads nothing", lambda member: member, "the last record, t.1, was not read"),
        ("joins again", lambda member: member.reads(4, 8).commits(8).joins().reads(6, 10), "2 records were read again"),
        ("joins ahead", lambda member: member.reads(4, 8).commits(6).joins().reads(8, 10), "2 records were skipped"),
    ],
)
def test_a_record_that_is_skipped_read_twice_or_out_of_order_after_a_move_is_noticed(
    what: str, joined: Callable[[Member], Member], said: str
) -> None:
    verdict = judged(source().events, joined(on_target()).events)
    assert verdict.findings, f"a group that {what} is not noticed"
    assert said in " / ".join(verdict.findings)


def test_a_record_that_is_skipped_on_the_source_or_that_is_not_there_is_noticed() -> None:
    hole = Member(SOURCE, 0).joins().reads(0, 2).reads(3, 4).commits(4).events
    assert "1 records were skipped before o.3" in judged(hole, on_target().reads(4, 10).events).findings[0]
    other = [(offset, "x" if value == "o.5" else value) for offset, value in TARGET]
    assert (
        "was read at offset 105, not there" in judged(source().events, on_target(other).reads(4, 10).events).findings[0]
    )


def test_a_group_is_given_its_offset_only_if_it_has_read_everything_before_it() -> None:
    liar = Member(SOURCE, 0).joins().reads(0, 2).commits(4)  # commits what it has not read
    verdict = judged(liar.events, on_target().reads(4, 10).events)
    assert verdict.findings == ["g orders-0 stay 2: 2 records were never read: ['o.2', 'o.3']"]


def test_a_group_that_has_read_past_the_mirrored_end_goes_on_there() -> None:
    ahead = Member(SOURCE, 0).joins().reads(0, 10).commits(10)
    assert judged(ahead.events, on_target().reads(8, 10).events).findings == []
    assert "1 records were read again" in judged(ahead.events, on_target().reads(7, 10).events).findings[0]


def test_a_group_without_a_commit_begins_anew_and_only_such_a_group() -> None:
    without = Member(SOURCE, 0).joins().reads(0, 4)
    assert judged(without.events, on_target().reads(0, 10).events).findings == []
    assert judged(without.events, on_target().reads(1, 10).events).findings != []
    late = without.at(CYCLE_MS + 1).commits(4)
    assert judged(late.events, on_target().reads(0, 10).events).findings == []


def test_a_rewind_is_no_fault_of_anybody_and_its_commit_counts() -> None:
    back = Member(SOURCE, 0).joins().reads(0, 6).commits(6).rewinds(2).reads(2, 3).commits(3)
    assert judged(back.events, on_target().reads(3, 10).events).findings == []
    assert "3 records were skipped before o.6" in judged(back.events, on_target().reads(6, 10).events).findings[0]
    wrong = Member(SOURCE, 0).joins().reads(0, 6).rewinds(2).reads(3, 4)
    assert judged(wrong.events, on_target().reads(0, 10).events).findings != []


def test_of_a_commit_without_an_answer_both_offsets_may_be_seen_and_no_other() -> None:
    unsure = Member(SOURCE, 0).joins().reads(0, 4).commits(2).commits(4, is_confirmed=False)
    for begin, is_allowed in ((1, False), (2, True), (3, False), (4, True)):
        assert (judged(unsure.events, on_target().reads(begin, 10).events).findings == []) is is_allowed


def test_an_offset_is_in_force_until_a_later_one_is_confirmed() -> None:
    commits = [Commit(10, 12, 1), Commit(20, 30, 2), Commit(40, math.inf, 3)]
    assert positions_between(commits, 5, 9) == {None}
    assert positions_between(commits, 11, 11) == {None, 1}
    assert positions_between(commits, 15, 15) == {1}
    assert positions_between(commits, 25, 25) == {1, 2}
    assert positions_between(commits, 31, 39) == {2}
    assert positions_between(commits, 31, 50) == {2, 3}
    assert positions_between(commits, 15, 50) == {1, 2, 3}


def test_the_last_complete_cycle_counts_and_those_that_died_after_it() -> None:
    commits = [Commit(10, 12, 1), Commit(20, 22, 2), Commit(30, 32, 3), Commit(40, 42, 4)]
    assert positions_seen(commits, []) == {None}
    assert positions_seen(commits, [Cycle(15, 16), Cycle(25, 26)]) == {2}
    assert positions_seen(commits, [Cycle(15, 16), Cycle(25, 26), Cycle(35, 36, is_complete=False)]) == {2, 3}
    assert positions_seen(commits, [Cycle(15, 16, is_complete=False)]) == {None, 1}


def test_a_second_move_starts_from_where_the_group_was_left() -> None:
    home: Log = [*SOURCE, (50, "t.0"), (51, "t.1"), (60, "h.0")]
    there = on_target().reads(4, 9).commits(9).at(2_000)
    for begin, said in ((11, ""), (12, "skipped before h.0"), (10, "read again from t.0"), (8, "read again from o.8")):
        verdict, back = Verdict(), Member(home, 3_000).joins().reads(begin, 13)
        stays = [
            Stay({KEY: SOURCE}, source().events),
            Stay({KEY: TARGET}, there.events),
            Stay({KEY: home}, back.events, reads_to_end=True),
        ]
        judge_group(verdict, "g", stays, [[Cycle(CYCLE_MS, CYCLE_MS)], [Cycle(2_500, 2_500)]], ["orders"])
        assert verdict.findings == [] if not said else any(said in one for one in verdict.findings), verdict.findings
    assert landing(TARGET, home, 105) == 5


def test_a_partition_that_moves_to_another_member_goes_on_at_the_commit() -> None:
    first = Member(SOURCE, 0).joins().reads(0, 3).commits(2)
    second = Member(SOURCE, 20, "b").joins().reads(2, 6).commits(6)
    events = [*first.events, *second.events]
    assert judged(events, on_target().reads(6, 10).events).findings == []
    ahead = Member(SOURCE, 20, "b").joins().reads(3, 6).commits(6)
    assert judged([*first.events, *ahead.events], on_target().reads(6, 10).events).findings != []


# -- logs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "may_lose", "said"),
    [
        (TARGET, True, ""),
        (TARGET, False, "2 records are not there: ['o.8', 'o.9']"),
        ([*TARGET[:3], *TARGET[4:]], True, "3 records are not there, and not the last ones"),
        ([*TARGET[:3], TARGET[4], TARGET[3], *TARGET[5:]], True, "in another order"),
        ([*TARGET, (300, "o.1")], True, "1 records are there twice: ['o.1']"),
        ([], True, ""),
    ],
)
def test_a_log_has_the_records_once_and_in_order_and_misses_at_most_the_last_ones(
    log: Log, may_lose: bool, said: str
) -> None:
    verdict = Verdict()
    judge_logs(verdict, {KEY: SOURCE}, {KEY: log}, may_lose=may_lose)
    assert verdict.findings == [] if not said else said in " / ".join(verdict.findings)
    assert verdict.lost == 10 - sum(value.startswith("o") for value in {value for _, value in log})


def test_an_acknowledged_record_that_is_missing_and_an_aborted_one_that_is_there_are_noticed() -> None:
    verdict = Verdict()
    judge_written(verdict, "orders", {KEY: SOURCE}, ["o.1", "o.9"], ["o.10"])
    assert verdict.findings == []
    judge_written(verdict, "orders", {KEY: SOURCE}, ["o.10"], ["o.3"])
    assert [finding.split(" are ")[0] for finding in verdict.findings] == [
        "orders: 1 acknowledged records",
        "orders: 1 aborted records",
    ]


# -- copiers ----------------------------------------------------------------------------------------


def copied(
    processed: int, mirrored: int, begin: int, commit: int, *, output: Callable[[list[str]], list[str]] = list
) -> Verdict:
    """Judges a copier that has processed a number of records, with the output and the offset of the given ages."""
    values = [value for _, value in SOURCE]
    results = [(number, value) for number, value in enumerate(values[:processed])]
    ours = output([value for _, value in TARGET[begin:]])
    there = [*results[:mirrored], *((500 + number, value) for number, value in enumerate(ours))]
    verdict = Verdict()
    judge_copier(
        verdict,
        "copier",
        left=(SOURCE, results),
        joined=(TARGET, there),
        mirrored=mirrored,
        commits=[Commit(1, 2, SOURCE[commit - 1][0] + 1)],
        cycles=[Cycle(CYCLE_MS, CYCLE_MS)],
    )
    return verdict


def test_a_copier_repeats_what_is_between_its_offset_and_its_mirrored_output_or_misses_it_and_nothing_else() -> None:
    for processed, mirrored, commit, counts in ((6, 4, 4, (0, 0)), (6, 6, 4, (2, 0)), (6, 3, 5, (0, 2))):
        verdict = copied(processed, mirrored, commit, commit)
        assert (verdict.findings, (verdict.repeated, verdict.missing)) == ([], counts)
    assert "went on at input record 5" in copied(6, 6, 5, 4).findings[0]
    assert "went on at input record 3" in copied(6, 6, 3, 4).findings[0]
    assert "never processed" in copied(3, 3, 5, 5).findings[-1]


def test_a_copier_whose_output_has_a_hole_a_record_twice_or_another_order_is_noticed() -> None:
    for output in (
        lambda values: [*values[:2], *values[3:]],
        lambda values: [*values[:2], *values[1:]],
        lambda values: [values[0], values[2], values[1], *values[3:]],
        lambda values: values[:-1],
        lambda values: [],
    ):
        assert copied(6, 4, 4, 4, output=output).findings != []


def test_a_copier_whose_output_was_wrong_before_the_move_or_was_mirrored_otherwise_is_noticed() -> None:
    inputs, cycles = SOURCE[:4], [Cycle(CYCLE_MS, CYCLE_MS)]
    right, wrong = [(0, "o.0"), (1, "o.1"), (2, "o.2")], [(0, "o.0"), (1, "o.2")]
    rest = [(8, "o.3")]
    for before, mirrored, said in (
        (wrong, wrong, "the output is not the input"),
        (right, wrong, "mirrored output differs"),
    ):
        verdict, commits = Verdict(), [Commit(1, 2, SOURCE[2][0] + 1)]
        judge_copier(
            verdict,
            "copier",
            left=(inputs, before),
            joined=(inputs, [*mirrored, *rest]),
            mirrored=len(mirrored),
            commits=commits,
            cycles=cycles,
        )
        assert said in verdict.findings[0]


def test_the_commits_of_a_copier_are_known_by_the_numbers_of_its_lines() -> None:
    runs = [[Progress(1, 0), Progress(2, 2), Progress(3, 2), Progress(4, 4)], [Progress(5, 0), Progress(6, 3)]]
    ends = {count: SOURCE[count - 1][0] + 1 for count in (2, 4, 7, 8)}
    assert copier_commits(runs, SOURCE, 8) == [
        Commit(1, 4, ends[2]),
        Commit(3, math.inf, ends[4]),
        Commit(5, math.inf, ends[7]),
        Commit(6, math.inf, ends[8]),
    ]


# -- files ------------------------------------------------------------------------------------------


def test_files_are_read_line_by_line_and_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    file = tmp_path / "g.jsonl"
    assert journal.lines_from(file) == ([], 0)
    file.write_bytes(b'{"at_ms": 5, "event": "read", "topic": "t", "partition": 1, "offset": 3, "value": "v"}\n{"at_')
    lines, at = journal.lines_from(file)
    assert journal.events(lines, "g") == [Event(EventKind.READ, 5, "g", ("t", 1), 3, "v")]
    with file.open("ab") as more:
        more.write(b'ms": 6, "event": "assigned", "topic": "t", "partition": 1}\n')
    (event,) = journal.events(journal.lines_from(file, at)[0], "g")
    assert (event.kind, event.at_ms) == (EventKind.ASSIGNED, 6)
    assert journal.renamed([event], {"t": "orders"})[0].key == ("orders", 1)
    assert journal.renamed([event], {"u": "orders"}) == []


def test_the_output_of_kafkas_own_clients_is_understood() -> None:
    place = '"topic":"t","partition":0'
    lines = [
        "OpenJDK 64-Bit Server VM warning",
        f'{{"timestamp":1,"name":"partitions_assigned","partitions":[{{{place}}}]}}',
        f'{{"timestamp":2,"name":"record_data","key":null,"value":"v",{place},"offset":7}}',
        f'{{"timestamp":3,"name":"records_consumed","count":1,"partitions":[{{{place},"count":1,"minOffset":7,"maxOffset":7}}]}}',
        f'{{"timestamp":4,"name":"offsets_committed","offsets":[{{{place},"offset":8}}],"success":true}}',
        f'{{"timestamp":5,"name":"offsets_committed","offsets":[{{{place},"offset":9}}],"error":"no","success":false}}',
        '{"timestamp":6,"name":"shutdown_complete"}',
    ]
    found = journal.verifiable_events(lines, "m")
    assert [(event.kind, event.at_ms, event.offset) for event in found] == [
        (EventKind.ASSIGNED, 1, 0),
        (EventKind.READ, 2, 7),
        (EventKind.COMMITTING, 3, 8),
        (EventKind.COMMITTED, 4, 8),
    ]
    assert journal.acknowledged(['{"name":"producer_send_success","value":"7.1"}', '{"name":"tool_data"}']) == ["7.1"]
    time = '"time":"2026/11/24 07:11:23:276"'
    steps = journal.progress([f'{{"stage":"ProcessLoop",{time},"totalProcessed":20}}', '{"stage":"other"}'])
    assert [(step.total, step.at_ms % 1_000) for step in steps] == [(20, 276.0)]
