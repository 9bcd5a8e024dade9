"""Decides which batches of a Fetch response are merged into large ones, by what each way costs.

A batch that passes unopened costs the same CPU time whatever it holds: a Produce request has one batch of a partition,
and both the task and the target have work with each. A batch that is merged costs time for its records and bytes. So
small batches are merged, and large ones pass unopened; where the line is depends on the codec. `bench/repack.py`
measures the figures.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from mirrorlake.protocol.batches.codecs import CODEC, GZIP, LZ4, NONE, SNAPPY, ZSTD
from mirrorlake.protocol.batches.merging import Booleans, Numbers, headers
from mirrorlake.protocol.batches.record_batch import CRC_FROM, TIMESTAMP_TYPE, TRANSACTIONAL, FetchedLog

PASSED_US = 60.0  # of CPU time for a batch that passes unopened: the task's, and the target's
MERGED_US = 200.0  # for a group of batches, whatever its size
BATCH_US, RECORD_US = 1.0, 0.5  # for each batch and record that is merged
BYTES_US = np.full(CODEC + 1, np.inf)  # for each byte of a batch as it is compressed, by codec
BYTES_US[[NONE, GZIP, SNAPPY, LZ4, ZSTD]] = 0.0006, 0.05, 0.003, 0.0025, 0.008
STAMPED_US = 3.0  # for each record that must be opened in any case, as the broker has stamped it, if it is not merged
FEWEST = 4  # batches that are worth a look


@dataclass
class SmallBatches:
    """The small batches of a fetched log that are worth merging, in groups.

    The offsets of a group follow each other without a hole. Its compressed batches have one codec. Batches that are not
    compressed may be among them, as producers leave those as they are that would not shrink.

    Attributes:
        log: the log.
        rows: the headers of all batches (HEADERS of `merging.py`).
    """

    log: FetchedLog
    rows: NDArray[np.void]
    _ends: list[int]  # for each batch, the end of its group (exclusive); 0 if it is in none
    _checked: int = 0  # the CRCs of what is left before this batch are right

    @classmethod
    def of(cls, log: FetchedLog, packed_bytes: float, left_out: Collection[int]) -> SmallBatches | None:
        """Finds the groups of a log; returns None if there is none.

        Args:
            log: the log.
            packed_bytes: the size up to which batches are merged into one.
            left_out: producers whose transactional batches must be looked at one by one.
        """
        rows = headers(log) if len(log) >= FEWEST else None
        if rows is None:
            return None
        attributes, records, sizes = rows["attributes"], rows["records"].astype(np.int64), np.diff(log.bounds)
        codecs, deltas = attributes & CODEC, rows["last_offset_delta"].astype(np.int64)
        is_stamped = (attributes & TIMESTAMP_TYPE) != 0
        merged_us = BATCH_US + RECORD_US * records + BYTES_US[codecs] * sizes
        other_us = PASSED_US + np.where(is_stamped, STAMPED_US * records, 0.0)
        is_plain = (attributes & ~(CODEC | TIMESTAMP_TYPE | TRANSACTIONAL)) == 0
        is_data = is_plain & (records > 0) & (deltas + 1 == records) & (merged_us < other_us)
        if log.leader_epoch >= 0:
            is_data &= rows["leader_epoch"] <= log.leader_epoch
        if left_out:
            is_data &= ((attributes & TRANSACTIONAL) == 0) | ~np.isin(rows["producer_id"], list(left_out))
        starts = _starts(rows["base_offset"].astype(np.int64), deltas, codecs, is_data)
        saved_us = np.add.reduceat(np.where(is_data, other_us - merged_us, 0.0), starts)
        packed = 1 + np.add.reduceat(np.where(is_data, sizes, 0), starts) / packed_bytes
        ends = np.append(starts[1:], len(rows))
        pays = saved_us > MERGED_US + PASSED_US * packed
        if not pays.any():
            return None
        return cls(log, rows, np.repeat(np.where(pays, ends, 0), ends - starts).tolist())

    def next_ones(self, at: int, offset: int, end_offset: int, most_bytes: int) -> range:
        """Returns the batches that can be merged from number `at` on: healthy ones, and at least one if there are any.

        Args:
            at: the number of the first batch.
            offset: the offset that the first batch must begin with.
            end_offset: the offset before which each batch must begin.
            most_bytes: the size up to which batches are returned.
        """
        end, bounds, first = self._ends[at], self.log.bounds, self.rows["base_offset"]
        if not end or first[at] != offset:
            return range(at, at)
        end = max(at + 1, min(end, bisect_right(bounds, bounds[at] + most_bytes, at) - 1))
        end = at + int(np.count_nonzero(first[at:end] < end_offset))
        view = self.log.view
        first_one = min(max(at, self._checked), end)
        places = zip(bounds[first_one:end], bounds[first_one + 1 : end + 1], strict=True)
        found = [crc32c(view[start + CRC_FROM : stop]) for start, stop in places]
        wrong = np.flatnonzero(self.rows["crc"][first_one:end] != np.array(found, np.uint32))
        self._checked = max(self._checked, first_one + int(wrong[0]) if len(wrong) else end)
        return range(at, min(end, self._checked))

    def first_offset(self, number: int) -> int:
        """Returns the first offset of a batch."""
        return int(self.rows["base_offset"][number])

    def end_offset(self, number: int) -> int:
        """Returns the offset after the last one of a batch."""
        return self.first_offset(number) + int(self.rows["last_offset_delta"][number]) + 1

    def epochs(self, numbers: range) -> list[tuple[int, int]]:
        """Returns the leader epochs of batches, each with the first offset that has it."""
        epochs = self.rows["leader_epoch"][numbers.start : numbers.stop]
        return [
            (int(epochs[at]), self.first_offset(numbers.start + int(at)))
            for at in (0, *(np.flatnonzero(np.diff(epochs)) + 1))
        ]

    def bytes(self, numbers: range) -> int:
        """Returns the size of batches."""
        return self.log.bounds[numbers.stop] - self.log.bounds[numbers.start]

    def leave(self, numbers: range) -> None:
        """Leaves batches out of their group, as they can't be merged."""
        self._ends[numbers.start : numbers.stop] = [0] * len(numbers)


def _starts(first: Numbers, deltas: Numbers, codecs: Numbers, is_data: Booleans) -> Numbers:
    """Returns the numbers of the batches at which a group begins, or a batch that is in none."""
    number, is_packed = np.arange(len(first)), is_data & (codecs != NONE)
    packed_before = np.maximum.accumulate(np.where(is_packed, number, 0))[:-1]
    follows = is_data[1:] & is_data[:-1] & (first[1:] == first[:-1] + deltas[:-1] + 1)
    has_codec = ~is_packed[1:] | ~is_packed[packed_before] | (codecs[1:] == codecs[packed_before])
    return np.flatnonzero(np.append(True, ~(follows & has_codec)))
