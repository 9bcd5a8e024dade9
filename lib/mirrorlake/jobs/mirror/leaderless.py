"""Remote partitions that have no leader, so that their source partitions wait."""

from __future__ import annotations

from collections.abc import Iterable

from mirrorlake.config.flow import Flow
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.reasons import PartitionHeld


def without_remote_leader(flow: Flow, target: Cluster, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, str]:
    """Asks the target for the leaders of remote partitions; returns why partitions of the source wait for one.

    A remote topic that does not exist is not looked at.
    """
    keys = list(partitions)
    if not keys:
        return {}
    remote = flow.remote_topics({topic for topic, _ in keys})
    there = target.refresh(set(remote.values()), flow.connect_timeout_ms, operations=True)
    found = {}
    for topic, partition in keys:
        leaders = there[remote[topic]].leaders if remote[topic] in there else {}
        needed = leaders if flow.scatters(topic) else {partition}
        for index in (index for index in needed if leaders.get(index, 0) < 0):
            found[topic, partition] = PartitionHeld.NO_LEADER.about(
                topic=remote[topic], partition=index, error=f"cluster {flow.target} names none"
            )
    return found
