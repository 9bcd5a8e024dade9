"""What happens in a run: everything is drawn from its seed, before the run begins.

The cells (kind of request and fault) are dealt out, some to each seed: those that runs have hit least, or a few in a
fixed order. Further faults are drawn freely.

Faults after which a connection is silent are in few seeds and come last, as nothing else happens to its requests for
half a minute.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mirrorlake.local.proxy.faults import Fault, Rule

from chaos.cells import CELLS, LOGIN, OLDER_EACH, SILENT, Cell, codes_of, most_skipped
from chaos.traffic import CODECS

CELLS_OF_A_SEED = 16
OF_A_KIND = 2  # of these, at most: other requests of the kind must pass, so that the jobs go on
SILENT_EACH, SILENT_CELLS = 4, 6  # each fourth seed has faults after which connections are silent: so many, at most
FREE_FAULTS = 4
FAULTS_S = 10.0  # or less, once all faults were made
SILENT_FROM_S = 5.0
AHEAD_EACH, AHEAD_CONNECTIONS = 3, 4  # each third seed reads a partition over several connections
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


# Without these, some kinds of requests are not sent again in time.
CAUSES: Mapping[str, Disturbance] = {
    **dict.fromkeys(("ApiVersions", *LOGIN, "FindCoordinator", "InitProducerId"), Disturbance.KILL_MIRROR),
    "CreateTopics": Disturbance.NEW_TOPIC,
    "CreatePartitions": Disturbance.NEW_PARTITIONS,
    "IncrementalAlterConfigs": Disturbance.NEW_CONFIG,
}
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
        cells: the cells that were dealt to it.
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
    cells: tuple[Cell, ...]
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


def scenario(seed: int, dealt: Sequence[Cell] | None = None, *, small: bool = False) -> Scenario:
    """Draws the scenario of a seed; always the same with the same cells.

    Args:
        seed: the seed.
        dealt: the cells; None for those that belong to the seed.
        small: True if there is no older target, and the target has one broker, which stays.
    """
    dice = random.Random(f"mirrorlake/{seed}")
    is_older = is_of_older(seed) and not small
    dealt = cells_of(seed, is_older=is_older) if dealt is None else dealt
    possible = [
        cell
        for cell in CELLS
        if cell.is_older in (None, is_older) and (may_be_silent(seed) or cell.fault not in SILENT)
    ]
    free = dice.sample(possible, FREE_FAULTS)
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
        cells=tuple(dealt),
        rules={side: tuple(given) for side, given in rules.items()},
        events=tuple(sorted(_events(dice, dealt, is_alone=is_older or small), key=lambda event: event.at_s)),
    )


def is_of_older(seed: int) -> bool:
    """Returns True for a seed whose target has the transaction protocol of Kafka 3."""
    return seed % OLDER_EACH == 0


def reads_ahead(seed: int) -> bool:
    """Returns True for a seed whose partitions are read over several connections, in small responses."""
    return seed % AHEAD_EACH == 1


def may_be_silent(seed: int) -> bool:
    """Returns True for a seed with faults after which connections are silent. It takes half a minute longer."""
    return seed % SILENT_EACH == 0


def chosen(cells: Sequence[Cell], seed: int, *, is_older: bool) -> list[Cell]:
    """Returns the first cells that one seed can have; silent ones first, where it can have these."""
    found, kinds = list[Cell](), Counter[tuple[str, str]]()
    left = SILENT_CELLS if may_be_silent(seed) else 0
    for cell in sorted(cells, key=lambda cell: cell.fault not in SILENT):
        is_silent, kind = cell.fault in SILENT, (cell.side, cell.api)
        has_room = len(found) < CELLS_OF_A_SEED and kinds[kind] < (CELLS_OF_A_SEED if cell.is_older else OF_A_KIND)
        if cell.is_older in (None, is_older) and left >= is_silent and has_room:
            kinds[kind] += 1
            found.append(cell)
            left -= is_silent
    return found


def cells_of(seed: int, *, is_older: bool) -> list[Cell]:
    """Returns the cells that belong to a seed, in a fixed order."""
    silent = [cell for cell in CELLS if cell.fault in SILENT]
    others = [cell for cell in CELLS if cell.fault not in SILENT]
    turned = [*_turned(silent, seed // SILENT_EACH * SILENT_CELLS), *_turned(others, seed * CELLS_OF_A_SEED)]
    return chosen(sorted(turned, key=lambda cell: not cell.is_older), seed, is_older=is_older)


def _turned(cells: list[Cell], by: int) -> list[Cell]:
    first = by % len(cells)
    return [*cells[first:], *cells[:first]]


def _rule(cell: Cell, dice: random.Random) -> Rule:
    most = most_skipped(cell)
    delays = {Fault.THROTTLED: PAUSES_MS, Fault.LATE: LATE_MS, Fault.DOUBLED: LATE_MS}.get(cell.fault, DELAYS_MS)
    return Rule(
        cell.api,
        cell.fault,
        skip=dice.randint(0, min(1, most) if cell.fault in SILENT else most),
        delay_ms=dice.choice(delays),
        code=dice.choice(codes_of(cell)),
        pick=dice.randrange(1 << 20),
    )


def _events(dice: random.Random, cells: Sequence[Cell], *, is_alone: bool) -> Iterator[Event]:
    causes = {(CAUSES[cell.api], cell.fault in SILENT) for cell in cells if cell.api in CAUSES}
    for what, is_silent in sorted(causes):
        begin = SILENT_FROM_S if is_silent else 0.5
        yield Event(dice.uniform(begin + 0.1, begin + 1.5), what, dice.randrange(1 << 16))
    possible = [one for one in Disturbance if not (is_alone and one in OF_TWO_BROKERS)]
    for what in dice.sample(possible, dice.randint(1, 4)):
        yield Event(dice.uniform(1.0, FAULTS_S - 1), what, dice.randrange(1 << 16))
    if dice.random() < 0.5:
        yield Event(dice.uniform(0.2, FAULTS_S - 1), Disturbance.KILL_MIRROR, dice.randrange(1 << 16))
