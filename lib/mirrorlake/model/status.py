"""What is said of a group's position, in the tables and in results: its status, and what was done about it on the
target."""

from __future__ import annotations

from collections.abc import Set
from enum import StrEnum


class Status(StrEnum):
    """How well a position on the source is known on the target; docs/sql.md says when which is given."""

    EXACT = "exact"
    CLAMPED = "clamped"
    BEFORE_MIRROR = "before_mirror"
    NOT_MIRRORED = "not_mirrored"
    NOT_COVERED = "not_covered"
    DELETED = "deleted"  # of a whole group
    NO_GROUPS = "no_groups"  # of the one row of a failover for a flow that no group reads


class SyncOutcome(StrEnum):
    """What a cycle of the checkpoint job has done about a position on the target."""

    COMMITTED = "committed"
    IN_STEP = "in_step"
    HELD = "held"
    WAITING = "waiting"
    REFUSED = "refused"
    OFF = "off"


# The outcomes that leave the group where the checkpoint job put it.
SETTLED: Set[SyncOutcome] = frozenset({SyncOutcome.COMMITTED, SyncOutcome.IN_STEP})
