"""Provenance: tells the batches of a source topic that a flow has mirrored there, by the producer id in their headers.

A flow `x->s` writes to cluster s in transactions of its slots. Each of them also writes a state to
`mirrorlake.offset-syncs.x.internal` on s. Each state lists all producer ids that its slot has had. A cluster never
assigns a producer id twice. The header of a batch therefore shows for ever whether x->s wrote it, without opening the
batch. This prevents loops of records where topic names can't.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from mirrorlake.config.flow import Flow, is_offset_syncs_topic, offset_syncs_topic
from mirrorlake.errors import TargetError
from mirrorlake.model.slot import SlotState
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.messages import read_messages
from mirrorlake.protocol.batches.record_batch import Batch
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_UNCOMMITTED, Cluster
from mirrorlake.protocol.log_reader import read_stretch
from mirrorlake.protocol.requests.metadata import Topic
from mirrorlake.state.offset_syncs import is_state

LOOK_BACK = 8
FETCH_BYTES = 64 << 20
MOST_LOCAL = 100_000  # producers that are remembered: there are millions a day where each transaction has a new one


async def telling_topics(flow: Flow, source: Cluster) -> list[Topic]:
    """Returns the offset-syncs topics on the source that tell which of its records are not to be mirrored.

    Raises:
        ResponseError: one of the flows that the property file has may not be described, or the source says another
            error.
        WireError: the source does not answer.
    """
    mine = {offset_syncs_topic(alias) for alias in (flow.target, *flow.bringers)}
    if flow.same_cluster_allowed:
        mine.add(flow.offset_syncs_topic)
    everything = flow.records == "local"
    # By name, one that may not be described is an error. From a list of all topics, Kafka leaves it out.
    found = await source.update_metadata(sorted(mine))
    if everything:
        found |= await source.update_metadata(None)
    return [topic for name, topic in found.items() if name in mine or (everything and is_offset_syncs_topic(name))]


class Provenance:
    """The producers of one source cluster, as far as they are known; batches of new producers extend them.

    Args:
        flow: the flow. Batches from its target are excluded; with `records` = local, batches of any flow.
        source: the cluster that is read.
    """

    def __init__(self, flow: Flow, source: Cluster) -> None:
        self._flow, self._source = flow, source
        self._mirrored: set[int] = set()
        self._local: set[int] = set()
        self._read_up_to: dict[PartitionKey, int] = {}

    def excludes(self, batch: Batch) -> bool:
        """Returns True if a batch must not be mirrored; `learn` must have seen the batch."""
        return batch.is_transactional and batch.producer_id in self._mirrored

    @property
    def mirrored(self) -> Set[int]:
        """Returns the producers whose transactional batches must not be mirrored, as far as they are known."""
        return self._mirrored

    def knows(self, producer_ids: Iterable[int]) -> bool:
        """Returns True if nothing is to be learnt of these producers."""
        return all(one in self._mirrored or one in self._local for one in producer_ids)

    async def learn(self, batches: Iterable[Batch]) -> None:
        """Looks up the producers of these batches.

        The batches must be committed, because the state of their flow is then in the log already.
        """
        unknown = (
            {batch.producer_id for batch in batches if batch.is_transactional and not batch.is_control}
            - self._mirrored
            - self._local
        )
        if unknown:
            what = (
                f"flow {self._flow.name}: reading the producers of cluster {self._flow.source} "
                f"({offset_syncs_topic('*')}, needs READ)"
            )
            await self._source.retry(what, self._read_states, self._flow.connect_timeout_ms)
            if len(self._local) >= MOST_LOCAL:
                self._local.clear()  # one that is forgotten is asked for again
            self._local |= unknown - self._mirrored

    async def _read_states(self) -> None:
        topics = await telling_topics(self._flow, self._source)
        keys = [(topic.name, partition) for topic in topics for partition in topic.leaders]
        if not keys:
            return
        first = await self._source.list_offsets(keys, EARLIEST_TIMESTAMP)
        # READ_UNCOMMITTED: a transaction's marker may be written to the data's partition before the state's partition.
        end = await self._source.list_offsets(keys, LATEST_TIMESTAMP, READ_UNCOMMITTED)
        for key in keys:
            start = self._read_up_to.get(key, end[key] + 1)
            if start <= end[key]:
                await self._read(key, start, end[key])
            else:  # never read, or recreated
                await self._read_last(key, first[key], end[key])
            self._read_up_to[key] = end[key]

    async def _read_last(self, key: PartitionKey, first: int, end: int) -> None:
        """Reads from the last snapshot to the end of the log; a snapshot lists all producers before it.

        Raises:
            MirrorlakeError: the snapshot was deleted. Producers that only it lists would be taken for local ones.
        """
        look_back, start = LOOK_BACK, end
        while start > first:
            start = max(first, end - look_back)
            snapshots = await self._read(key, start, end)
            if snapshots and not any(snapshots.values()):
                snapshots |= await self._read(key, max(first, min(snapshots)), start)
            if any(snapshots.values()):
                return
            if snapshots:
                break
            look_back *= 8
        else:
            if not first:
                return  # no state was ever written
        raise self._source.error(
            f"{key[0]}-{key[1]} on cluster {self._flow.source} has no state any more that lists all producers of its "
            "flow, so records that it has mirrored there can't be told from others. Records of the topic were deleted "
            "(retention, compaction or DeleteRecords). Restore them. If the mirror job of that flow still runs, the "
            "next snapshot that it writes lists them again"
        )

    async def _read(self, key: PartitionKey, start: int, end: int) -> dict[int, bool]:
        """Records the producers of a range of an offset-syncs partition.

        Returns:
            The offsets of the snapshots that its states are or name, with True for those that were read.

        Raises:
            MirrorlakeError: a record is no state that this version can read.
        """
        snapshots: dict[int, bool] = {}
        async for batch, _ in read_stretch(
            self._source, key, start=start, end=end, max_bytes=FETCH_BYTES, isolation=READ_UNCOMMITTED
        ):
            if not batch.is_control:
                for message in read_messages(batch):
                    if not is_state(message, key[1]):
                        continue
                    self._mirrored.add(batch.producer_id)
                    try:
                        state = SlotState.from_json(message.value or b"", with_positions=False)
                    except TargetError as error:  # of another flow, whose target this cluster is
                        where = f"{key[0]}-{key[1]}, offset {message.offset}, on cluster {self._flow.source}"
                        raise self._source.error(f"{where}: {error.message}") from None
                    self._mirrored.update(state.all_producer_ids)
                    if state.number:
                        snapshots.setdefault(state.snapshot, False)
                    else:
                        snapshots[message.offset] = True
        return snapshots
