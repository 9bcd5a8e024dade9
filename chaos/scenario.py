"""What happens in a run: everything is drawn from its seed, before the run begins.

The cells (kind of request and fault) are dealt out in a fixed order, a few to each seed, so that consecutive seeds
reach all of them. Further faults are drawn freely.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from mirrorlake.local.proxy.faults import Fault, Rule

from chaos.cells import CELLS, OLDER_EACH, Cell, codes_of, most_skipped
from chaos.traffic import CODECS

CELLS_OF_A_SEED = 10
FREE_FAULTS = 4
FAULTS_S = 8.0
DELAYS_MS = (50, 300, 1_500, 3_000)
PAUSES_MS = (50, 500, 1_500)
LATE_MS = (200, 1_000, 3_000)


class Disturbance(StrEnum):
    """What happens to processes and lines, besides the faults of single requests."""

    KILL_MIRROR = "kill_mirror"  # and start it again
    SECOND_MIRROR = "second_mirror"  # beside the first
    KILL_CHECKPOINT = "kill_checkpoint"
    RESTART_BROKER = "restart_broker"  # of the target, cleanly
    CRASH_BROKER = "crash_broker"  # of the target, by SIGKILL
    FREEZE_BROKER = "freeze_broker"  # SIGSTOP for a few seconds
    MOVE_LEADERS = "move_leaders"  # of the target's topics
    CUT_ALL = "cut_all"  # all connections of a side
    SILENCE = "silence"  # of a side, for a few seconds
    SLOW_LINE = "slow_line"  # until the end of the faults
    NEW_TOPIC = "new_topic"
    NEW_PARTITIONS = "new_partitions"
    NEW_CONFIG = "new_config"


# A target of one broker is not to be without any for as long as one starts.
OF_TWO_BROKERS = {Disturbance.RESTART_BROKER, Disturbance.CRASH_BROKER, Disturbance.MOVE_LEADERS}


@dataclass(frozen=True)
class Event:
    """A disturbance at a time after the start of the jobs; `number` draws its details."""

    at_s: float
    what: Disturbance
    number: int


@dataclass(frozen=True)
class Scenario:
    """One run.

    Attributes:
        seed: what everything else is drawn from.
        is_older: True for the target with the transaction protocol of Kafka 3.
        rules: the faults of single requests, by side.
        events: what happens to processes and lines, in order.
    """

    seed: int
    is_older: bool
    slots: int
    partitions: int
    codec: str
    size_bytes: int
    transactional: float
    rules: Mapping[str, tuple[Rule, ...]]
    events: tuple[Event, ...]

    def lines(self) -> Iterator[str]:
        """Yields the plan in words, for a log."""
        yield (
            f"target {'older' if self.is_older else 'of this release'}, slots {self.slots}, partitions "
            f"{self.partitions}, {self.codec}, {self.size_bytes} B, transactional {self.transactional}"
        )
        for side, rules in self.rules.items():
            for rule in rules:
                details = f"delay_ms={rule.delay_ms} code={rule.code} pick={rule.pick}"
                yield f"{side}: {rule.api} number {rule.skip} is {rule.fault} ({details})"
        for event in self.events:
            yield f"{event.at_s:.1f} s: {event.what} ({event.number})"


def scenario(seed: int, *, small: bool = False) -> Scenario:
    """Draws the scenario of a seed; always the same.

    Args:
        seed: the seed.
        small: True if there is no older target, and the target has one broker, which stays.
    """
    dice = random.Random(f"mirrorlake/{seed}")
    is_older = seed % OLDER_EACH == 0 and not small
    dealt = cells_of(seed, is_older=is_older)
    free = dice.sample([cell for cell in CELLS if cell.is_older in (None, is_older)], FREE_FAULTS)
    rules: dict[str, list[Rule]] = {"source": [], "target": []}
    for cell in [*dealt, *free]:
        rules[cell.side].append(_rule(cell, dice))
    return Scenario(
        seed=seed,
        is_older=is_older,
        slots=dice.choice([1, 2, 3]),
        partitions=dice.choice([1, 2, 4]),
        codec=dice.choice(CODECS),
        size_bytes=dice.choice([10, 200, 3_000]),
        transactional=dice.choice([0.0, 0.3, 0.8]),
        rules={side: tuple(given) for side, given in rules.items()},
        events=tuple(sorted(_events(dice, is_alone=is_older or small), key=lambda event: event.at_s)),
    )


def cells_of(seed: int, *, is_older: bool) -> list[Cell]:
    """Returns the cells that are dealt to a seed, of those that its target has."""
    mine = [cell for cell in CELLS if bool(cell.is_older) == is_older]
    turn = seed // OLDER_EACH if is_older else seed - seed // OLDER_EACH - 1
    first = turn * CELLS_OF_A_SEED
    return [mine[(first + step) % len(mine)] for step in range(min(CELLS_OF_A_SEED, len(mine)))]


def _rule(cell: Cell, dice: random.Random) -> Rule:
    delays = {Fault.THROTTLED: PAUSES_MS, Fault.LATE: LATE_MS, Fault.DOUBLED: LATE_MS}.get(cell.fault, DELAYS_MS)
    return Rule(
        cell.api,
        cell.fault,
        skip=dice.randint(0, most_skipped(cell)),
        delay_ms=dice.choice(delays),
        code=dice.choice(codes_of(cell)),
        pick=dice.randrange(1 << 20),
    )


def _events(dice: random.Random, *, is_alone: bool) -> Iterator[Event]:
    possible = [one for one in Disturbance if not (is_alone and one in OF_TWO_BROKERS)]
    for what in dice.sample(possible, dice.randint(1, 4)):
        yield Event(dice.uniform(1.0, FAULTS_S - 1), what, dice.randrange(1 << 16))
    if dice.random() < 0.5:
        yield Event(dice.uniform(0.2, FAULTS_S - 1), Disturbance.KILL_MIRROR, dice.randrange(1 << 16))
