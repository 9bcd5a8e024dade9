"""Runs: the exact map between the offsets of both sides.

A run is a maximal stretch of upstream offsets that landed contiguously downstream, with the same number of records on
both sides. Ends are exclusive. Runs come from the base offsets that the target answers when a batch is appended, so
they are exact and free.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Run:
    """`[upstream_start, upstream_end) -> [downstream_start, downstream_end)` of one partition; grows while batches
    follow on.

    `digest` is a CRC-32C over the record counts, timestamps and records of its batches (`Batch.extend_digest`), None
    where one of them belongs to another run too; the timestamps are the smallest and largest of its records, in ms.
    `incarnation` counts how often the source's log was set back or replaced before.
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
        """True if records of the same two partitions that begin there belong to this run too."""
        return (upstream_start, downstream_start) == (self.upstream_end, self.downstream_end)


def translate(runs: list[Run], upstream_offset: int) -> int | None:
    """The downstream offset of the first mirrored record at or after `upstream_offset`; at or past the end, the last
    run's end.

    The definition in its plainest form, for runs of one partition in order; None without runs. The jobs do the same in
    SQL (`translation/sql_join.py`), and tests hold one against the other.
    """
    for run in runs:
        if upstream_offset < run.upstream_end:
            return run.downstream_start + max(0, upstream_offset - run.upstream_start)
    return runs[-1].downstream_end if runs else None
