"""The consumer groups of a source as a flow would move them, and who reads uncommitted records, as far as it shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mirrorlake.config.flow import Flow
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.group_offsets import group_offsets
from mirrorlake.protocol.group_requests import SHARE, WITH_OFFSETS, Group, list_groups

UNKNOWN_STATE = "unknown"


@dataclass(frozen=True, slots=True)
class GroupAssessment:
    """One group of the source.

    Attributes:
        group_id: its id.
        kind: classic, consumer, share or streams; empty if the brokers do not say it.
        state: such as Stable or Empty; `unknown` if the brokers do not say it.
        positions: committed offsets in topics that are mirrored.
        elsewhere: committed offsets in other topics; they stay behind.
        lag: stable offsets that it has not read in mirrored topics.
        ahead: partitions in which it has committed beyond the last stable offset: it reads uncommitted records.
        left_out: why it is not moved; empty if it is.
    """

    group_id: str
    kind: str
    state: str
    positions: int = 0
    elsewhere: int = 0
    lag: int = 0
    ahead: int = 0
    left_out: str = ""


def why_left_out(flow: Flow, name: str, group: Group) -> str:
    """Returns the reason for which a flow does not move a group; empty if it does."""
    if name not in flow.groups:
        return "groups does not name it, or groups.exclude does"
    if group.kind == SHARE:
        return "a share group has no offset for each partition"
    if group.protocol_type not in WITH_OFFSETS:
        return f"its protocol type is {group.protocol_type}, which has no committed offsets"
    return ""


def assess_groups(
    flow: Flow, source: Cluster, look: Callable[[], Mapping[PartitionKey, tuple[int, int]]], timeout_ms: int
) -> list[GroupAssessment]:
    """Looks at each group that the principal may see.

    Args:
        flow: the flow.
        source: connected source cluster.
        look: lists first and last stable offset of each partition that is mirrored. It is called once the offsets of
            groups are known: a group that is at the end would seem to be ahead of an earlier one.
        timeout_ms: the deadline of each request.

    Raises:
        SourceError: the source can't be read.
    """
    there = list_groups(source, timeout_ms)
    reasons = {name: why_left_out(flow, name, group) for name, group in there.items()}
    moved = sorted(name for name, reason in reasons.items() if not reason)
    committed = group_offsets(source, moved, timeout_ms) if moved else {}
    ends = look()
    found = []
    for name in sorted(there):
        group, positions = there[name], [one for one in committed.get(name, ()) if one.offset >= 0]
        here = {(one.topic, one.partition): one.offset for one in positions if (one.topic, one.partition) in ends}
        found.append(
            GroupAssessment(
                name,
                group.kind,
                group.state or UNKNOWN_STATE,
                positions=len(here),
                elsewhere=len(positions) - len(here),
                lag=sum(max(0, ends[key][1] - offset) for key, offset in here.items()),
                ahead=sum(offset > ends[key][1] for key, offset in here.items()),
                left_out=reasons[name] or ("" if here else "it has committed no offset in a mirrored topic"),
            )
        )
    return found


def by_state(groups: Iterable[GroupAssessment]) -> dict[str, int]:
    """Counts the groups that are moved, by their state."""
    return dict(Counter(one.state for one in groups if not one.left_out).most_common())
