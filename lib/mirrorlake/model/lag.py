"""Lag: of a mirror job, of a group on the source, of a group on the target, by one definition.

In SQL it is `greatest(0, end - offset)`: `translation/sql_join.py` and `ledger/sql/lag.sql`.
"""

from __future__ import annotations


def lag(end: int, next_offset: int) -> int:
    """Counts the offsets from a position up to the end of its log.

    Transaction markers, aborted records and records removed by compaction have offsets, too. The lag of a
    position past the end is 0.

    Args:
        end: the end of the log, exclusive; for a read_committed consumer the last stable offset.
        next_offset: the position: the next offset to read.
    """
    return max(0, end - next_offset)
