"""The judge of consumers' journals. It is pure, and shares no code with mirrorlake.

A group *stays* on one cluster, then on the next one. The judge is given the logs of both clusters as an independent
reader sees them, the journals, and the times of the checkpoint cycles. It knows what a group may do:

- within a stay, a consumer reads each partition without a hole, from the offset that its group had committed;
- at a move, the group continues behind the offset that the last checkpoint cycle has seen: no record before that is
  read again, and no record behind it is skipped;
- no record that both clusters have is passed over by a group that has never read it;
- records that only the cluster left behind has are the end of their partition.

Records are known by their values, which are unique in a topic. All times are ms since the epoch.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from chaos.failover.journal import Event, EventKind, Key, Progress

Log = Sequence[tuple[int, str]]  # offset and value of each record, in order
Logs = Mapping[Key, Log]
SHOWN = 3  # records that a finding names


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a partition; `confirmed_ms` is infinite if the broker's answer was never seen."""

    began_ms: float
    confirmed_ms: float
    offset: int


@dataclass(frozen=True, slots=True)
class Cycle:
    """One cycle that has read the groups' offsets; an incomplete one may have recorded them, or not."""

    began_ms: float
    ended_ms: float
    is_complete: bool = True


@dataclass(frozen=True)
class Stay:
    """The time of a group on one cluster.

    Attributes:
        logs: records of the cluster after that time, by topic and partition.
        events: events of the group's journals. Events of one process are in their order.
        reads_to_end: True if the group has had the time to read every partition to its end.
    """

    logs: Logs
    events: Sequence[Event]
    reads_to_end: bool = False


@dataclass
class Verdict:
    """What the judge has found, and what it has counted.

    Attributes:
        findings: broken promises; empty if all hold.
        read: records that groups have read, each as often as it was read.
        moved: partitions of groups that were moved.
        read_again: records that groups have read again although they had committed them, as the last checkpoint cycle
            had not seen that.
        uncommitted: records that groups have read again and had not committed, or had gone back to.
        lost: records that only the cluster left behind has.
        repeated: records that a copier has processed again.
        missing: records that a copier had processed, and whose output only the cluster left behind has.
    """

    findings: list[str] = field(default_factory=list)
    read: int = 0
    moved: int = 0
    read_again: int = 0
    uncommitted: int = 0
    lost: int = 0
    repeated: int = 0
    missing: int = 0


def commits_of(events: Iterable[Event]) -> dict[Key, list[Commit]]:
    """Returns the commits of a group by partition, in the order in which they began."""
    begun: dict[Key, list[list[float]]] = {}
    unconfirmed: dict[tuple[Key, int], deque[list[float]]] = {}
    for event in sorted(events, key=lambda event: event.at_ms):  # stable: a process's own events keep their order
        if event.kind is EventKind.COMMITTING:
            commit = [event.at_ms, math.inf, event.offset]
            begun.setdefault(event.key, []).append(commit)
            unconfirmed.setdefault((event.key, event.offset), deque()).append(commit)
        elif event.kind is EventKind.COMMITTED and (waiting := unconfirmed.get((event.key, event.offset))):
            waiting.popleft()[1] = event.at_ms
    return {key: [Commit(began, confirmed, int(at)) for began, confirmed, at in found] for key, found in begun.items()}


def positions_between(commits: Sequence[Commit], since_ms: float, until_ms: float) -> set[int | None]:
    """Returns the offsets that a reader of the group's offset may have seen in that time; None for no offset.

    A commit is in force from some moment after it began. It is over once a later one is confirmed.
    """
    over = max((number for number, commit in enumerate(commits) if commit.confirmed_ms < since_ms), default=-1)
    found: set[int | None] = {commit.offset for commit in commits[max(0, over) :] if commit.began_ms <= until_ms}
    return found if over >= 0 else found | {None}


def positions_seen(commits: Sequence[Commit], cycles: Sequence[Cycle]) -> set[int | None]:
    """Returns the offsets that a failover may know: of the last complete cycle, and of incomplete ones after it."""
    last = max((number for number, cycle in enumerate(cycles) if cycle.is_complete), default=None)
    found: set[int | None] = {None} if last is None else set()
    for cycle in cycles[last or 0 :]:
        found |= positions_between(commits, cycle.began_ms, cycle.ended_ms)
    return found


def landing(left: Log, joined: Log, position: int | None) -> int:
    """Returns the index in the log joined at which a group continues whose offset in the log left is `position`.

    It is the first record that the group has not read. Without such a record, it is behind the last one that it has.
    """
    if position is None:
        return 0
    known = {value: offset for offset, value in left}
    behind = 0
    for index, (_, value) in enumerate(joined):
        if value in known:
            if known[value] >= position:
                return index
            behind = index + 1
    return behind


def judge_logs(verdict: Verdict, left: Logs, joined: Logs, *, may_lose: bool) -> None:
    """Judges whether the log joined has the records of the log left once, in order, and misses at most the last ones.

    Args:
        verdict: takes the findings and the number of lost records.
        left: logs of the cluster left behind.
        joined: logs of the other cluster.
        may_lose: True if records at the end of a partition may be missing, as the cluster left behind is dead.
    """
    for key, before in left.items():
        after = joined.get(key, ())
        values = [value for _, value in before]
        place = {value: number for number, value in enumerate(values)}
        twice = [value for value, count in Counter(value for _, value in after).items() if count > 1]
        if twice:
            verdict.findings.append(f"{key}: {len(twice)} records are there twice: {twice[:SHOWN]}")
        common = [place[value] for _, value in after if value in place]
        if common != sorted(common):
            verdict.findings.append(f"{key}: records are in another order")
        there = {value for _, value in after}
        missing = [value for value in values if value not in there]
        verdict.lost += len(missing)
        if missing and not may_lose:
            verdict.findings.append(f"{key}: {len(missing)} records are not there: {missing[:SHOWN]}")
        elif missing != values[len(values) - len(missing) :]:
            verdict.findings.append(f"{key}: {len(missing)} records are not there, and not the last ones")


def judge_written(
    verdict: Verdict, topic: str, logs: Logs, acknowledged: Iterable[str], aborted: Iterable[str]
) -> None:
    """Judges whether a cluster has each acknowledged record of a topic, and none of an aborted transaction."""
    there = {value for (name, _), log in logs.items() if name == topic for _, value in log}
    missing = sorted(set(acknowledged) - there)
    if missing:
        verdict.findings.append(f"{topic}: {len(missing)} acknowledged records are not there: {missing[:SHOWN]}")
    if taken_back := sorted(set(aborted) & there):
        verdict.findings.append(f"{topic}: {len(taken_back)} aborted records are there: {taken_back[:SHOWN]}")


def judge_group(
    verdict: Verdict, group: str, stays: Sequence[Stay], moves: Sequence[Sequence[Cycle]], topics: Iterable[str]
) -> None:
    """Judges the journals of one group over its stays.

    Args:
        verdict: takes the findings and the numbers.
        group: name of the group.
        stays: its stays, in their order.
        moves: cycles that have read its offsets before each move; one item less than stays.
        topics: topics that it reads.
    """
    keys = sorted({key for stay in stays for key in stay.logs if key[0] in set(topics)})
    for key in keys:
        starts, seen = {0}, set()
        for number, stay in enumerate(stays):
            name = f"{group} {key[0]}-{key[1]} stay {number + 1}"
            log = stay.logs.get(key, ())
            events = [event for event in stay.events if event.key == key]
            commits = commits_of(events).get(key, [])
            read = _sessions(verdict, name, log, events, starts=starts, commits=commits)
            if number:
                _judge_move(verdict, name, stays[number - 1], stay, key=key, seen=seen, read=read)
            if stay.reads_to_end and log and len(log) - 1 not in read:
                verdict.findings.append(f"{name}: the last record, {log[-1][1]}, was not read")
            seen |= {log[index][1] for index in read}
            if number + 1 < len(stays):
                known = positions_seen(commits, moves[number])
                if number and None in known:  # before its own first commit, the group has the offset that it was given
                    known = known - {None} | {_offset_at(log, start) for start in starts}
                starts = {landing(log, stays[number + 1].logs.get(key, ()), position) for position in known}


def _sessions(
    verdict: Verdict, name: str, log: Log, events: Sequence[Event], *, starts: set[int], commits: Sequence[Commit]
) -> list[int]:
    """Judges what was read between assignments; returns the indices of all records that were read, in their order."""
    index_of = {offset: number for number, (offset, _) in enumerate(log)}
    read: list[int] = []
    expected: dict[str, set[int]] = {}  # by member
    assigned_ms: dict[str, float] = {}
    for event in events:
        if event.kind is EventKind.ASSIGNED:
            expected.pop(event.member, None)
            assigned_ms[event.member] = event.at_ms
        elif event.kind is EventKind.REWOUND:
            expected[event.member] = {_index_at(log, event.offset)}
        elif event.kind is EventKind.READ:
            index = index_of.get(event.offset)
            if index is None or log[index][1] != event.value:
                verdict.findings.append(f"{name}: record {event.value} was read at offset {event.offset}, not there")
                continue
            allowed = expected.get(event.member)
            if allowed is None:
                known = positions_between(commits, assigned_ms.get(event.member, event.at_ms), event.at_ms)
                allowed = set().union(*({_index_at(log, at)} if at is not None else starts for at in known))
            if index not in allowed:
                verdict.findings.append(_misplaced(name, log, index, allowed))
            expected[event.member] = {index + 1}
            read.append(index)
            verdict.read += 1
    return read


def _index_at(log: Log, offset: int) -> int:
    """Returns the index of the first record at or behind an offset."""
    return bisect_left(log, offset, key=lambda record: record[0])


def _offset_at(log: Log, index: int) -> int:
    """Returns the offset of a record, or the end of the log."""
    return log[index][0] if index < len(log) else (log[-1][0] + 1 if log else 0)


def _misplaced(name: str, log: Log, index: int, allowed: set[int]) -> str:
    record = log[index][1]
    if index > max(allowed):
        skipped = [value for _, value in log[max(allowed) : index]]
        return f"{name}: {len(skipped)} records were skipped before {record}: {skipped[:SHOWN]}"
    if index < min(allowed):
        again = [value for _, value in log[index : min(allowed)]]
        return f"{name}: {len(again)} records were read again from {record} on"
    return f"{name}: reading went on at {record}, which no commit explains"


def _judge_move(
    verdict: Verdict, name: str, left: Stay, joined: Stay, *, key: Key, seen: set[str], read: Sequence[int]
) -> None:
    """Judges what a group has read after a move by what it had read before, apart from its commits; counts it."""
    before, after = left.logs.get(key, ()), joined.logs.get(key, ())
    if not read:
        return
    verdict.moved += 1
    common = {value for _, value in before}
    known = {value: offset for offset, value in before}
    passed = [value for _, value in after[: min(read)] if value in common and value not in seen]
    if passed:
        verdict.findings.append(f"{name}: {len(passed)} records were never read: {passed[:SHOWN]}")
    events = [event for event in left.events if event.key == key]
    commits = [one for one in commits_of(events).get(key, ()) if one.confirmed_ms < math.inf]
    last = commits[-1].offset if commits else 0
    again = [value for value in {after[index][1] for index in read} if value in seen]
    committed = sum(known.get(value, math.inf) < last for value in again)
    verdict.read_again += committed
    verdict.uncommitted += len(again) - committed


def copier_commits(runs: Sequence[Sequence[Progress]], log: Log, written: int) -> list[Commit]:
    """Returns the commits of a TransactionalMessageCopier on one partition, from the numbers that its processes wrote.

    A line with a higher number follows the commit of a transaction. The broker may complete it later, but before the
    next transaction of the same id can begin; the next higher number confirms it. The last transaction may have been
    committed without a line.

    Args:
        runs: lines of each of its processes, in their order.
        log: records of its input partition.
        written: number of records in its output partition.
    """
    done, found, last_ms = 0, [], -math.inf
    for lines in runs:
        steps = [(at, line) for at, line in enumerate(lines) if at and line.total > lines[at - 1].total]
        for number, (at, line) in enumerate(steps):
            confirmed_ms = steps[number + 1][1].at_ms if number + 1 < len(steps) else math.inf
            count = done + line.total
            if count <= len(log):
                found.append(Commit(lines[at - 1].at_ms, confirmed_ms, log[count - 1][0] + 1))
        done += max((line.total for line in lines), default=0)
        last_ms = max((last_ms, *(line.at_ms for line in lines)))
    if done < written <= len(log):
        found.append(Commit(last_ms, math.inf, log[written - 1][0] + 1))
    return found


def judge_copier(
    verdict: Verdict,
    name: str,
    *,
    left: tuple[Log, Log],
    joined: tuple[Log, Log],
    mirrored: int,
    commits: Sequence[Commit],
    cycles: Sequence[Cycle],
) -> None:
    """Judges a copier that processes one input partition in transactions, before and after a move.

    Its output on the cluster joined is that which was mirrored, then one of each input record from the group's offset
    on. Where offset and mirrored output are of different ages, records are processed twice, or their output is lost
    with the cluster left behind. The judge knows which, and counts them.

    Args:
        verdict: takes the findings and the numbers.
        name: name of the copier.
        left: input and output of the cluster left behind.
        joined: input and output of the other cluster, at the end.
        mirrored: number of records of the output that were mirrored.
        commits: commits of the copier on the cluster left behind.
        cycles: cycles that have read its offset.
    """
    inputs, outputs = ([value for _, value in log] for log in left)
    inputs_there, outputs_there = ([value for _, value in log] for log in joined)
    if outputs != inputs[: len(outputs)]:
        verdict.findings.append(f"{name}: on the cluster left behind, the output is not the input, once and in order")
        return
    if outputs_there[:mirrored] != outputs[:mirrored]:
        verdict.findings.append(f"{name}: the mirrored output differs")
        return
    ours = outputs_there[mirrored:]
    if not ours:
        verdict.findings.append(f"{name}: nothing was processed after the move")
        return
    start = inputs_there.index(ours[0]) if ours[0] in inputs_there else None
    if start is None or ours != inputs_there[start:]:
        verdict.findings.append(f"{name}: after the move, the output is not the rest of the input, once and in order")
        return
    allowed = {landing(left[0], joined[0], position) for position in positions_seen(commits, cycles)}
    if start not in allowed:
        verdict.findings.append(
            f"{name}: went on at input record {start} ({ours[0]}), and a checkpoint cycle has seen {sorted(allowed)}"
        )
    verdict.repeated += len(set(outputs_there[:mirrored]) & set(ours))
    missing = [value for value in inputs_there if value not in set(outputs_there)]
    verdict.missing += len(missing)
    unprocessed = [value for value in missing if value not in set(outputs)]
    if unprocessed:
        verdict.findings.append(f"{name}: {len(unprocessed)} records were never processed: {unprocessed[:SHOWN]}")
