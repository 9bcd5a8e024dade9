"""What attempts have learnt of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.network.frames import Lane

RecordId = tuple[str, int, int, int]  # topic, partition, incarnation, offset


class Density(NamedTuple):
    """What Fetch responses have of one partition, for each byte that they were asked for.

    `offsets_per_byte` counts up to the last batch of a response, so that this one is where the next response begins.
    """

    offsets_per_byte: float
    batches_per_byte: float


class LogSize(NamedTuple):
    """What an offset and a batch take in the log of one partition, on average of the last response."""

    bytes_per_offset: float
    bytes_per_batch: float


@dataclass
class Limits:
    """What attempts have learnt of a cluster, for later ones: limits of batches, its rate, ends of logs.

    Attributes:
        bytes: the largest size of a batch of several records, by topic.
        refused: single records that the cluster rejected, as `Stretch.record_id` names them.
        keyed: remote topics that refuse records without a key, as they are compacted.
        behind: the time on the monotonic clock when a record was first refused by a remote topic whose size limit is
            behind that of the source, by remote topic and the source's limit.
        generation: the generation of the flow that they are of. A job that begins tries them again.
        refused_lanes: what `NetworkClient.share_refusals` keeps, by the side of the cluster.
        bytes_per_s: the rate of the last attempt that lasted for a while.
        round_bytes: what one round of an attempt may read while no rate is known; it doubles with each round.
        window_bytes: what may be in flight on one connection over a long line; it grows while responses come soon.
        ends_checked: the generation in which the end of a remote partition was found to be there.
        free_at: the time on the monotonic clock until which a rate is used up, by its name.
        rates: the rate in bytes per second for which that time holds, by its name.
        damaged: the last batch of a partition that arrived damaged: the position, the CRC of its bytes, and how often
            they were fetched.
        densities: what responses have of a partition, for those that ask ahead.
        log_sizes: what the log of a partition takes, if it goes on behind what is planned; None if it hardly does.
        looked: how far a remote partition was read in the search for what others have written: the position that it
            was read from, the identity of the log, and the offset up to which nothing of them was found.
    """

    bytes_per_s: float = float("inf")
    round_bytes: int = 1 << 20
    window_bytes: int = 256 << 10
    bytes: dict[str, int] = field(default_factory=dict)
    refused: set[RecordId] = field(default_factory=set)
    keyed: set[str] = field(default_factory=set)
    behind: dict[tuple[str, int], float] = field(default_factory=dict)
    generation: int = 0
    refused_lanes: dict[str, dict[Lane, float]] = field(default_factory=dict)
    ends_checked: dict[PartitionKey, int] = field(default_factory=dict)
    free_at: dict[str, float] = field(default_factory=dict)
    rates: dict[str, int] = field(default_factory=dict)
    damaged: dict[PartitionKey, tuple[int, int, int]] = field(default_factory=dict)
    densities: dict[PartitionKey, Density] = field(default_factory=dict)
    log_sizes: dict[PartitionKey, LogSize | None] = field(default_factory=dict)
    looked: dict[PartitionKey, tuple[int, tuple[str, int], int]] = field(default_factory=dict)

    def begin(self, generation: int) -> None:
        """Forgets what does not hold for another generation."""
        if generation != self.generation:
            self.refused.clear()
            self.keyed.clear()
            self.behind.clear()
            self.looked.clear()
            self.generation = generation

    @property
    def known(self) -> tuple[frozenset[tuple[str, int]], frozenset[RecordId], int]:
        """Returns what has been learnt, for comparison; it changes with each batch that is rejected."""
        return frozenset(self.bytes.items()), frozenset(self.refused), len(self.keyed)

    def lower(self, topic: str, limit_bytes: int) -> None:
        """Lowers the limit of a topic to `limit_bytes`, unless it is lower already."""
        self.bytes[topic] = min(limit_bytes, self.bytes.get(topic, limit_bytes))
