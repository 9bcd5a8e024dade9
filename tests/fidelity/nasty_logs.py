"""Generated logs with unusual contents.

They have batches of every codec and size, transactions that overlap, abort or stay open, and unusual values and
timestamps. kafka-python encodes them, whose encoder this project does not use for data. They are produced
unchanged, batch by batch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder
from mirrorlake.protocol import transaction
from mirrorlake.protocol.cluster import Cluster

TIMEOUT_MS = 30_000
LARGE_BYTES = (900_000, 2_500_000)
NEWEST_TIMESTAMP = 1_790_000_000_000  # brokers reject timestamps more than an hour ahead


@dataclass(frozen=True)
class Content:
    """One record. `large` is the number of bytes of a value that doesn't compress."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int
    large: int = 0

    def bytes(self) -> bytes | None:
        if not self.large:
            return self.value
        block = hashlib.sha512(repr(self).encode()).digest()
        return b"".join(hashlib.sha512(block + at.to_bytes(4)).digest() for at in range(self.large // 64))


@dataclass(frozen=True)
class Written:
    """One batch to one partition; `writer` 0 is no transactional producer, others are."""

    partition: int
    codec: int
    writer: int
    contents: tuple[Content, ...]


@dataclass(frozen=True)
class Ended:
    """The end of a producer's open transaction, if it has one."""

    writer: int
    commit: bool


@dataclass(frozen=True)
class NastyLog:
    """A topic and the steps that write it; the flow runs once after `pause` steps, and again at the end."""

    partitions: int
    is_stamped: bool
    is_compacted: bool
    is_filtered: bool
    steps: tuple[Written | Ended, ...]
    pause: int

    @property
    def records(self) -> int:
        """The number of records that are written, of aborted transactions too."""
        return sum(len(step.contents) for step in self.steps if isinstance(step, Written))

    def config(self) -> dict[str, str]:
        config = {"retention.ms": "-1", "max.message.bytes": "40000000"}
        if self.is_stamped:
            config["message.timestamp.type"] = "LogAppendTime"
        if self.is_compacted:
            config |= {
                "cleanup.policy": "compact",
                "segment.ms": "50",
                "min.cleanable.dirty.ratio": "0.01",
                "max.compaction.lag.ms": "50",
                "delete.retention.ms": "60000",
            }
        return config


texts = st.text(st.characters(codec="utf-8"), max_size=8)
blobs = st.one_of(
    st.none(), st.just(b""), st.binary(max_size=40), st.sampled_from([b"a" * 3_000, b"\x00", b"\xff" * 7])
)
keys = st.one_of(st.none(), st.just(b""), st.sampled_from([b"k1", b"k2", b"k3"]), st.binary(max_size=6))
timestamps = st.one_of(st.sampled_from([-1, 0, 1, NEWEST_TIMESTAMP]), st.integers(0, NEWEST_TIMESTAMP))
contents = st.builds(
    Content,
    keys,
    blobs,
    st.lists(st.tuples(st.one_of(texts, st.just("twice")), blobs), max_size=3).map(tuple),
    timestamps,
    st.one_of(*[st.just(0)] * 60, st.sampled_from(LARGE_BYTES)),
)


@st.composite
def nasty_logs(draw: st.DrawFn) -> NastyLog:
    partitions = draw(st.integers(1, 2))
    is_compacted = draw(st.integers(0, 5)) == 5
    written = st.builds(
        Written,
        st.integers(0, partitions - 1),
        st.integers(0, 4),
        st.sampled_from([0, 0, 1, 2]),
        st.lists(contents, min_size=1, max_size=draw(st.sampled_from([1, 4, 12]))).map(tuple),
    )
    ended = st.builds(Ended, st.integers(1, 2), st.booleans())
    steps = draw(st.lists(st.one_of(written, written, ended), min_size=4, max_size=16))
    if is_compacted:  # brokers reject records without a key in compacted topics
        steps = [_with_keys(step) if isinstance(step, Written) else step for step in steps]
    return NastyLog(
        partitions,
        draw(st.booleans()) and draw(st.booleans()),
        is_compacted,
        draw(st.integers(0, 4)) == 4,
        tuple(steps),
        draw(st.integers(0, len(steps))),
    )


def _with_keys(step: Written) -> Written:
    return Written(
        step.partition,
        step.codec,
        step.writer,
        tuple(
            Content(content.key or b"k", content.value, content.headers, content.timestamp, content.large)
            for content in step.contents
        ),
    )


@dataclass
class Author:
    """Writes a nasty log into a topic."""

    cluster: Cluster
    topic: str
    _producers: dict[int, transaction.Producer] = field(default_factory=dict)
    _sequences: dict[tuple[int, int], int] = field(default_factory=dict)

    def write(self, step: Written | Ended) -> None:
        if isinstance(step, Ended):
            self._end(step.writer, step.commit)
        else:
            producer = self._producer(step.writer)
            self.cluster.net.run(lambda: self._produce(step, producer))

    def end_all(self, *, commit: bool) -> None:
        for writer in list(self._producers):
            self._end(writer, commit)

    def _end(self, writer: int, commit: bool) -> None:
        producer = self._producers.pop(writer, None)
        if producer is not None:
            transaction.end(self.cluster, producer, commit=commit, timeout_ms=TIMEOUT_MS)
            self._sequences = {key: value for key, value in self._sequences.items() if key[0] != writer}

    def _producer(self, writer: int) -> transaction.Producer:
        if writer == 0:
            return transaction.Producer("", -1, -1)
        if writer not in self._producers:
            self._producers[writer] = transaction.begin(self.cluster, f"{self.topic}-{writer}", 600_000, TIMEOUT_MS)
        return self._producers[writer]

    async def _produce(self, step: Written, producer: transaction.Producer) -> None:
        sequence = self._sequences.get((step.writer, step.partition), 0)
        base_sequence = sequence if step.writer else -1
        builder = DefaultRecordBatchBuilder(
            2, step.codec, bool(step.writer), producer.producer_id, producer.producer_epoch, base_sequence, 1 << 26
        )
        for number, content in enumerate(step.contents):
            assert (
                builder.append(number, content.timestamp, content.key, content.bytes(), list(content.headers))
                is not None
            )
        self._sequences[step.writer, step.partition] = sequence + len(step.contents)
        key = (self.topic, step.partition)
        response = await self.cluster.produce(
            self.cluster.leader(*key), producer.transactional_id or None, {key: bytes(builder.build())}, TIMEOUT_MS
        )
        ((_, _),) = self.cluster.produced(response)
