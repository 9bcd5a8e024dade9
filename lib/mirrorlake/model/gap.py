"""Gaps: upstream offsets that have no counterpart downstream, and why. Runs and gaps together cover everything a flow
has passed.

Three sorts of kinds. Explained: there never was a record to copy, or it was left out on purpose. Loss: a record was
there and can't be had any more, or can't be written; a flow passes over it only if it was told to (`mirrorlake.on.loss
= continue`), and never silently. Resets are losses after which the
numbering starts anew: what was mapped before holds no longer from the gap's first offset on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class GapKind(StrEnum):
    """Why nothing of a source offset is on the target: `kind` of a gap in the offset-syncs topic and in the table
    gaps."""

    MARKER = "marker"
    ABORTED = "aborted"
    COMPACTED = "compacted"
    MIRRORED = "mirrored"
    FILTERED = "filtered"
    DEAD_LETTER = "dead_letter"
    RETENTION = "retention"
    HOLE = "hole"
    CORRUPT = "corrupt"
    TOO_LARGE = "too_large"
    DROPPED = "dropped"
    TRUNCATED = "truncated"
    RECREATED = "recreated"
    TARGET_RECREATED = "target_recreated"


EXPLAINED: Mapping[GapKind, str] = {
    GapKind.MARKER: "the marker of a transaction",
    GapKind.ABORTED: "records of an aborted transaction",
    GapKind.COMPACTED: "taken by compaction",
    GapKind.MIRRORED: "records that a flow had brought to the source",
    GapKind.FILTERED: "left out by the flow's transform",
    GapKind.DEAD_LETTER: "put into the dead-letter topic: the flow's transform could not be applied",
}
RESETS: Mapping[GapKind, str] = {
    GapKind.TRUNCATED: "the source has lost the end of its log (unclean leader election, lost disks); what it holds at "
    "these offsets now is mirrored anew",
    GapKind.RECREATED: "the topic was deleted and created anew on the source; its new records are mirrored from the "
    "first on",
    GapKind.TARGET_RECREATED: "the remote topic was deleted and created anew; what the source still holds is mirrored "
    "again",
}
LOSS: Mapping[GapKind, str] = {
    GapKind.RETENTION: "deleted on the source before they were mirrored (retention or DeleteRecords)",
    GapKind.HOLE: "missing in the source's log, though the topic isn't compacted",
    GapKind.CORRUPT: "the batch is corrupt on the source (CRC)",
    GapKind.TOO_LARGE: "a record is larger than the remote topic allows",
    GapKind.DROPPED: "written on the source and not mirrored before it was failed over; left behind there at the "
    "failback",
    **RESETS,
}


@dataclass(frozen=True, slots=True)
class Gap:
    """`[from_offset, to_offset)` of a source partition has nothing downstream, because of `kind`.

    `incarnation` is that of the log whose offsets these are: of a reset, the one that ended. `downstream_offset` is
    where on the target it falls: the end of what was mirrored before.
    """

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    kind: GapKind
    incarnation: int
    downstream_offset: int
