"""The place up to which the records of a topic were counted on one side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirrorlake.translation.awaited import is_another

NO_TOPIC_ID = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The offsets of a partition: its first one, its last stable one, and the first one that is young enough to count.

    `since` is -1 if no record is young enough.
    """

    start: int
    end: int
    since: int


@dataclass(frozen=True, slots=True)
class CountRange:
    """The offsets of a topic to count next, by partition (ends are exclusive).

    Attributes:
        start: first offset of each partition.
        end: offset after the last one of each partition.
        is_whole: False if records may have left a log, or another log may have taken its place, before they were
            counted.
        passes_old: True if records were passed over because they are too old.
    """

    start: Mapping[int, int]
    end: Mapping[int, int]
    is_whole: bool = True
    passes_old: bool = False


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The place up to which a topic was counted: its id, empty if unknown, and the next offset of each partition."""

    topic_id: str = ""
    offsets: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, topic_id: str | None, offsets: Mapping[int, int] | None) -> Bookmark:
        """Builds the bookmark from columns of the table counts."""
        return cls("" if topic_id in (None, NO_TOPIC_ID) else topic_id or "", dict(offsets or {}))

    def next_range(self, topic_id: str, bounds: Mapping[int, LogBounds], *, is_first: bool) -> CountRange:
        """Returns the offsets to count next.

        Args:
            topic_id: id of the topic that is there now; empty if unknown.
            bounds: the offsets of its partitions.
            is_first: True if the topic was never counted before on either side, so that old records are passed over.
        """
        if is_first:
            start = {index: max(of.start, of.end if of.since < 0 else of.since) for index, of in bounds.items()}
            return CountRange(
                start,
                {index: of.end for index, of in bounds.items()},
                is_whole=all(of.start == 0 or start[index] > of.start for index, of in bounds.items()),
                passes_old=any(start[index] > of.start for index, of in bounds.items()),
            )
        is_new = is_another(self.topic_id, topic_id)
        known = {} if is_new else self.offsets
        start = {index: min(max(of.start, known.get(index, 0)), of.end) for index, of in bounds.items()}
        return CountRange(
            start,
            {index: of.end for index, of in bounds.items()},
            is_whole=not is_new and all(start[index] == known.get(index, 0) for index in bounds),
        )

    def after(self, topic_id: str, part: CountRange) -> Bookmark:
        """Returns the bookmark behind a counted range; this one if the topic is not there."""
        return Bookmark(topic_id, part.end) if part.end else self
