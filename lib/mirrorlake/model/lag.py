"""Lag, the same everywhere: of a mirror, of a group on the source, of a group on the target.

In SQL it is `greatest(0, end - offset)`: `translation/sql_join.py` and `ledger/sql/lag.sql`.
"""

from __future__ import annotations


def lag(end: int, next_offset: int) -> int:
    """Counts the offsets from a position up to the end of its log.

    Markers, aborted records and what compaction has taken have offsets, too. A position past the end lags by nothing.

    Args:
        end: of the log, exclusive; for a committed reader the last stable offset.
        next_offset: the position: the next offset to read.
    """
    return max(0, end - next_offset)
