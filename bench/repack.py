"""The rate at which batches are decoded and re-encoded, per second of CPU time of one core, for each codec.

Batches that can't pass unopened take this way. kafka-python's own decoder and encoder are measured beside it.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable

from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder
from mirrorlake.protocol.batches.record_batch import Batch, read_log
from mirrorlake.protocol.batches.records import CODECS, pack, read_records

RECORDS, SIZE_BYTES, AT_ONCE = 100_000, 512, 100


def batches(codec: int) -> list[Batch]:
    """Makes the batches of a log."""
    dice = random.Random(1)
    made = b""
    for base in range(0, RECORDS, AT_ONCE):
        builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
        for number in range(AT_ONCE):
            builder.append(number, 1_790_000_000_000 + number, b"key", (dice.randbytes(SIZE_BYTES // 4) * 4), [])
        raw = bytearray(builder.build())
        struct.pack_into(">q", raw, 0, base)
        made += raw
    return list(read_log(made))


def ours(batch: Batch, codec: int) -> None:
    """Re-encodes a batch with `protocol/batches/records.py`."""
    pack(list(read_records(batch)), codec)


def theirs(batch: Batch, codec: int) -> None:
    """Re-encodes a batch with kafka-python."""
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 30)
    for number, record in enumerate(MemoryRecords(bytes(batch.raw)).next_batch()):
        builder.append(number, record.timestamp, record.key, record.value, record.headers)
    builder.build()


def rate(repack: Callable[[Batch, int], None], log: list[Batch], codec: int) -> float:
    """Returns records per second of CPU time."""
    began = time.process_time()
    for batch in log:
        repack(batch, codec)
    return RECORDS / (time.process_time() - began)


if __name__ == "__main__":
    print(
        f"{RECORDS:,} records of {SIZE_BYTES} B, {AT_ONCE} to a batch; records/s of CPU time: records.py, kafka-python"
    )
    for name, codec in CODECS.items():
        log = batches(codec)
        print(f"  {name:<7}{rate(ours, log, codec):>12,.0f}{rate(theirs, log, codec):>12,.0f}")
