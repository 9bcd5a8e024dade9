"""The CPU time of one core that a record takes where batches are opened and packed anew, for each codec.

Batches that can't pass unopened are opened one by one, by `records.py`; small ones are merged, by `merging.py`.
kafka-python's own decoder and encoder are measured beside them. The figures that decide what is merged, in
`jobs/mirror/copy/small_batches.py`, come from these.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from crc32c import crc32c
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder
from mirrorlake.jobs.mirror.copy.partition_copy import PACK_BYTES
from mirrorlake.protocol.batches.codecs import CODECS
from mirrorlake.protocol.batches.merging import headers, join
from mirrorlake.protocol.batches.record_batch import CRC_FROM, FetchedLog
from mirrorlake.protocol.batches.records import MOST_BYTES, Record, pack, read_records

from bench.load import VALUES, values_of

RECORDS, SIZE_BYTES, TRIES = 16_000, 512, 3
AT_ONCE = (1, 8, 32, 100)


def log_of(codec: int, at_once: int) -> FetchedLog:
    """Makes a log of batches with that many records each."""
    made, values = bytearray(), values_of(SIZE_BYTES)
    for base in range(0, RECORDS, at_once):
        builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
        for number in range(at_once):
            value = values[(base + number) % VALUES]
            builder.append(number, 1_790_000_000_000 + base // 10, b"%d" % (base + number), value, [])
        raw = bytearray(builder.build())
        struct.pack_into(">q", raw, 0, base)
        made += raw
    return FetchedLog(made)


def merged(log: FetchedLog, _: int) -> None:
    """Merges batches as the copying task does, with their CRCs verified."""
    rows, at = headers(log), 0
    assert rows is not None
    found = [crc32c(log.view[start + CRC_FROM : end]) for start, end in zip(log.bounds, log.bounds[1:], strict=False)]
    assert rows["crc"].tolist() == found
    while at < len(log):
        joined = join(log, rows, range(at, len(log)), MOST_BYTES, PACK_BYTES)
        at += joined.batches
        list(joined.packed(float("inf")))


def one_by_one(log: FetchedLog, codec: int) -> None:
    """Opens batches with `records.py`, and packs their records together."""
    loose: list[Record] = []
    for batch in log:
        assert batch.crc_is_right
        loose += read_records(batch)
        if len(loose) * SIZE_BYTES >= PACK_BYTES:
            pack(loose, codec)
            loose.clear()
    if loose:
        pack(loose, codec)


def theirs(log: FetchedLog, codec: int) -> None:
    """Opens batches with kafka-python, and packs their records together."""
    builder, count = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 30), 0
    for batch in log:
        for record in MemoryRecords(bytes(batch.raw)).next_batch():
            builder.append(count, record.timestamp, record.key, record.value, record.headers)
            count += 1
        if count * SIZE_BYTES >= PACK_BYTES:
            builder.build()
            builder, count = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 30), 0
    if count:
        builder.build()


def cost_us(repack: Callable[[FetchedLog, int], None], log: FetchedLog, codec: int) -> float:
    """Returns the CPU time of a record in µs, in the best of a few tries."""
    tries = []
    for _ in range(TRIES):
        began = time.process_time()
        repack(log, codec)
        tries.append(time.process_time() - began)
    return min(tries) / RECORDS * 1e6


if __name__ == "__main__":
    print(f"{RECORDS:,} records of {SIZE_BYTES} B; µs of CPU time a record: merged, one by one, by kafka-python")
    for name, codec in CODECS.items():
        for at_once in AT_ONCE:
            log = log_of(codec, at_once)
            costs = (cost_us(way, log, codec) for way in (merged, one_by_one, theirs))
            print(f"  {name:<7}{at_once:>4} in a batch" + "".join(f"{cost:>8.2f}" for cost in costs))
