"""What the states of many partitions cost: bytes on the target each day, and the time of a start.

The sizes are simulated: the records of one slot are encoded as a job writes them, and read again. Partitions have
rates that differ (log-normal, 33 records/s in the middle), and have run for two days. The starts are real, against one
broker.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from mirrorlake.config.flow import Flow
from mirrorlake.model.changes import as_snapshot, as_written, whole
from mirrorlake.model.run import Run
from mirrorlake.model.slot import NO_SLOT, Position, SlotState, merge_positions
from mirrorlake.state.generation import Beginning, begin_generation
from mirrorlake.state.offset_syncs import TOPIC_CONFIG, encode, read_states

from bench.clusters import connected

PER_TOPIC = 25  # partitions
# Partitions, those that get records each second, slots, seconds.
ACTIVE = ((10_000, 10_000, 4, 60), (10_000, 500, 4, 512), (10_000, 500, 8, 512))
STARTS = ((300, 10_000), (64, 45_000))  # slots, partitions
MARKER_BYTES = 78  # of the commit, in the slot's partition of the offset-syncs topic
DAY_S, DAYS = 86_400, 2
TIMEOUT_MS = 60_000


@dataclass
class Traffic:
    """The partitions of one slot, and what a micro-batch each second copies of them."""

    dice: random.Random
    partitions: int
    slots: int

    def __post_init__(self) -> None:
        self.now_ms = 1_763_889_061_000
        self.positions = {
            (position.topic, position.partition): position for position in positions(self.partitions, self.dice)
        }
        self.rates = {key: self.dice.lognormvariate(3.5, 1) for key in self.positions}

    def second(self, active: int) -> list[Run]:
        """Moves that many partitions, drawn anew; returns their runs."""
        self.now_ms += 1_000
        return [self._run(key) for key in sorted(self.dice.sample([*self.positions], active))]

    def _run(self, key: tuple[str, int]) -> Run:
        before, dice = self.positions[key], self.dice
        records = max(1, round(dice.gauss(self.rates[key], math.sqrt(self.rates[key]))))
        start, down = before.upstream_next, before.downstream_next + 1  # behind a marker
        self.positions[key] = replace(before, upstream_next=start + records, downstream_next=down + records)
        between = max(5, 1_000 // records)
        return Run(
            *key,
            before.target_topic,
            before.target_partition,
            upstream_start=start,
            upstream_end=start + records,
            downstream_start=down,
            downstream_end=down + records,
            records=records,
            bytes=sum(dice.randrange(400, 600) for _ in range(records)),
            first_timestamp=self.now_ms - 1_000 - dice.randrange(between),
            last_timestamp=self.now_ms - 100 - dice.randrange(between),
            digest=dice.getrandbits(32),
        )


def positions(partitions: int, dice: random.Random, slot: int = 0) -> Iterator[Position]:
    """Yields positions of partitions that have been mirrored for DAYS."""
    for number in range(partitions):
        topic, partition = f"orders-{number // PER_TOPIC}", number % PER_TOPIC
        copied = int(dice.lognormvariate(3.5, 1) * DAYS * DAY_S)
        yield Position(
            topic,
            partition,
            f"{hash(topic) % 2**64:022d}"[-22:],
            f"west.{topic}",
            partition,
            upstream_next=copied,
            downstream_next=copied + DAYS * DAY_S + dice.randrange(3),
            slot=slot,
            leader_epoch=dice.randrange(5),
            target_topic_id=f"{hash(topic) % 2**61:022d}"[-22:],
            epoch_from=dice.randrange(10**6),
        )


def sizes(partitions: int, active: int, slots: int, seconds: int) -> dict[str, Any]:
    """Measures what the states of a flow take on the target, before replication."""
    traffic = Traffic(random.Random(partitions + active), partitions // slots, slots)
    state = SlotState(
        source="west",
        target="east",
        source_cluster_id="c291cmNlLWNsdXN0ZXItaQ",
        slot=0,
        slots=slots,
        generation=4,
        transactional_id="mirrorlake.west.east.slot-0",
        producer_id=4711,
        producer_epoch=0,
        positions=tuple(traffic.positions.values()),
    )
    before, written_bytes, runs, snapshots = as_snapshot(0, state), 0, 0, 0
    for second in range(1, seconds + 1):
        moved = traffic.second(active // slots)
        state = replace(
            state,
            positions=tuple(traffic.positions.values()),
            runs=tuple(moved),
            producer_epoch=second,
            producer_ids=before.all_producer_ids,
            created_ms=traffic.now_ms,
        )
        record = as_written(before, state)
        written_bytes += len(encode(record, 0)) + MARKER_BYTES
        runs, snapshots = runs + len(moved), snapshots + (not record.number)
        offset, again = 2 * second, SlotState.from_json(record.to_json())
        before = whole("offset-syncs", before, [(offset, again)]) if record.number else as_snapshot(offset, again)
        assert before.positions == state.positions, "a state came back as another one"
    return {
        "partitions": partitions,
        "active": active,
        "slots": slots,
        "bytes_per_run": round(written_bytes / runs, 1),
        "GB_per_day": round(written_bytes * slots * DAY_S / seconds / 1e9, 2),
        "seconds_per_snapshot": round(seconds / snapshots) if snapshots else seconds,
    }


def start(servers: str, directory: Path, slots: int, partitions: int) -> dict[str, Any]:
    """Measures how long a job takes to open a generation of that many slots and partitions, and to read it again."""
    alias = f"g{slots}"
    config = directory / f"{alias}.properties"
    config.write_text(
        f"clusters = {alias}, t\n{alias}.bootstrap.servers = {servers}\nt.bootstrap.servers = {servers}\n"
        f"{alias}->t.enabled = true\ntopics = orders.*\n"
    )
    flow = Flow.load(config, f"{alias}->t")
    topic, admin = (
        NewTopic(flow.offset_syncs_topic, slots, 1, config=TOPIC_CONFIG),
        AdminClient({"bootstrap.servers": servers}),
    )
    admin.create_topics([topic])[flow.offset_syncs_topic].result()
    known = tuple(positions(partitions, random.Random(1), NO_SLOT))
    found: dict[str, Any] = {"slots": slots, "partitions": partitions}

    def timed(name: str, work: Any) -> Any:
        began = time.monotonic()
        result = work()
        found[name] = round(time.monotonic() - began, 2)
        return result

    for name in ("first_start_s", "start_s"):
        with connected(servers, "target") as target:
            timed(name, partial(begin_generation, flow, "", target, slots, lambda _: Beginning(positions=known)))
    with connected(servers, "target") as target:
        target.refresh([flow.offset_syncs_topic], TIMEOUT_MS)
        for name in ("read_s", "read_again_s"):
            states = timed(name, partial(read_states, target, flow.offset_syncs_topic, range(slots), TIMEOUT_MS))
        timed("merge_s", partial(merge_positions, states.values()))
    assert len(merge_positions(states.values())) == partitions
    return found
