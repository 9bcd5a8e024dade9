"""Offsets of the source's log that are not copied, and losses: they stop the flow, or are recorded and skipped.

`mirrorlake.on.loss` decides.
"""

from __future__ import annotations

from mirrorlake.config.flow import Flow
from mirrorlake.errors import SourceError, TargetError
from mirrorlake.jobs.mirror.copy.partition_copy import Stretch
from mirrorlake.model.anomaly import AnomalyKind, about
from mirrorlake.model.gap import GapKind
from mirrorlake.protocol.batches.records import Record
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_UNCOMMITTED, Cluster
from mirrorlake.protocol.limits import Limits
from mirrorlake.protocol.requests.fetch import Fetched

NO_LIMIT = float("inf")


class GapRecorder:
    """Records what the stretches of one attempt leave out.

    Args:
        flow: flow to mirror, with its handling of losses.
        source: cluster to read.
        limits: size limits of remote topics, as learned from refused batches.

    Attributes:
        count: the number of gaps that the attempt has recorded.
    """

    def __init__(self, flow: Flow, source: Cluster, limits: Limits) -> None:
        self._flow, self._source, self._limits = flow, source, limits
        self._compacted: dict[str, bool] = {}
        self.count = 0

    def skip(self, stretch: Stretch, end: int, kind: GapKind) -> None:
        """Records that the offsets up to `end` hold nothing to copy."""
        before = len(stretch.gaps)
        stretch.skip_to(end, kind)
        self.count += len(stretch.gaps) - before

    async def pass_hole(self, stretch: Stretch, end: int) -> None:
        """Skips a hole: explained by compaction in compacted topics, a loss in others."""
        if end <= stretch.upstream_next:
            return
        if await self._is_compacted(stretch):
            self.skip(stretch, end, GapKind.COMPACTED)
        else:
            self.lose(
                stretch,
                GapKind.HOLE,
                end,
                "the log has a hole although the topic isn't compacted (reading cleanup.policy needs "
                "DESCRIBE_CONFIGS). If the topic was compacted before, set cleanup.policy = compact while it is "
                f"mirrored. Otherwise check the disks of cluster {self._flow.source}",
            )

    async def pass_keyless(self, stretch: Stretch, offset: int) -> None:
        """Skips a record without a key, which a compacted topic on the target refuses, or stops the flow.

        It was written before the topic was compacted. Brokers accept none later (`LogValidator`), and the cleaner keeps
        none (`Cleaner.shouldRetainRecord`).

        Raises:
            SourceError: the flow does not continue after losses.
            TargetError: the source's topic is not compacted. Retriable: the remote topic may follow it.
        """
        if await self._is_compacted(stretch):
            self.lose(
                stretch,
                GapKind.NO_KEY,
                offset + 1,
                f"the record was written before the topic was compacted, and has no key. Topic {stretch.target_topic} "
                f"on cluster {self._flow.target} is compacted, too, and refuses it. Set cleanup.policy = delete if the "
                "topic must not be compacted, or pause it (mirrorlake.topics.paused) until compaction has removed such "
                "records",
            )
            return
        self._limits.keyed.discard(stretch.target_topic)
        raise TargetError(
            f"{place(stretch, self._flow)}, offset {offset}: the record has no key, and topic {stretch.target_topic} "
            f"on cluster {self._flow.target} refuses it, as compacted topics do. On cluster {self._flow.source}, the "
            "topic isn't compacted (reading cleanup.policy needs DESCRIBE_CONFIGS). No record was skipped. Set "
            "cleanup.policy = delete on the remote topic",
            retriable=True,
            out_of_step=True,
            anomaly=about(AnomalyKind.STOPPED, stretch.key, offset, offset + 1),
        )

    async def out_of_range(self, stretch: Stretch) -> None:
        """Handles a position that is before the log's start or after its end."""
        first = (await self._source.list_offsets([stretch.key], EARLIEST_TIMESTAMP))[stretch.key]
        end = (await self._source.list_offsets([stretch.key], LATEST_TIMESTAMP, READ_UNCOMMITTED))[stretch.key]
        if first > stretch.upstream_next:
            stretch.pack(limit_bytes(self._limits, stretch))
            self.lose(
                stretch,
                GapKind.RETENTION,
                first,
                f"the log start offset is {first} now: retention, DeleteRecords or a truncation has deleted records "
                "before they were mirrored",
            )
        else:  # the log ends before the position, or does not know its epoch
            await self.truncated(stretch, min(end, stretch.upstream_next) if end < stretch.upstream_next else first)

    async def diverged(self, stretch: Stretch, fetched: Fetched) -> None:
        """Handles a response that says that the log is not the one that was read before."""
        start = fetched.diverges_at or 0
        if start < stretch.upstream_next:
            start = fetched.differs_from(stretch.leader_epoch, stretch.epoch_from) or 0
        await self.truncated(stretch, start)

    async def truncated(self, stretch: Stretch, start: int) -> None:
        """Handles a log that differs from the mirrored one from `start` on.

        If `start` is after the position, the log does not know the leader epoch of the last batch read. In a compacted
        topic, compaction may have removed that batch. In any other, everything read with that epoch is in question.
        """
        if start >= stretch.upstream_next:
            if await self._is_compacted(stretch):
                stretch.see_epoch(-1, -1)
                return
            start = min(stretch.epoch_from, stretch.upstream_next) if stretch.epoch_from >= 0 else stretch.upstream_next
        what = f"{place(stretch, self._flow)}: the log of cluster {self._flow.source} was truncated at offset {start}"
        if not stretch.is_untouched:
            raise SourceError(f"{what} during the copy", retriable=True)
        if not self._flow.passes_over_losses:
            raise SourceError(
                f"{what}, but the flow has mirrored up to {stretch.upstream_next} (unclean leader election, or "
                "restored disks). Compare both clusters. To mirror the records that the source has now, after those "
                "mirrored before, set mirrorlake.on.loss = continue",
                anomaly=_anomaly(GapKind.TRUNCATED, stretch, start, stretch.upstream_next),
            )
        stretch.reset(start, GapKind.TRUNCATED, start)
        stretch.planned_end = (await self._source.list_offsets([stretch.key], LATEST_TIMESTAMP))[stretch.key]

    def lose(self, stretch: Stretch, kind: GapKind, end: int, why: str) -> None:
        """Skips offsets that are lost, or stops the flow.

        Args:
            stretch: the stretch of the partition.
            kind: the cause.
            end: the first offset behind the lost ones, which begin at the position.
            why: the cause in words.

        Raises:
            SourceError: the flow does not continue after losses.
        """
        if not self._flow.passes_over_losses:
            raise SourceError(
                f"{place(stretch, self._flow)}, offsets {stretch.upstream_next} to {end}: {why}. No record was "
                "skipped. Check whether these records matter. To continue without them, set mirrorlake.on.loss = "
                "continue",
                anomaly=_anomaly(kind, stretch, stretch.upstream_next, end),
            )
        self.skip(stretch, end, kind)

    def refuse(self, stretch: Stretch, record: Record) -> None:
        """Skips a record that the target has rejected, or stops the flow.

        Raises:
            TargetError: the flow does not continue after losses.
        """
        if not self._flow.passes_over_losses:
            raise TargetError(
                f"{place(stretch, self._flow)}, offset {record.offset}: the record of {len(record.rest):,} bytes is "
                f"larger than topic {stretch.target_topic} on cluster {self._flow.target} allows. Raise the topic's "
                "max.message.bytes. To skip such records instead, set mirrorlake.on.loss = continue",
                anomaly=_anomaly(GapKind.TOO_LARGE, stretch, record.offset, record.offset + 1),
            )
        self.skip(stretch, record.offset + 1, GapKind.TOO_LARGE)

    async def _is_compacted(self, stretch: Stretch) -> bool:
        """Returns True if the source compacts the topic, as far as its configuration may be read."""
        if stretch.topic not in self._compacted:
            self._compacted[stretch.topic] = "compact" in (
                await self._source.topic_config(stretch.topic, "cleanup.policy") or ""
            )
        return self._compacted[stretch.topic]


def limit_bytes(limits: Limits, stretch: Stretch) -> float:
    """Returns the size limit of batches of a stretch, as far as the target has rejected larger ones."""
    return limits.bytes.get(stretch.target_topic, NO_LIMIT)


def place(stretch: Stretch, flow: Flow) -> str:
    """Names a partition, for messages."""
    return f"flow {flow.name}, topic {stretch.topic}, partition {stretch.partition}"


def _anomaly(kind: GapKind, stretch: Stretch, from_offset: int, to_offset: int) -> dict[str, object]:
    return about(kind, stretch.key, from_offset, to_offset, records=to_offset - from_offset)
