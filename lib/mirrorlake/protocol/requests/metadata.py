"""The metadata of a topic: its leaders, and what this principal may do with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

READ, WRITE, DESCRIBE = 3, 4, 8  # AclOperation


@dataclass(frozen=True, slots=True)
class Topic:
    """The metadata of a topic: its id, and the leader of each partition.

    `operations` holds the operations that this principal may perform (KIP-430), None if they were not requested.
    `epochs` holds the leader epoch of each partition.
    """

    name: str
    topic_id: str
    leaders: Mapping[int, int]
    operations: frozenset[int] | None = None
    epochs: Mapping[int, int] = field(default_factory=dict)

    def not_older_than(self, known: Topic) -> Topic:
        """Returns this topic, with the leaders of `known` where those have a newer epoch.

        A broker that is behind must not take back what another one has said (KAFKA-9212).
        """
        return self.with_newer(known) if self.topic_id and self.topic_id == known.topic_id else self

    def with_newer(self, known: Topic) -> Topic:
        """Returns this topic, with the leaders of another answer about it where those have a newer epoch."""
        newer = {index for index, epoch in known.epochs.items() if epoch > self.epochs.get(index, epoch)}
        if not newer:
            return self
        return replace(
            self,
            leaders={index: (known if index in newer else self).leaders[index] for index in self.leaders},
            epochs={index: (known if index in newer else self).epochs[index] for index in self.epochs},
        )

    def allows(self, operation: int) -> bool:
        """Returns False if the principal is known to lack this permission."""
        return self.operations is None or operation in self.operations

    @property
    def partitions(self) -> int:
        return len(self.leaders)


def leader_of(topics: Mapping[str, Topic], topic: str, partition: int) -> int:
    """Returns the node id of a partition's leader, -1 if it is unknown."""
    known = topics.get(topic)
    return known.leaders.get(partition, -1) if known else -1


def epoch_of(topics: Mapping[str, Topic], topic: str, partition: int) -> int:
    """Returns the leader epoch of a partition that goes with `leader_of`, -1 if it is unknown.

    With it, a broker that was the leader before, and does not know it yet, refuses a request (KIP-320).
    """
    known = topics.get(topic)
    return known.epochs.get(partition, -1) if known else -1
