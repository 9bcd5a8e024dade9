"""The trace of a flow: the transactions of all slots, held against the invariants of the protocol (docs/protocol.md).

The offset-syncs topic holds the trace. It is read generation by generation, and of each generation slot by slot, so
that memory does not grow with its length. The audit uses none of the code that writes states.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from mirrorlake.model.gap import RESETS, Gap, GapKind
from mirrorlake.model.run import Run
from mirrorlake.model.slot import Position, SlotState
from mirrorlake.partition_key import PartitionKey

MOST_SHOWN = 1_000  # violations that are kept; all are counted
WHOLE = "a generation copies once it is open in every slot"


@dataclass(frozen=True)
class Violation:
    """A place where a trace breaks an invariant.

    Attributes:
        check: the check that fails.
        slot: the slot of the transaction.
        offset: the offset of its state in the slot's partition of the offset-syncs topic.
        topic: the source topic; empty if the violation is not about one.
        partition: its partition.
        detail: what was found, with the offsets.
    """

    check: str
    slot: int
    offset: int
    detail: str
    topic: str = ""
    partition: int = -1

    def __str__(self) -> str:
        where = f", topic {self.topic}, partition {self.partition}" if self.topic else ""
        return f"slot {self.slot}, state at offset {self.offset}{where}: {self.detail} ({self.check})"


@dataclass(frozen=True)
class Transaction:
    """A committed transaction of a slot: its last state, with the runs and gaps of all its states."""

    offset: int
    state: SlotState


@dataclass
class _Slot:
    """What is known of a slot."""

    transactions: Iterator[Transaction]
    following: Transaction | None = None
    producer: tuple[int, int] = (-1, -1)
    generation: int = -1

    def __post_init__(self) -> None:
        self.following = next(self.transactions, None)

    def take(self) -> Transaction:
        taken, self.following = self.following, next(self.transactions, None)
        assert taken is not None
        return taken


def transactions(states: Iterable[tuple[int, SlotState]]) -> Iterator[Transaction]:
    """Joins the states of a slot that one producer epoch has written; they are one transaction, and follow each other.

    Args:
        states: the committed states of one slot with their offsets, in order.
    """
    for _, group in groupby(states, key=lambda one: (one[1].producer_id, one[1].producer_epoch, one[1].generation)):
        several = list(group)
        offset, last = several[-1]
        for (before, first), (after, _) in pairwise(several):
            if after != before + 1 or not first.inferred:  # only a map from a take-over needs several states
                yield Transaction(before, first)
                several = several[1:]
        yield Transaction(
            offset,
            replace(
                last,
                inferred=any(state.inferred for _, state in several),
                runs=tuple(run for _, state in several for run in state.runs),
                gaps=tuple(gap for _, state in several for gap in state.gaps),
            ),
        )


class TraceAudit:
    """The audit of one flow's trace.

    Args:
        slots: the committed states of each slot with their offsets, in order.

    Attributes:
        counts: what was looked at: generations, slots, transactions, opening states, producers, partitions, runs, gaps.
        checked: how often each check was made.
        violations: the violations, MOST_SHOWN at most.
    """

    def __init__(self, slots: Mapping[int, Iterable[tuple[int, SlotState]]]) -> None:
        self.counts, self.checked = Counter[str](), Counter[str]()
        self.violations: list[Violation] = []
        self._slots = {number: _Slot(transactions(states)) for number, states in sorted(slots.items())}
        self._positions: dict[PartitionKey, Position] = {}  # the furthest ones, with their owners
        self._producers: set[int] = set()
        self._written: dict[tuple[str, int, str], list[tuple[int, int, int, int]]] = defaultdict(list)
        self._at = (0, 0)  # slot and offset of the transaction that is looked at

    def run(self) -> TraceAudit:
        """Reads the whole trace; returns this audit."""
        while numbers := [slot.following.state.generation for slot in self._slots.values() if slot.following]:
            self._generation(min(numbers))
        for (topic, partition, _), ranges in self._written.items():
            ranges.sort()
            for (start, end, _, _), (after, _, slot, offset) in pairwise(ranges):
                self._at = slot, offset
                self._expect(
                    "downstream offsets are given once",
                    after >= end,
                    f"offset {after} of {topic}-{partition} is in two runs; one of them is [{start}, {end})",
                )
        self.counts["partitions"] = len(self._positions)
        self.counts["slots"] = sum(slot.generation >= 0 for slot in self._slots.values())
        self.counts["producers"] = len(self._producers)
        return self

    # -- one generation -----------------------------------------------------------------------------

    def _generation(self, generation: int) -> None:
        self.counts["generations"] += 1
        known = dict(self._positions)
        begun = {number for number, slot in self._slots.items() if slot.generation >= 0}
        openings = {
            number: slot.take()
            for number, slot in self._slots.items()
            if slot.following is not None and slot.following.state.generation == generation > slot.generation
        }
        for number, one in openings.items():
            self._at = number, one.offset
            self._transaction(number, one)
        self._opening(generation, openings, known, {*range(self._count(openings))} | begun)
        for number, slot in self._slots.items():
            while slot.following is not None and slot.following.state.generation <= generation:
                one = slot.take()
                self._at = number, one.offset
                self._transaction(number, one)
                self._copied(number, one, openings, {*range(one.state.slots)} | begun)

    def _count(self, openings: Mapping[int, Transaction]) -> int:
        return max((one.state.slots for one in openings.values()), default=0)

    def _copied(self, number: int, one: Transaction, opened: Collection[int], needed: set[int]) -> None:
        """Checks a transaction that is not the first one of its generation in its slot."""
        self._expect(
            WHOLE, needed <= {*opened}, f"generation {one.state.generation} is not open in {sorted(needed - {*opened})}"
        )
        before = dict(self._positions)
        for position in one.state.positions:
            key = position.topic, position.partition
            self._expect(
                "a partition has one slot in a generation",
                position.slot == number and (key not in before or before[key].slot == number),
                f"the slot writes its position {position.upstream_next}, but slot "
                f"{before[key].slot if key in before else position.slot} owns it",
                key,
            )
            self._advance(one, before.get(key), position)
        owned = {(one.topic, one.partition) for one in one.state.positions}
        for key, position in before.items():
            if position.slot == number:
                self._expect(
                    "a state has every partition of its slot", key in owned, "the state has no position for it", key
                )

    def _opening(
        self,
        generation: int,
        openings: Mapping[int, Transaction],
        known: Mapping[PartitionKey, Position],
        needed: set[int],
    ) -> None:
        """Checks the first state of a generation in each slot against all that was committed before."""
        positions = {
            number: {(position.topic, position.partition): position for position in one.state.positions}
            for number, one in openings.items()
        }
        moved = {  # by the opening itself: only the owner's state has these
            key
            for there in positions.values()
            for key, position in there.items()
            if key not in known or _order(position) > _order(known[key])
        }
        is_whole = needed <= openings.keys()  # else its job has died, and an older one may still have copied
        for number, one in openings.items():
            self._at, there = (number, one.offset), positions[number]
            self.counts["opening states"] += 1
            self._expect(
                WHOLE, one.state.inferred or not one.state.runs, f"generation {generation} copies with its first state"
            )
            lacking = sorted(known.keys() - there.keys() - moved)
            self._expect(
                "an opening state has all positions",
                not (is_whole and lacking),
                f"generation {generation} opens without the positions of {len(lacking)} partitions, "
                f"{lacking[0] if lacking else ''} first",
            )
            for key, position in there.items():
                before = known.get(key)
                if before is not None:
                    self._expect(
                        "an opening state has the furthest positions",
                        not is_whole or _order(position) >= _order(before),
                        f"generation {generation} opens at {position.upstream_next} (incarnation "
                        f"{position.incarnation}), behind {before.upstream_next} (incarnation {before.incarnation})",
                        key,
                    )
                self._advance(one, before, position, is_opening=True)

    # -- one transaction ----------------------------------------------------------------------------

    def _transaction(self, number: int, one: Transaction) -> None:
        """Checks producer and generation against the transaction before in the same slot."""
        state, slot = one.state, self._slots[number]
        self.counts["transactions"] += 1
        self.counts.update({"runs": len(state.runs), "gaps": len(state.gaps)})
        self._expect(
            "a slot has one partition of the topic", state.slot == number, f"the state is one of slot {state.slot}"
        )
        self._expect(
            "generations only grow",
            state.generation >= slot.generation,
            f"generation {state.generation} follows {slot.generation}",
        )
        producer_id, epoch = slot.producer
        is_same = state.producer_id == producer_id
        self._expect(
            "each epoch has one transaction, and epochs only grow",
            state.producer_epoch > epoch if is_same else state.producer_id not in self._producers,
            f"producer {state.producer_id} with epoch {state.producer_epoch} follows producer {producer_id} with epoch "
            f"{epoch}",
        )
        slot.producer = state.producer_id, state.producer_epoch
        slot.generation = max(slot.generation, state.generation)
        self._producers.add(state.producer_id)
        for run in state.runs:
            self._run(number, one, run)

    def _run(self, number: int, one: Transaction, run: Run) -> None:
        lengths = {run.upstream_end - run.upstream_start, run.downstream_end - run.downstream_start, run.records}
        self._expect(
            "a run has as many offsets on both sides as records",
            len(lengths) == 1 and run.records > 0,
            f"[{run.upstream_start}, {run.upstream_end}) -> [{run.downstream_start}, {run.downstream_end}) has "
            f"{run.records} records",
            (run.topic, run.partition),
        )
        position = next((p for p in one.state.positions if (p.topic, p.partition) == (run.topic, run.partition)), None)
        log = position.target_topic_id if position else ""
        ranges = self._written[run.target_topic, run.target_partition, log]
        if ranges and ranges[-1][1:] == (run.downstream_start, number, one.offset):
            ranges[-1] = (ranges[-1][0], run.downstream_end, number, one.offset)
        else:
            ranges.append((run.downstream_start, run.downstream_end, number, one.offset))

    def _advance(self, one: Transaction, before: Position | None, after: Position, *, is_opening: bool = False) -> None:
        """Checks one partition's way from its position before to that behind the transaction."""
        key = after.topic, after.partition
        known = self._positions.get(key)
        if known is None or _order(after) >= _order(known):
            self._positions[key] = after
        else:
            self._positions[key] = replace(known, slot=after.slot)
        runs = [run for run in one.state.runs if (run.topic, run.partition) == key]
        gaps = [gap for gap in one.state.gaps if (gap.topic, gap.partition) == key]
        if one.state.inferred or (is_opening and before is not None and _order(after) <= _order(before)):
            return
        if before is not None:
            self._expect(
                "positions never go back, except by a reset",
                _order(after) >= _order(before) or any(gap.kind in RESETS for gap in gaps),
                f"the position goes from {before.upstream_next} (incarnation {before.incarnation}) to "
                f"{after.upstream_next} (incarnation {after.incarnation})",
                key,
            )
        self._covered(before, after, runs, gaps)
        self._downstream(before, after, runs, gaps)

    def _covered(self, before: Position | None, after: Position, runs: list[Run], gaps: list[Gap]) -> None:
        """Checks that runs and gaps lead from one position to the next, without a hole and without an overlap."""
        key, resets = (after.topic, after.partition), [gap for gap in gaps if gap.kind in RESETS]
        if before is not None:
            self._expect(
                "each reset begins one incarnation",
                after.incarnation == before.incarnation + len(resets),
                f"incarnation {after.incarnation} follows {before.incarnation} with {len(resets)} resets",
                key,
            )
        pieces = sorted(
            [(run.upstream_start, run.upstream_end) for run in runs]
            + [(gap.from_offset, gap.to_offset) for gap in gaps if gap.kind not in RESETS]
        )
        at = before.upstream_next if before is not None and not resets else (pieces or [(after.upstream_next, 0)])[0][0]
        for start, end in pieces:
            self._expect(
                "runs and gaps continue where the position stood",
                start == at,
                f"upstream offsets [{start}, {end}) follow {at}",
                key,
            )
            at = end
        self._expect(
            "the position is the end of the runs and gaps",
            at == after.upstream_next,
            f"runs and gaps end at {at}, and the position is {after.upstream_next}",
            key,
        )

    def _downstream(self, before: Position | None, after: Position, runs: list[Run], gaps: list[Gap]) -> None:
        """Checks that the offsets on the target only grow, except in a remote topic that was created anew."""
        is_new = before is None or any(gap.kind is GapKind.TARGET_RECREATED for gap in gaps)
        ends = {after.target_partition: 0 if is_new or before is None else before.downstream_next}
        for run in sorted(runs, key=lambda run: run.upstream_start):
            end = ends.get(run.target_partition, 0)
            self._expect(
                "downstream offsets only grow",
                run.downstream_start >= end,
                f"upstream offset {run.upstream_start} is at {run.downstream_start} on the target, before {end}",
                (after.topic, after.partition),
            )
            ends[run.target_partition] = run.downstream_end
        self._expect(
            "the position has the end of the last run",
            after.downstream_next == ends[after.target_partition],
            f"the last run ends at {ends[after.target_partition]}, and the position says {after.downstream_next}",
            (after.topic, after.partition),
        )

    def _expect(self, check: str, holds: bool, detail: str, key: PartitionKey = ("", -1)) -> None:
        self.checked[check] += 1
        if not holds:
            self.counts["violations"] += 1
            if len(self.violations) < MOST_SHOWN:
                slot, offset = self._at
                self.violations.append(Violation(check, slot, offset, detail, *key))


def _order(position: Position) -> tuple[int, int]:
    return position.incarnation, position.upstream_next
