"""Gaps: upstream offsets that have no counterpart downstream, and why. Runs and gaps together cover everything a flow
has passed.

Three sorts of kinds. Explained: there never was a record to copy, or it was left out on purpose. Loss: a record was
there and can't be had any more, or can't be written; a flow passes over it only if it was told to (`mirrorlake.on.loss
= continue`), and never silently. Resets are losses after which the
numbering starts anew: what was mapped before holds no longer from the gap's first offset on.
"""

from __future__ import annotations

from dataclasses import dataclass

MARKER, ABORTED, COMPACTED, MIRRORED, FILTERED, DEAD_LETTER = (
    "marker",
    "aborted",
    "compacted",
    "mirrored",
    "filtered",
    "dead_letter",
)
RETENTION, HOLE, CORRUPT, TOO_LARGE = "retention", "hole", "corrupt", "too_large"
TRANSFORM = "transform"  # no gap either: a record that can't be transformed stops the flow
FOREIGN = "foreign"  # no gap, but what someone else has written between mirrored records
DROPPED = "dropped"  # not by the mirror: left behind at a failback, as the operator said
TRUNCATED, RECREATED, TARGET_RECREATED = "truncated", "recreated", "target_recreated"

EXPLAINED = {
    MARKER: "the marker of a transaction",
    ABORTED: "records of an aborted transaction",
    COMPACTED: "taken by compaction",
    MIRRORED: "records that a flow had brought to the source",
    FILTERED: "left out by the flow's transform",
    DEAD_LETTER: "put into the dead-letter topic: the flow's transform could not be applied",
}
RESETS = {
    TRUNCATED: "the source has lost the end of its log (unclean leader election, lost disks); what it holds at these "
    "offsets now is mirrored anew",
    RECREATED: "the topic was deleted and created anew on the source; its new records are mirrored from the first on",
    TARGET_RECREATED: "the remote topic was deleted and created anew; what the source still holds is mirrored again",
}
LOSS = {
    RETENTION: "deleted on the source before they were mirrored (retention or DeleteRecords)",
    HOLE: "missing in the source's log, though the topic isn't compacted",
    CORRUPT: "the batch is corrupt on the source (CRC)",
    TOO_LARGE: "a record is larger than the remote topic allows",
    DROPPED: "written on the source and not mirrored before it was failed over; left behind there at the failback",
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
    kind: str
    incarnation: int
    downstream_offset: int
