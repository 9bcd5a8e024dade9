"""Gaps: upstream offsets without a counterpart downstream, and their causes.

Runs and gaps together cover all offsets that a flow has passed. There are three groups of kinds:

- Explained: no record existed, or it was left out on purpose.
- Loss: a record existed and can no longer be read, or can't be written. A flow passes over it only with
  `mirrorlake.on.loss = continue`, and always records it.
- Resets: losses after which the numbering begins anew. Earlier runs and gaps are void from the gap's first offset on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class GapKind(StrEnum):
    """Causes of gaps: values of `kind` in the offset-syncs topic and in the table gaps."""

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
    """Source offsets `[from_offset, to_offset)` of a partition without records downstream, because of `kind`.

    `incarnation` is that of the log with these offsets; for a reset, of the log that ended. `downstream_offset` is the
    place of the gap on the target: the end of what was mirrored before it.
    """

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    kind: GapKind
    incarnation: int
    downstream_offset: int
