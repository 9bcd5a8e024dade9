"""The plan of a failover: one line for every group and partition, what speaks against it, and whether it goes. Pure: no
input or output.

A block is a kind and a reason. What an operator accepts by kind stops nothing, and is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from mirrorlake.config.name_filter import NameFilter, split_list
from mirrorlake.errors import ConfigurationError
from mirrorlake.model.status import Status

if TYPE_CHECKING:
    import pandas as pd

PLAN, REHEARSE, RUN, BEGIN = "plan", "rehearse", "run", "begin"
MODES = (PLAN, REHEARSE, RUN)  # and begin, of a failback
AUTO, ALIVE, DEAD = "auto", "alive", "dead"


class BlockKind(StrEnum):
    """What may speak against a line, and what an operator accepts by."""

    MEMBERS = "members"
    STALE_MAP = "stale_map"
    VERIFICATION = "verification"
    LAG = "lag"
    CLAMPED = "clamped"
    NOT_MIRRORED = "not_mirrored"
    NOT_COVERED = "not_covered"
    AHEAD = "ahead"
    AGAIN = "again"
    UNCARRIED = "uncarried"


class FailoverOutcome(StrEnum):
    """What was done about a line."""

    REHEARSED = "rehearsed"
    COMMITTED = "committed"
    IN_STEP = "in_step"
    HELD = "held"
    NO_PLACE = "no_place"
    REFUSED = "refused"  # followed by the reason
    CLOSED = "closed"  # of the one row of a flow that was closed though no group reads it


Block = tuple[BlockKind, str]  # with the reason

BLOCKS: Mapping[BlockKind, str] = {
    BlockKind.MEMBERS: "somebody consumes with the group, on the source or on the target",
    BlockKind.STALE_MAP: "the ledger lacks what the target has; rehearse and run bring it up to date first",
    BlockKind.VERIFICATION: "the last verification of the partition has failed",
    BlockKind.LAG: "more records are not mirrored than max_lag",
    BlockKind.CLAMPED: "the group has read past what is mirrored (it reads that again if it ever arrives)",
    BlockKind.NOT_MIRRORED: "the flow does not have the topic: the group has no place on the target for it",
    BlockKind.NOT_COVERED: "no single offset on the target is the group's place",
    BlockKind.AHEAD: "the group would be moved back on the target",
    BlockKind.AGAIN: "both sides have written at once: the group has read what lies behind its place on the target, "
    "and reads it again",
    BlockKind.UNCARRIED: "both sides have written at once: the flow back has yet to carry what lies before the group's "
    "place on the target, and the group would skip it",
}
# Statuses without a place that counts.
BLOCKED: Mapping[Status, BlockKind] = {
    Status.CLAMPED: BlockKind.CLAMPED,
    Status.NOT_MIRRORED: BlockKind.NOT_MIRRORED,
    Status.NOT_COVERED: BlockKind.NOT_COVERED,
}
TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?Z?")
PARAMETERS = {
    "mode": PLAN,
    "groups": "",
    "at": "",
    "source": AUTO,
    "max_lag": "0",
    "accept": "",
    "partial": "false",
    "close": AUTO,
    "signed_by": "",
}


@dataclass(frozen=True)
class Choice:
    """What the operator has chosen.

    Attributes:
        mode: `plan`, `rehearse` or `run`, or `begin` (of a failback).
        groups: which of the flow's groups.
        at: as of when, UTC; None for now.
        source: `alive`, `dead`, or `auto`: whether it answers decides.
        max_lag: so many records of a partition may be left behind.
        accept: kinds of blocks that the operator takes upon himself.
        partial: the lines that go are committed though others don't.
        closes: whether the flow is closed behind a run; None: if all its groups were moved.
        signed_by: who answers for it; `run` and `begin` need one.
    """

    mode: str = PLAN
    groups: NameFilter = field(default_factory=lambda: NameFilter("groups", (".*",)))
    at: datetime | None = None
    source: str = AUTO
    max_lag: int = 0
    accept: frozenset[BlockKind] = frozenset()
    partial: bool = False
    closes: bool | None = None
    signed_by: str = ""
    is_of_all: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, str], modes: tuple[str, ...] = MODES) -> Choice:
        """From the texts of PARAMETERS; the mode is one of `modes`.

        Raises:
            ConfigurationError: naming the parameter, its value and what is allowed.
        """
        values = {**PARAMETERS, **given}
        for name, allowed in (
            ("mode", modes),
            ("source", (AUTO, ALIVE, DEAD)),
            ("partial", ("true", "false")),
            ("close", (AUTO, "true", "false")),
        ):
            if values[name] not in allowed:
                raise ConfigurationError(f"parameter {name} is '{values[name]}'; allowed is {', '.join(allowed)}")
        if not values["max_lag"].isdigit():
            raise ConfigurationError(f"parameter max_lag is '{values['max_lag']}'; allowed is a whole number from 0 up")
        accept = split_list(values["accept"])
        unknown = sorted({*accept} - {*BlockKind})
        if unknown:
            raise ConfigurationError(f"parameter accept names '{unknown[0]}'; allowed is {', '.join(BlockKind)}")
        if values["mode"] in (RUN, BEGIN) and not values["signed_by"].strip():
            raise ConfigurationError(
                "parameter signed_by is empty: what is done is recorded with the name of who answers for it (mode = "
                f"{values['mode']})"
            )
        groups = split_list(values["groups"])
        return cls(
            mode=values["mode"],
            groups=NameFilter("groups", groups or (".*",)),
            at=_time(values["at"]),
            source=values["source"],
            max_lag=int(values["max_lag"]),
            accept=frozenset(map(BlockKind, accept)),
            partial=values["partial"] == "true",
            closes=None if values["close"] == AUTO else values["close"] == "true",
            signed_by=values["signed_by"].strip(),
            is_of_all=not groups,
        )


def _time(text: str) -> datetime | None:
    if not text:
        return None
    if not TIME.fullmatch(text):
        raise ConfigurationError(f"parameter at is '{text}'; allowed is YYYY-MM-DD HH:MM:SS (UTC), or empty for now")
    at = datetime.fromisoformat(text.rstrip("Z"))
    if at > datetime.now(UTC).replace(tzinfo=None):
        raise ConfigurationError(f"parameter at is '{text}', which has yet to come (times are UTC)")
    return at


@dataclass(frozen=True, slots=True)
class Line:
    """One group and partition. Offsets are positions: the next record to read.

    Attributes:
        upstream_offset: where the group is on the source, as `seen_in` says (`source`: now; `ledger`: the newest row of
            checkpoints) at `seen_at`.
        downstream_offset: its place on the target; None if it has none.
        target_offset: what it has committed on the target now.
        mirrored_to: the source offset up to which the partition is mirrored; `source_end` its last stable end, with a
            dead source as the ledger last saw it.
        not_mirrored: records between the two; None if the source can't be asked (`lag_seen` has the offsets between the
            two then).
        rpo_seconds: age of the oldest record that isn't mirrored; with a dead source, of the last commit of its slot.
        re_reads, skips: what the group would read again or miss if it went on at target_offset, in records of the
            remote log; None if it has committed nothing there.
        again: records it has read that lie behind its place on the target (only where both sides have written).
        blocks: what speaks against it, kind and reason; accepted: the kinds among them that the operator accepts.
        proof: what a rehearsal found at the place; outcome: what was done.
    """

    group_id: str
    topic: str | None
    partition: int | None
    status: Status
    upstream_offset: int | None = None
    seen_in: str = ""
    seen_at: datetime | None = None
    metadata: str | None = None
    target_topic: str | None = None
    target_partition: int | None = None
    downstream_offset: int | None = None
    target_offset: int | None = None
    mirrored_to: int | None = None
    source_end: int | None = None
    not_mirrored: int | None = None
    lag_seen: int | None = None
    rpo_seconds: float | None = None
    re_reads: int | None = None
    skips: int | None = None
    again: int = 0
    mirrored_end: int | None = None
    piece_start: int | None = None
    piece_to_start: int | None = None
    later_start: int | None = None
    blocks: tuple[Block, ...] = ()
    accepted: tuple[BlockKind, ...] = ()
    proof: str | None = None
    outcome: str | None = None

    @property
    def open_blocks(self) -> tuple[Block, ...]:
        return tuple(block for block in self.blocks if block[0] not in self.accepted)

    @property
    def go(self) -> bool:
        return not self.open_blocks

    @property
    def has_place(self) -> bool:
        """True if there is an offset that can be committed."""
        return self.downstream_offset is not None

    @property
    def recomputed(self) -> int | None:
        """The place by its definition, from the piece of the map that was chosen."""
        if self.piece_start is None or self.piece_to_start is None or self.upstream_offset is None:
            return self.mirrored_end
        place = self.piece_to_start + max(0, self.upstream_offset - self.piece_start)
        return place if self.later_start is None else min(place, self.later_start)


def blocks_of(
    line: Line,
    *,
    reason: str | None,
    is_complete: bool,
    has_failed: bool,
    members_on: Iterable[str],
    max_lag: int,
    uncarried: int = 0,
) -> tuple[Block, ...]:
    """What speaks against a line.

    Args:
        reason: of its status, in words.
        is_complete: the ledger has all that the slots' states say about the partition.
        has_failed: the last verification of the partition found differences.
        members_on: the clusters on which somebody consumes with the group.
        max_lag: so many records may be left behind.
        uncarried: records before its place that were written on the target, and that the flow back has yet to carry.
    """
    found: list[Block] = [
        (BlockKind.MEMBERS, f"somebody consumes with this group on cluster {alias}") for alias in members_on
    ]
    if not is_complete:
        found.append((BlockKind.STALE_MAP, "the ledger is behind the states on the target"))
    if has_failed:
        found.append((BlockKind.VERIFICATION, "the last verification of this partition has failed"))
    lag = line.lag_seen if line.not_mirrored is None else line.not_mirrored
    if lag is not None and lag > max_lag:
        found.append(
            (
                BlockKind.LAG,
                f"{lag:,} {'offsets were' if line.not_mirrored is None else 'records are'} not mirrored, allowed are "
                f"{max_lag:,}",
            )
        )
    if line.status in BLOCKED:
        kind = BLOCKED[line.status]
        found.append((kind, reason or BLOCKS[kind]))
    if (
        line.target_offset is not None
        and line.downstream_offset is not None
        and line.target_offset > line.downstream_offset
    ):
        found.append(
            (
                BlockKind.AHEAD,
                f"the group is at {line.target_offset} on the target, and would go back to {line.downstream_offset}",
            )
        )
    if line.again:
        found.append(
            (
                BlockKind.AGAIN,
                f"{line.again:,} records that it has read lie at or behind {line.downstream_offset} on the target",
            )
        )
    if uncarried:
        found.append(
            (
                BlockKind.UNCARRIED,
                f"{uncarried:,} records before {line.downstream_offset} on the target were written there, and the flow "
                "back has yet to carry them",
            )
        )
    return tuple(found)


def gate_frame(lines: Iterable[Line], ends: Mapping[tuple[str, int], int]) -> pd.DataFrame:
    """What the gate looks at: the lines that are to be committed.

    Columns: group_id, topic, partition, target_topic, target_partition, status, upstream_offset, downstream_offset,
    recomputed (by the definition), mirrored_end, log_end (of the target), open_blocks (that nobody has accepted).
    """
    import pandas as pd

    names = (
        "group_id",
        "topic",
        "partition",
        "target_topic",
        "target_partition",
        "status",
        "upstream_offset",
        "downstream_offset",
        "recomputed",
        "mirrored_end",
    )
    rows = [
        {
            **{name: getattr(line, name) for name in names},
            "log_end": ends.get((line.target_topic or "", line.target_partition or 0)),
            "open_blocks": len(line.open_blocks),
        }
        for line in lines
    ]
    return pd.DataFrame(rows, columns=[*names, "log_end", "open_blocks"])


def table(lines: Iterable[Line]) -> pd.DataFrame:
    """The plan for people: one row for each line, the no-goes first."""
    import pandas as pd

    hidden = {"metadata", "mirrored_end", "piece_start", "piece_to_start", "later_start", "blocks", "accepted"}
    columns = [one.name for one in fields(Line) if one.name not in hidden]
    rows = [
        {
            **{name: getattr(line, name) for name in columns},
            "go": line.go,
            "blocks": "; ".join(f"{kind}: {reason}" for kind, reason in line.blocks),
            "accepted": ", ".join(line.accepted),
        }
        for line in sorted(lines, key=lambda line: (line.go, line.group_id, line.topic or "", line.partition or 0))
    ]
    return pd.DataFrame(rows, columns=[*columns, "go", "blocks", "accepted"])
