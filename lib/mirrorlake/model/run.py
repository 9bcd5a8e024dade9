"""Runs: the exact map between the offsets of both sides.

A run is a maximal range of upstream offsets that landed contiguously downstream, with the same number of records on
both sides. Ends are exclusive. The target returns the base offset of each appended batch. Runs are made of these
offsets, so they are exact and need no further request.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Run:
    """A run `[upstream_start, upstream_end) -> [downstream_start, downstream_end)` of one partition.

    A run grows while further batches are contiguous. `digest` is a CRC-32C over the record counts, timestamps and
    records of its batches (`Batch.extend_digest`). It is None if one of the batches belongs to another run, too. The
    timestamps are the smallest and largest of its records, in ms. `incarnation` is the number of resets of the
    partition before the run.
    """

    topic: str
    partition: int
    target_topic: str
    target_partition: int
    upstream_start: int
    upstream_end: int
    downstream_start: int
    downstream_end: int
    records: int
    bytes: int
    first_timestamp: int
    last_timestamp: int
    digest: int | None
    incarnation: int = 0

    def is_continued_by(self, upstream_start: int, downstream_start: int) -> bool:
        """Returns True if records of the same two partitions that begin at these offsets belong to this run."""
        return (upstream_start, downstream_start) == (self.upstream_end, self.downstream_end)


def translate(runs: list[Run], upstream_offset: int) -> int | None:
    """Translates an upstream offset to the downstream offset of the first mirrored record at or after it.

    At or past the end, the result is the last run's end; without runs it is None. This function defines translation for
    runs of one partition in order. The jobs translate in SQL (`translation/sql_join.py`), and tests compare the two.
    """
    for run in runs:
        if upstream_offset < run.upstream_end:
            return run.downstream_start + max(0, upstream_offset - run.upstream_start)
    return runs[-1].downstream_end if runs else None
