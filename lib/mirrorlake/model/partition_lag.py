"""The lag of a flow in each topic-partition, in offsets and in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

CLOCKS_DIFFER_S = 60.0  # a timestamp that is this much ahead may come from a clock that is
KEPT_SIGHTINGS = 16


class PartitionState(StrEnum):
    """What a mirror job does about a partition: values of `state` in the view lag_now."""

    MIRRORING = "mirroring"
    NOT_BEGUN = "not_begun"  # nothing of it is mirrored yet
    PAUSED = "paused"  # by an operator, or by mirrorlake.paused or mirrorlake.topics.paused
    HELD = "held"  # its topic can't be mirrored now; the others go on
    PROMOTED = "promoted"  # its topic was failed over by itself
    REPLACED = "replaced"  # the topic was created anew, or its log ends before the position
    SILENT = "silent"  # its leader does not answer, so that its end is not known; or its remote partition has no leader


COPIED = frozenset((PartitionState.MIRRORING, PartitionState.NOT_BEGUN, PartitionState.SILENT))


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of one partition at one time.

    Attributes:
        topic: topic on the source.
        partition: partition on the source.
        state: what the mirror job does about it.
        reason: why it is not mirrored, in words; None if it is.
        upstream_next: the flow's position: the next source offset to copy; None if there is none yet.
        last_stable_offset: where consumers with read_committed stop on the source; None if it is not known.
        high_watermark: where all consumers stop on the source; None if it is not known.
        lag: offsets from the position to the last stable offset; None if that is not known. Transaction markers and
            records removed by compaction count, too.
        uncommitted: offsets from the last stable offset to the high watermark, which wait for open transactions.
        oldest_at: timestamp of the oldest record that is not mirrored, in UTC; None if there is none, or if it is not
            known or can't be right.
        lag_seconds: age of that record; 0 if nothing waits, None if it is not known.
    """

    topic: str
    partition: int
    state: PartitionState
    reason: str | None = None
    upstream_next: int | None = None
    last_stable_offset: int | None = None
    high_watermark: int | None = None
    lag: int | None = None
    uncommitted: int | None = None
    oldest_at: datetime | None = None
    lag_seconds: float | None = None

    @property
    def is_behind(self) -> bool:
        """Whether stable offsets are not mirrored, or it is not known whether there are any."""
        return self.lag is None or self.lag > 0

    def moves_like(self, other: PartitionLag) -> bool:
        """Tells whether nothing but the age differs."""
        names = ("topic", "partition", "state", "upstream_next", "last_stable_offset", "high_watermark")
        return all(getattr(self, name) == getattr(other, name) for name in names)


@dataclass(frozen=True)
class FlowLag:
    """The lag of a flow at one time.

    Attributes:
        source, target: the aliases of the clusters.
        measured_at: time of the measurement, in UTC, without a zone.
        partitions: all partitions of the flow's topics, in their order.
        backfill: topics that give way to others, and so are late on purpose.
    """

    source: str
    target: str
    measured_at: datetime
    partitions: tuple[PartitionLag, ...]
    backfill: frozenset[str] = frozenset()

    def with_held(self, held: Mapping[str, str]) -> FlowLag:
        """Returns the measurement with the partitions of these topics as held, each with the reason of its topic."""
        return replace(
            self,
            partitions=tuple(
                replace(one, state=PartitionState.HELD, reason=held[one.topic])
                if one.topic in held and one.state in COPIED
                else one
                for one in self.partitions
            ),
        )

    @property
    def copied(self) -> list[PartitionLag]:
        """The partitions that the mirror job copies, or would if their leaders answered."""
        return [one for one in self.partitions if one.state in COPIED]

    @property
    def paused(self) -> int:
        """The number of partitions that are paused."""
        return sum(one.state is PartitionState.PAUSED for one in self.partitions)

    @property
    def records(self) -> int:
        """Stable offsets that are not mirrored in the partitions that are copied, as far as they are known."""
        return sum(one.lag or 0 for one in self.copied)

    @property
    def uncommitted(self) -> int:
        """Offsets that wait for open transactions on the source, in the partitions that are copied."""
        return sum(one.uncommitted or 0 for one in self.copied)

    @property
    def seconds(self) -> float:
        """The age of the oldest record that is not mirrored in these partitions, as far as it is known. Topics of a
        backfill do not count: they would hide the others for days."""
        return max((one.lag_seconds or 0.0 for one in self.copied if one.topic not in self.backfill), default=0.0)

    @property
    def is_caught_up(self) -> bool:
        """Whether nothing waits in the partitions that the mirror job copies, and whose leaders answer.

        What waits in others is not known. If no leader answers, nothing is known.
        """
        known = [one for one in self.copied if one.state is not PartitionState.SILENT]
        return not any(one.is_behind for one in known) and bool(known or not self.copied)

    def worst(self) -> list[PartitionLag]:
        """Lists the partitions: unknown lags first, then the oldest and the longest."""
        return sorted(
            self.partitions,
            key=lambda one: (one.lag is not None, -(one.lag_seconds or 0.0), -(one.lag or 0), one.topic, one.partition),
        )


class Sightings:
    """When the end of one log was seen where: bounds for the age of a record, whatever its timestamp says.

    A record was appended before an end after it was first seen, and after an end at or before it was last seen. A few
    ends are kept. To forget one makes bounds wider, never wrong.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[int, float, float]] = []  # end, first and last time at which it was seen; both ascend

    def see(self, end: int, at_s: float) -> None:
        """Notes an end. A log that ends earlier than before is another one, so nothing of it was seen."""
        if self._seen and end < self._seen[-1][0]:
            self._seen.clear()
        if self._seen and end == self._seen[-1][0]:
            self._seen[-1] = (end, self._seen[-1][1], at_s)
            return
        self._seen.append((end, at_s, at_s))
        if len(self._seen) > KEPT_SIGHTINGS:
            del self._seen[1:-1:2]

    def pass_by(self, offset: int) -> None:
        """Forgets what says nothing of the record at this offset, and of later ones."""
        while len(self._seen) > 1 and self._seen[1][0] <= offset:
            del self._seen[0]

    def bounds_s(self, offset: int, now_s: float) -> tuple[float, float]:
        """Returns the least and the largest age that the record at this offset may have."""
        least = next((now_s - first for end, first, _ in self._seen if end > offset), 0.0)
        largest = next((now_s - last for end, _, last in reversed(self._seen) if end <= offset), float("inf"))
        return max(0.0, least), max(0.0, largest)


def age_s(timestamp_ms: int | None, now_s: float, bounds_s: tuple[float, float]) -> float | None:
    """Returns the age of a record, by its timestamp within the bounds; None if neither says anything.

    A timestamp that is missing, not positive or in the future can't be right. The least possible age counts then.

    Args:
        timestamp_ms: the timestamp of the record; None if it is not known.
        now_s: the present time in seconds since the epoch.
        bounds_s: see `Sightings.bounds_s`.
    """
    least, largest = bounds_s
    if timestamp_ms is None or not 0 < timestamp_ms <= 1000 * (now_s + CLOCKS_DIFFER_S):
        return least if least > 0 or largest < float("inf") else None
    return min(max(now_s - timestamp_ms / 1000, least), largest)


def time_of(timestamp_ms: int | None, now_s: float) -> datetime | None:
    """Returns a timestamp as a time in UTC; None if it can't be right."""
    if timestamp_ms is None or not 0 < timestamp_ms <= 1000 * (now_s + CLOCKS_DIFFER_S):
        return None
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).replace(tzinfo=None)


def is_same(before: Iterable[PartitionLag], now: Iterable[PartitionLag]) -> bool:
    """Tells whether two measurements differ in nothing but ages, and nothing waits."""
    pairs = list(zip(before, now, strict=False))
    return all(one.moves_like(other) and not other.is_behind for one, other in pairs)
