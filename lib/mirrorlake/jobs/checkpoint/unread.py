"""What a cluster does not tell in one cycle: groups whose coordinator is away, and partitions without a leader.

Each concerns only its own positions, whose last rows are kept. A group counts as gone only if its coordinator has
answered, and knows no offset of it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from mirrorlake import errors
from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError, SourceError
from mirrorlake.ledger.checkpoint_row import Checkpoint, GroupKey
from mirrorlake.log import event
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.group_offsets import each_groups_offsets
from mirrorlake.protocol.requests.metadata import DESCRIBE
from mirrorlake.reasons import PositionReason

log = logging.getLogger(__name__)

PATIENCE_MS = 3_000  # of a cycle, with groups whose coordinators do not answer; the next one asks them again
NOT_LISTED = "no broker lists the group"


@dataclass(frozen=True)
class Unread:
    """What the source did not tell in one cycle.

    Attributes:
        groups: the error of each group whose offsets were not read.
        partitions: the error of each partition whose log was not listed.
        told: the groups whose offsets were read.
    """

    groups: Mapping[str, MirrorlakeError] = field(default_factory=dict)
    partitions: Mapping[PartitionKey, MirrorlakeError] = field(default_factory=dict)
    told: frozenset[str] = frozenset()

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], told: Iterable[str]) -> Unread:
        """Reads the rows of the kind `unread` of a cycle (`offset_source.py`)."""
        found = [(row, errors.from_json(json.loads(row["metadata"]))) for row in rows]
        return cls(
            {row["group_id"]: error for row, error in found if row["group_id"] is not None},
            {(row["topic"], row["partition"]): error for row, error in found if row["group_id"] is None},
            frozenset(told),
        )

    def require_some(self, partitions: int) -> None:
        """Requires that the source tells about some groups, and about some partitions, if there are any.

        Args:
            partitions: the number of partitions whose logs were listed.

        Raises:
            MirrorlakeError: the error of one of them.
        """
        if self.groups and not self.told:
            raise self.groups[min(self.groups)]
        if self.partitions and not partitions:
            raise self.partitions[min(self.partitions)]

    def log_since(self, before: Unread, flow: Flow) -> None:
        """Logs what is not told, if that concerns other groups or partitions than in the cycle before."""
        if self.groups.keys() != before.groups.keys():
            log_unread_groups(flow.name, flow.source, {group: error.message for group, error in self.groups.items()})
        if self.partitions.keys() == before.partitions.keys():
            return
        if not self.partitions:
            log.warning(event("partitions_read_again", flow=flow.name, cluster=flow.source))
            return
        first = min(self.partitions)
        log.warning(
            event(
                "partitions_not_read",
                flow=flow.name,
                cluster=flow.source,
                partitions=len(self.partitions),
                first="-".join(map(str, first)),
                error=self.partitions[first].message,
            )
        )


def reasons(
    flow: Flow, missing: Mapping[GroupKey, Checkpoint], unread: Unread
) -> tuple[dict[GroupKey, PositionReason], Unread]:
    """Returns the reason for each position that is missing in a cycle, though the group may still have it.

    Without DESCRIBE on a topic, the source leaves out the offsets of groups in it without an error. It does not list
    groups of a coordinator that is away, either. Both are asked for by name, if there are any.

    Args:
        flow: the flow.
        missing: the last rows of positions that were not read in this cycle.
        unread: what the source did not tell.

    Returns:
        The reasons, and `unread` with the groups that were asked for.

    Raises:
        SourceError: the source can't be asked.
    """
    found: dict[GroupKey, PositionReason] = {}
    for key, row in missing.items():
        if row.group_id in unread.groups:
            found[key] = PositionReason.UNREAD
        elif (row.topic, row.partition) in unread.partitions:
            found[key] = PositionReason.LOG_UNREAD
    left = {key: row for key, row in missing.items() if key not in found}
    topics = sorted({row.topic for row in left.values() if row.topic is not None and flow.mirrors_topic(row.topic)})
    missing_groups = {row.group_id for row in left.values()} - unread.told
    groups = sorted(group for group in missing_groups if flow.checkpoints_group(group))
    if not topics and not groups:
        return found, unread
    source = Cluster(flow.source_connection, "source", f"{flow.name}|checkpoint", flow.connect_timeout_ms)
    with closing(source.connect(again=True)):
        described = source.refresh(topics, flow.connect_timeout_ms, operations=True) if topics else {}
        offsets, failed = each_groups_offsets(source, groups, PATIENCE_MS)
    hidden = {name for name, topic in described.items() if not topic.allows(DESCRIBE)}
    there = (group for group, of in offsets.items() if any(one.offset >= 0 for one in of))
    asked = {group: SourceError(str(error), retriable=True) for group, error in failed.items()}
    asked |= {group: SourceError(NOT_LISTED, retriable=True) for group in there}
    for key, row in left.items():
        if row.topic in hidden:
            found[key] = PositionReason.NOT_PERMITTED
        elif row.group_id in asked:
            found[key] = PositionReason.UNREAD
    return found, replace(unread, groups={**unread.groups, **asked})


def log_unread_groups(flow: str, cluster: str, reasons: Mapping[str, str]) -> None:
    """Logs the groups that a cluster does not tell about, or that there are none any more."""
    if not reasons:
        log.warning(event("groups_read_again", flow=flow, cluster=cluster))
        return
    first, error = min(reasons.items())
    log.warning(event("groups_not_read", flow=flow, cluster=cluster, groups=len(reasons), first=first, error=error))
