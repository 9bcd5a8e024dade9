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
    NO_KEY = "no_key"
    DROPPED = "dropped"
    TRUNCATED = "truncated"
    RECREATED = "recreated"
    TARGET_RECREATED = "target_recreated"


EXPLAINED: Mapping[GapKind, str] = {
    GapKind.MARKER: "transaction marker",
    GapKind.ABORTED: "records of an aborted transaction",
    GapKind.COMPACTED: "removed by log compaction",
    GapKind.MIRRORED: "records that another flow had mirrored to the source",
    GapKind.FILTERED: "left out by the flow's transform",
    GapKind.DEAD_LETTER: "written to the dead-letter topic, as the flow's transform failed",
}
RESETS: Mapping[GapKind, str] = {
    GapKind.TRUNCATED: "the source's log was truncated (unclean leader election, lost disks); its new records at "
    "these offsets are mirrored after the earlier ones",
    GapKind.RECREATED: "the topic was deleted and created anew on the source; the new topic is mirrored from its "
    "first record",
    GapKind.TARGET_RECREATED: "the remote topic was deleted and created anew, or a failback has found that it lost its "
    "end; what the source still has of it is mirrored again",
}
LOSS: Mapping[GapKind, str] = {
    GapKind.RETENTION: "deleted on the source before they were mirrored (retention or DeleteRecords)",
    GapKind.HOLE: "missing in the source's log, though the topic isn't compacted",
    GapKind.CORRUPT: "the batch is corrupt on the source (CRC)",
    GapKind.TOO_LARGE: "a record is larger than the remote topic allows",
    GapKind.NO_KEY: "a record from before the topic was compacted has no key, so the remote topic refuses it",
    GapKind.DROPPED: "not mirrored before the failover, and left on the source at the failback (diverged = drop)",
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
