"""Provenance: which batches of a source topic were brought there by a mirror, told by the producer id in their headers.

A flow `x->s` writes to cluster s in transactions of its slots. Every one of them also writes a state to
`mirrorlake.offset-syncs.x.internal` on s, and each state names all producer ids its slot has had. Producer ids are
never given out twice by a cluster, so the header of a batch says whether x->s wrote it, for ever, and without opening
it. That is what keeps records from going round where topic names can't tell.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirrorlake.config.flow import Flow, is_offset_syncs_topic, offset_syncs_topic
from mirrorlake.model.slot import SlotState
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_UNCOMMITTED, Cluster, Topic
from mirrorlake.protocol.log_reader import read_stretch
from mirrorlake.protocol.messages import read_messages
from mirrorlake.protocol.record_batch import Batch

LOOK_BACK = 8
FETCH_BYTES = 64 << 20


class Provenance:
    """What is known of the producers of one source cluster; it grows with every producer that turns up.

    Args:
        flow: what came from its target is excluded; with `records` = local, what any flow has brought.
        source: the cluster that is read.
    """

    def __init__(self, flow: Flow, source: Cluster) -> None:
        self._flow, self._source = flow, source
        self._mirrored: set[int] = set()
        self._local: set[int] = set()
        self._read_up_to: dict[PartitionKey, int] = {}

    def excludes(self, batch: Batch) -> bool:
        """True if a batch that `learn` has seen must not be mirrored."""
        return batch.is_transactional and batch.producer_id in self._mirrored

    async def learn(self, batches: Iterable[Batch]) -> None:
        """Finds out about the producers of these batches, which must be committed: then their flow's state is in the
        log already."""
        unknown = (
            {batch.producer_id for batch in batches if batch.is_transactional and not batch.is_control}
            - self._mirrored
            - self._local
        )
        if unknown:
            what = (
                f"flow {self._flow.name}: reading who wrote to cluster {self._flow.source} ({offset_syncs_topic('*')}, "
                "needs READ)"
            )
            await self._source.retry(what, self._read_states, self._flow.connect_timeout_ms)
            self._local |= unknown - self._mirrored

    async def _read_states(self) -> None:
        keys = [(topic.name, partition) for topic in await self._topics() for partition in topic.leaders]
        if not keys:
            return
        first = await self._source.list_offsets(keys, EARLIEST_TIMESTAMP)
        # Uncommitted, because the marker of a transaction may reach its data before it reaches its state.
        end = await self._source.list_offsets(keys, LATEST_TIMESTAMP, READ_UNCOMMITTED)
        for key in keys:
            start = self._read_up_to.get(key, end[key] + 1)
            if start <= end[key]:
                await self._read(key, start, end[key])
            else:  # never read, or created anew
                await self._read_last(key, first[key], end[key])
            self._read_up_to[key] = end[key]

    async def _read_last(self, key: PartitionKey, first: int, end: int) -> None:
        """Reads a stretch of the end that has a state in it; that names all producers before it."""
        look_back, start = LOOK_BACK, end
        while start > first:
            start = max(first, end - look_back)
            if await self._read(key, start, end):
                return
            look_back *= 8

    async def _topics(self) -> list[Topic]:
        mine = {offset_syncs_topic(self._flow.target)}
        if self._flow.same_cluster_allowed:
            mine.add(self._flow.offset_syncs_topic)
        everything = self._flow.records == "local"
        found = await self._source.update_metadata(None if everything else sorted(mine))
        return [topic for name, topic in found.items() if name in mine or (everything and is_offset_syncs_topic(name))]

    async def _read(self, key: PartitionKey, start: int, end: int) -> int:
        """Notes the producers of a stretch of an offset-syncs partition; returns how many states there were."""
        states = 0
        async for batch, _ in read_stretch(self._source, key, start, end, FETCH_BYTES, READ_UNCOMMITTED):
            if not batch.is_control:
                self._mirrored.add(batch.producer_id)
                for message in read_messages(batch):
                    self._mirrored.update(SlotState.from_json(message.value or b"").all_producer_ids)
                states += 1
        return states
