"""What one seed of `make chaos-failover` does: drawn before anything starts, the same for the same seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum

ORDERS, PAYMENTS, JOBS, RESULTS = (
    "orders",
    "payments",
    "jobs",
    "results",
)  # jobs and results: a copier's input and output
TASK_STEPS = ("task.initialised", "task.compared", "task.producing", "task.copied", "task.written")
DRIVER_STEPS = ("driver.planned", "driver.copied", "driver.gated", "driver.committing", "driver.committed")
CYCLE_STEPS = ("cycle.begun", "cycle.read", "cycle.synced", "cycle.recorded")  # at the third one, the job dies, too
COMMITTING, TRAFFIC = "client.committing", "traffic"


class Ending(StrEnum):
    """How the groups leave the source."""

    DEAD = "dead"  # the source is killed, and the flow failed over
    PLANNED = "planned"  # everybody stops, and the flow is promoted
    FAILBACK = "failback"  # as DEAD; then the source comes back, and the groups return


class ClientKind(StrEnum):
    """Programs that consume."""

    LIBRDKAFKA = "librdkafka"
    JAVA = "java"
    VERIFIABLE = "verifiable"  # Kafka's VerifiableConsumer: commits synchronously after each poll, never goes back


@dataclass(frozen=True)
class GroupDraw:
    """One consumer group.

    Attributes:
        name: name behind the alias of the flow.
        kind: its program.
        topics: topics that it reads; a VerifiableConsumer reads one.
        members: number of its processes.
        protocol: `classic`, or `consumer` (KIP-848).
        batch: most records of a poll.
        every: polls from one commit to the next.
        is_async: True to commit without waiting for the answer.
        rewinds: probability of going back after a poll.
        pause_ms: time from one poll to the next.
    """

    name: str
    kind: ClientKind
    topics: tuple[str, ...]
    members: int
    protocol: str
    batch: int
    every: int
    is_async: bool
    rewinds: float
    pause_ms: int


@dataclass(frozen=True)
class CopierDraw:
    """A TransactionalMessageCopier from topic jobs to topic results."""

    transaction_size: int
    has_aborts: bool
    joins_group: bool  # False to assign its partition itself


@dataclass(frozen=True)
class Story:
    """One seed.

    Attributes:
        seed: the seed.
        ending: how the groups leave the source.
        keeps_names: True for IdentityReplicationPolicy, False for DefaultReplicationPolicy.
        partitions: number of partitions by topic.
        slots: number of slots of the flow.
        groups: consumer groups.
        copier: the copier; None for none.
        verifiable_producer: True if Kafka's VerifiableProducer writes to orders, too.
        aborts: probability that a transaction of the producer of payments is aborted.
        pause_ms: pause of the producers after 20 records.
        mirror_s: interval of the mirror job.
        checkpoint_s: interval of the checkpoint job.
        rests: job that stops a while before the source dies: `mirror`, `checkpoint`, or none.
        moment: step at which the source dies.
        number: how often the step is reached before.
        linger_ms: how long the clients live on without the source.
    """

    seed: int
    ending: Ending
    keeps_names: bool
    partitions: dict[str, int]
    slots: int
    groups: tuple[GroupDraw, ...]
    copier: CopierDraw | None
    verifiable_producer: bool
    aborts: float
    pause_ms: int
    mirror_s: float
    checkpoint_s: float
    rests: str
    moment: str
    number: int
    linger_ms: int

    def __str__(self) -> str:
        kinds = ",".join(sorted(group.kind for group in self.groups)) + (",copier" if self.copier else "")
        rests = f" {self.rests} rests" if self.rests else ""
        at = "" if self.ending is Ending.PLANNED else f" at {self.moment}:{self.number}"
        return f"{self.ending}{at}{rests} [{kinds}]"


def draw(seed: int, ending: Ending | None = None) -> Story:
    """Draws the story of a seed, with this ending if one is given."""
    dice = random.Random(f"failover {seed}")
    drawn = dice.choices((Ending.DEAD, Ending.PLANNED, Ending.FAILBACK), (7, 2, 1))[0]
    ending = ending or drawn
    rests = dice.choices(("", "mirror", "checkpoint"), (3, 1, 1))[0]
    steps = [*DRIVER_STEPS, *TASK_STEPS] * (rests != "mirror"), [*CYCLE_STEPS] * (rests != "checkpoint")
    moments = [dice.choice(those) for those in steps if those] + [COMMITTING, TRAFFIC]
    drawn_copier = CopierDraw(dice.choice((5, 20, 100)), dice.random() < 0.5, dice.random() < 0.5)
    copier = drawn_copier if dice.random() < 0.6 else None
    # A copier may repeat records after a move, so that values do not tell records apart on the way home.
    readable = [ORDERS, PAYMENTS, JOBS, *([RESULTS] if copier and ending is not Ending.FAILBACK else [])]
    kinds = dice.sample([*ClientKind, *ClientKind], dice.randint(2, 4))
    return Story(
        seed=seed,
        ending=ending,
        keeps_names=ending is Ending.FAILBACK or dice.random() < 0.5,
        partitions={ORDERS: dice.randint(1, 4), PAYMENTS: dice.randint(1, 3), JOBS: 1, RESULTS: 1},
        slots=dice.randint(1, 3),
        groups=tuple(_group(dice, number, kind, readable) for number, kind in enumerate(kinds)),
        copier=copier,
        verifiable_producer=dice.random() < 0.4,
        aborts=dice.choice((0.0, 0.2, 0.5)),
        pause_ms=dice.choice((50, 100, 200)),
        mirror_s=dice.choice((0.2, 0.5, 1.5)),
        checkpoint_s=dice.choice((0.3, 1.0, 3.0)),
        rests=rests,
        moment=dice.choice(moments),
        number=dice.randint(1, 3),
        linger_ms=dice.choice((0, 0, 300)),
    )


def _group(dice: random.Random, number: int, kind: ClientKind, readable: list[str]) -> GroupDraw:
    topics = tuple(dice.sample(readable, 1 if kind is ClientKind.VERIFIABLE else dice.randint(1, 2)))
    is_plain = kind is ClientKind.VERIFIABLE
    return GroupDraw(
        name=f"g{number}",
        kind=kind,
        topics=topics,
        members=1 if is_plain else dice.choice((1, 1, 2)),
        protocol=dice.choice(("classic", "consumer")),
        batch=dice.choice((10, 100) if is_plain else (1, 10, 100)),
        every=1 if is_plain else dice.choice((1, 3, 10)),
        is_async=not is_plain and dice.random() < 0.5,
        rewinds=0.0 if is_plain else dice.choice((0.0, 0.0, 0.1)),
        pause_ms=0 if is_plain else dice.choice((5, 10, 30)),
    )


def small(seed: int) -> Story:
    """Draws a story for `make test`: a dead source, a group of librdkafka and one of the Java client, and a copier."""
    story = draw(seed, Ending.DEAD)
    dice = random.Random(f"small {seed}")
    groups = (
        replace(_group(dice, 0, ClientKind.LIBRDKAFKA, [ORDERS, PAYMENTS]), members=1, rewinds=0.1),
        _group(dice, 1, ClientKind.VERIFIABLE, [ORDERS, RESULTS]),
    )
    copier = story.copier or CopierDraw(5, has_aborts=True, joins_group=True)
    return replace(story, groups=groups, copier=copier, verifiable_producer=False, rests="")
