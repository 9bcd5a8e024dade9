"""Refills: records that a flow back copies home although the other flow had brought them, as their source lost them."""

from __future__ import annotations

from dataclasses import dataclass

from mirrorlake.partition_key import PartitionKey


@dataclass(frozen=True, slots=True)
class Refill:
    """Offsets `[from_offset, to_offset)` of a partition that the flow back reads, all of whose records it copies."""

    topic: str
    partition: int
    from_offset: int
    to_offset: int

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition
