"""The status of a group's position, and the outcome of its sync to the target, in tables and results."""

from __future__ import annotations

from collections.abc import Set
from enum import StrEnum


class Status(StrEnum):
    """Statuses of positions: how exactly a position on the source is known on the target; docs/sql.md defines them."""

    EXACT = "exact"
    CLAMPED = "clamped"
    BEFORE_MIRROR = "before_mirror"
    NOT_MIRRORED = "not_mirrored"
    NOT_MIRRORED_YET = "not_mirrored_yet"
    NOT_COVERED = "not_covered"
    DELETED = "deleted"  # of a whole group
    NO_GROUPS = "no_groups"  # of the one row of a failover for a flow that no group reads


class SyncOutcome(StrEnum):
    """Outcomes of a checkpoint cycle for a position on the target."""

    COMMITTED = "committed"
    IN_STEP = "in_step"
    HELD = "held"
    WAITING = "waiting"
    REFUSED = "refused"
    OFF = "off"


# After these outcomes, the group's offset on the target is the one that the checkpoint job committed.
SETTLED: Set[SyncOutcome] = frozenset({SyncOutcome.COMMITTED, SyncOutcome.IN_STEP})
