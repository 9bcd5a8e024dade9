"""The plan of a failover: one line for each group and partition, with its blocks. Without input or output.

A block is a kind and a reason, and prevents the commit of its line. The operator may accept blocks by kind. An accepted
block prevents nothing, and is recorded.
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
from mirrorlake.jobs.failover.losses import Losses
from mirrorlake.model.status import Status

if TYPE_CHECKING:
    import pandas as pd

AUTO, ALIVE, DEAD = "auto", "alive", "dead"


class FailoverMode(StrEnum):
    """How far a failover goes: column mode of the table failovers."""

    PLAN = "plan"
    REHEARSE = "rehearse"
    RUN = "run"
    PROMOTE = "promote"  # a run with the source alive: recorded as run
    FAILOVER = "failover"  # a run with the source dead: recorded as run
    BEGIN = "begin"  # of a failback


MODES = (
    FailoverMode.PLAN,
    FailoverMode.REHEARSE,
    FailoverMode.RUN,
    FailoverMode.PROMOTE,
    FailoverMode.FAILOVER,
)  # a failback has PLAN, REHEARSE, RUN and BEGIN
VERBS: Mapping[FailoverMode, str] = {FailoverMode.PROMOTE: ALIVE, FailoverMode.FAILOVER: DEAD}


class BlockKind(StrEnum):
    """The kinds of blocks; the operator accepts blocks by kind."""

    MEMBERS = "members"
    PERMISSION = "permission"
    UNREADABLE = "unreadable"
    OPEN_TRANSACTION = "open_transaction"
    STALE_POSITION = "stale_position"
    STALE_MAP = "stale_map"
    VERIFICATION = "verification"
    LAG = "lag"
    CLAMPED = "clamped"
    NOT_MIRRORED = "not_mirrored"
    NOT_MIRRORED_YET = "not_mirrored_yet"
    NOT_COVERED = "not_covered"
    BEFORE_MIRROR = "before_mirror"
    LOSSES = "losses"
    AHEAD = "ahead"
    AGAIN = "again"
    UNCARRIED = "uncarried"


class FailoverOutcome(StrEnum):
    """The outcome of a line."""

    REHEARSED = "rehearsed"
    INTENDED = "intended"  # by a run that has not recorded what became of it
    COMMITTED = "committed"
    IN_STEP = "in_step"
    HELD = "held"
    NO_PLACE = "no_place"
    REFUSED = "refused"  # followed by the reason
    CLOSED = "closed"  # for the only row of a flow that was closed without groups


Block = tuple[BlockKind, str]  # with the reason

BLOCKS: Mapping[BlockKind, str] = {
    BlockKind.MEMBERS: "a consumer uses the group, on the source or on the target",
    BlockKind.PERMISSION: "the principal of this notebook may not commit offsets for the group on the target",
    BlockKind.UNREADABLE: "the source does not tell the group's offsets now, and the last ones of the ledger count; or "
    "the target does not tell those of the group, or one of both the ends of the partition",
    BlockKind.OPEN_TRANSACTION: "a transaction is open on the source, and hides the records behind its beginning",
    BlockKind.STALE_POSITION: "the checkpoint job has not confirmed the position for longer than "
    "max_position_age_seconds",
    BlockKind.STALE_MAP: "the ledger lacks runs that are on the target; rehearse and run update it first",
    BlockKind.VERIFICATION: "the last verification of the partition has found differences",
    BlockKind.LAG: "more than max_lag records are not mirrored",
    BlockKind.CLAMPED: "the group has read past what is mirrored, and reads those records again if they are mirrored "
    "later",
    BlockKind.NOT_MIRRORED: "the flow does not have the topic, so the group has no offset on the target",
    BlockKind.NOT_MIRRORED_YET: "the remote topic or its partition does not exist (or DESCRIBE is missing), so the "
    "group has no offset on the target; run the mirror job",
    BlockKind.NOT_COVERED: "no single offset on the target corresponds to the group's position",
    BlockKind.BEFORE_MIRROR: "the group has not read all records before the first mirrored one, and would skip them",
    BlockKind.LOSSES: "records that the group has not read were lost, or retention has deleted them on the target",
    BlockKind.AHEAD: "the group would be moved back on the target",
    BlockKind.AGAIN: "both clusters were written at the same time: records that the group has read "
    "come after its offset on the target, and it reads them again",
    BlockKind.UNCARRIED: "both clusters were written at the same time: the flow back has not mirrored the "
    "records before the group's offset on the target yet, and the group would skip them",
}
# Statuses that block a line.
BLOCKED: Mapping[Status, BlockKind] = {
    Status.CLAMPED: BlockKind.CLAMPED,
    Status.NOT_MIRRORED: BlockKind.NOT_MIRRORED,
    Status.NOT_MIRRORED_YET: BlockKind.NOT_MIRRORED_YET,
    Status.NOT_COVERED: BlockKind.NOT_COVERED,
}
TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?Z?")
ACCESS_LIST, ACCESS_APPLY = "list", "apply"
PARAMETERS = {
    "mode": FailoverMode.PLAN.value,
    "groups": "",
    "topics": "",
    "at": "",
    "source": AUTO,
    "max_lag": "0",
    "max_position_age_seconds": "3600",
    "accept": "",
    "partial": "false",
    "close": AUTO,
    "signed_by": "",
    "access": ACCESS_LIST,
}


@dataclass(frozen=True)
class Choice:
    """The operator's choice.

    Attributes:
        mode: `plan`, `rehearse` or `run`; or `begin` for a failback. `promote` and `failover` are read as runs with the
            source alive and dead.
        groups: filter for the flow's groups.
        topics: filter for the flow's topics, of which only these are failed over; None for the whole flow.
        at: time of the positions, UTC; None for now.
        source: `alive`, `dead`, or `auto`: alive if it responds. The run of a failover is never `auto`. The
            source of a failback is alive.
        max_lag: maximum number of unmirrored records of a partition.
        max_position_age_s: maximum age of a position from the ledger, in seconds since the job confirmed it.
        accept: kinds of blocks that the operator accepts.
        partial: if true, lines without open blocks are committed even if others are blocked.
        closes: whether a run closes the flow; None: if all its groups were moved.
        signed_by: name of the responsible operator; required for `run` and `begin`.
        is_of_all: true if no filter for groups was given.
        applies_access: whether to give access on the target that principals of the flow have on the source only.
    """

    mode: FailoverMode = FailoverMode.PLAN
    groups: NameFilter = field(default_factory=lambda: NameFilter("groups", (".*",)))
    topics: NameFilter | None = None
    at: datetime | None = None
    source: str = AUTO
    max_lag: int = 0
    max_position_age_s: int = 3600
    accept: frozenset[BlockKind] = frozenset()
    partial: bool = False
    closes: bool | None = None
    signed_by: str = ""
    is_of_all: bool = True
    applies_access: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, str], modes: tuple[FailoverMode, ...] = MODES) -> Choice:
        """Parses the texts of PARAMETERS; the mode must be one of `modes`.

        Raises:
            ConfigurationError: a value is not allowed; names the parameter, its value and the allowed ones.
        """
        values = {**PARAMETERS, **given}
        for name, allowed in (
            ("mode", modes),
            ("source", (AUTO, ALIVE, DEAD)),
            ("partial", ("true", "false")),
            ("close", (AUTO, "true", "false")),
            ("access", (ACCESS_LIST, ACCESS_APPLY)),
        ):
            if values[name] not in allowed:
                raise ConfigurationError(f"parameter {name} is '{values[name]}'; allowed is {', '.join(allowed)}")
        values = _with_verb(values)
        for name in ("max_lag", "max_position_age_seconds"):
            if not values[name].isdigit():
                raise ConfigurationError(f"parameter {name} is '{values[name]}'; allowed is a whole number from 0 up")
        accept = split_list(values["accept"])
        unknown = sorted({*accept} - {*BlockKind})
        if unknown:
            raise ConfigurationError(f"parameter accept names '{unknown[0]}'; allowed is {', '.join(BlockKind)}")
        if values["mode"] in (FailoverMode.RUN, FailoverMode.BEGIN) and not values["signed_by"].strip():
            raise ConfigurationError(
                "parameter signed_by is empty. Set it to the name of the responsible operator, which is recorded "
                f"(mode = {values['mode']})"
            )
        if values["access"] == ACCESS_APPLY and values["mode"] == FailoverMode.PLAN:
            raise ConfigurationError(
                f"parameter access is '{ACCESS_APPLY}', but mode = {FailoverMode.PLAN} changes nothing. Choose another "
                "mode"
            )
        is_failback = FailoverMode.BEGIN in modes
        if values["mode"] == FailoverMode.RUN and values["source"] == AUTO and not is_failback:
            raise ConfigurationError(
                f"parameter source is '{AUTO}', but a run must not guess: after a short network failure it would not "
                f"mirror what is left. Set mode = {FailoverMode.PROMOTE} (source alive; mirrors the rest first) or "
                f"mode = {FailoverMode.FAILOVER} (source dead)"
            )
        groups = split_list(values["groups"])
        return cls(
            mode=FailoverMode(values["mode"]),
            groups=NameFilter("groups", groups or (".*",)),
            topics=NameFilter("topics", topics) if (topics := split_list(values["topics"])) else None,
            at=_time(values["at"]),
            source=values["source"],
            max_lag=int(values["max_lag"]),
            max_position_age_s=int(values["max_position_age_seconds"]),
            accept=frozenset(map(BlockKind, accept)),
            partial=values["partial"] == "true",
            closes=None if values["close"] == AUTO else values["close"] == "true",
            signed_by=values["signed_by"].strip(),
            is_of_all=not groups,
            applies_access=values["access"] == ACCESS_APPLY,
        )


def _with_verb(values: dict[str, str]) -> dict[str, str]:
    """Replaces `promote` and `failover` by a run with the source that they mean."""
    if values["mode"] not in {*VERBS}:
        return values
    meant = VERBS[FailoverMode(values["mode"])]
    if values["source"] not in (AUTO, meant):
        raise ConfigurationError(
            f"parameter mode is '{values['mode']}', which means a source that is {meant}, but parameter source is "
            f"'{values['source']}'"
        )
    return {**values, "mode": FailoverMode.RUN, "source": meant}


def _time(text: str) -> datetime | None:
    if not text:
        return None
    if not TIME.fullmatch(text):
        raise ConfigurationError(f"parameter at is '{text}'; allowed is YYYY-MM-DD HH:MM:SS (UTC), or empty for now")
    at = datetime.fromisoformat(text.rstrip("Z"))
    if at > datetime.now(UTC).replace(tzinfo=None):
        raise ConfigurationError(f"parameter at is '{text}', which is in the future (times are UTC)")
    return at


@dataclass(frozen=True, slots=True)
class Line:
    """One group and partition. Offsets are positions: the next record to read.

    Attributes:
        group_id: the group.
        topic: source topic; None for a share group.
        partition: source partition; None for a share group.
        status: how exactly the position is known on the target.
        upstream_offset: position on the source, from `seen_in` at `seen_at`.
        seen_in: `source` (now) or `ledger` (the newest row of checkpoints).
        seen_at: time of the position.
        confirmed_at: newest time at which the group is known to have had it: that of `seen_in = source`, or of the last
            cycle of the checkpoint job; None if there was none.
        metadata: metadata that the group committed.
        target_topic: remote topic.
        target_partition: remote partition.
        downstream_offset: position on the target by the map; None if there is none.
        target_start: start of the log there; 0 if it is unknown.
        target_offset: offset that the group has committed on the target now.
        mirrored_to: source offset up to which the partition is mirrored.
        source_end: last stable offset of the source; with a dead source, as the ledger last saw it.
        not_mirrored: records between `mirrored_to` and `source_end`; None with a dead source.
        lag_seen: offsets between the two, with a dead source.
        rpo_seconds: age of the oldest unmirrored record; with a dead source, of the last commit of its slot.
        re_reads: records of the remote log that the group would read again if it continued at target_offset; None if it
            has committed nothing there.
        skips: records that it would miss in that case.
        lost: source offsets at or after `upstream_offset` whose records the group never sees on the target (`Losses`).
        again: records that the group has read and that lie at or after downstream_offset (only if both sides have
            written).
        mirrored_end: end of all mapped offsets on the target.
        piece_start: start of the piece that was used; see `two_way.counterparts`.
        piece_to_start: its start on the target.
        later_start: the smallest start on the target of any later piece.
        blocks: reasons that prevent the commit, each with its kind.
        accepted: kinds of these blocks that the operator accepts.
        proof: result of the rehearsal at downstream_offset.
        outcome: outcome of the line.
    """

    group_id: str
    topic: str | None
    partition: int | None
    status: Status
    upstream_offset: int | None = None
    seen_in: str = ""
    seen_at: datetime | None = None
    confirmed_at: datetime | None = None
    metadata: str | None = None
    target_topic: str | None = None
    target_partition: int | None = None
    downstream_offset: int | None = None
    target_start: int = 0
    target_offset: int | None = None
    mirrored_to: int | None = None
    source_end: int | None = None
    not_mirrored: int | None = None
    lag_seen: int | None = None
    rpo_seconds: float | None = None
    re_reads: int | None = None
    skips: int | None = None
    lost: int | None = None
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
    def continues_at(self) -> int | None:
        """The offset that is committed: downstream_offset or, if retention has passed it, the start of the log.

        Before that start, a consumer would begin at its `auto.offset.reset`, and with `latest` skip all that is there.
        """
        return None if self.downstream_offset is None else max(self.downstream_offset, self.target_start)

    @property
    def recomputed(self) -> int | None:
        """The downstream offset by its definition, from the piece of the map that was used."""
        if self.piece_start is None or self.piece_to_start is None or self.upstream_offset is None:
            return self.mirrored_end
        place = self.piece_to_start + max(0, self.upstream_offset - self.piece_start)
        return place if self.later_start is None else min(place, self.later_start)


def not_mirrored_text(lag: int, max_lag: int, what: str = "records are") -> str:
    """Says how much of a partition is not mirrored."""
    return f"{lag:,} {what} not mirrored, allowed are {max_lag:,}"


def blocks_of(
    line: Line,
    *,
    reason: str | None,
    is_complete: bool,
    has_failed: bool,
    members_on: Iterable[str],
    max_lag: int,
    losses: Losses,
    stale_by: str = "",
    unreadable: str = "",
    hidden: str = "",
    uncarried: int = 0,
    denied: str = "",
    is_rewound: bool = False,
) -> tuple[Block, ...]:
    """Returns the blocks of a line.

    Args:
        line: line of the plan.
        reason: explanation of its status.
        is_complete: true if the ledger has all that the slots' states record about the partition.
        has_failed: true if the last verification of the partition that could compare it has found differences.
        members_on: clusters on which the group has active members.
        max_lag: maximum number of unmirrored records.
        losses: records ahead of the group that it never sees on the target.
        stale_by: explanation of how old the position is; empty if it is young enough.
        unreadable: explanation of why the source does not tell the group's offsets; empty if it does.
        hidden: explanation of what an open transaction hides on the source; empty if none is open.
        uncarried: records before its downstream offset that were written on the target and that the flow back has not
            carried yet.
        denied: the permission that committing the group's offsets lacks on the target; empty if it lacks none.
        is_rewound: true if its owner moved the group back on the source, and nobody has moved it on the target since.
    """
    found: list[Block] = [(BlockKind.MEMBERS, f"a consumer uses this group on cluster {alias}") for alias in members_on]
    facts = (
        (BlockKind.PERMISSION, denied),
        (BlockKind.UNREADABLE, unreadable),
        (BlockKind.OPEN_TRANSACTION, hidden),
        (BlockKind.STALE_POSITION, stale_by),
        (BlockKind.STALE_MAP, "" if is_complete else "the ledger is behind the states on the target"),
        (BlockKind.VERIFICATION, "the last verification of this partition has found differences" if has_failed else ""),
    )
    found += [(kind, why) for kind, why in facts if why]
    lag = line.lag_seen if line.not_mirrored is None else line.not_mirrored
    if lag is not None and lag > max_lag:
        found.append(
            (
                BlockKind.LAG,
                not_mirrored_text(lag, max_lag, "offsets were" if line.not_mirrored is None else "records are"),
            )
        )
    if line.status in BLOCKED:
        kind = BLOCKED[line.status]
        found.append((kind, reason or BLOCKS[kind]))
    found += _losses(line, losses)
    if (
        line.target_offset is not None
        and line.continues_at is not None
        and line.target_offset > line.continues_at
        and not is_rewound
    ):
        found.append(
            (
                BlockKind.AHEAD,
                f"the group is at {line.target_offset} on the target, and would go back to {line.continues_at}",
            )
        )
    if line.again:
        found.append(
            (
                BlockKind.AGAIN,
                f"{line.again:,} records that the group has read are at or after offset {line.downstream_offset} on "
                "the target",
            )
        )
    if uncarried:
        found.append(
            (
                BlockKind.UNCARRIED,
                f"the flow back has not mirrored {uncarried:,} records yet that were written on the target before "
                f"offset {line.downstream_offset}",
            )
        )
    return tuple(found)


def _losses(line: Line, losses: Losses) -> list[Block]:
    found = []
    if losses.before_mirror:
        what = f"{losses.before_mirror:,} offsets from {line.upstream_offset} on are before the first mirrored record"
        found.append((BlockKind.BEFORE_MIRROR, what))
    if losses.lost:
        found.append((BlockKind.LOSSES, f"{losses.lost:,} offsets ahead of the group were lost ({losses.kinds})"))
    if losses.expired:
        what = (
            f"retention has deleted {losses.expired:,} records on the target at or after offset "
            f"{line.downstream_offset}; the group continues at the start of that log, {line.target_start}"
        )
        found.append((BlockKind.LOSSES, what))
    return found


def gate_frame(lines: Iterable[Line], ends: Mapping[tuple[str, int], int]) -> pd.DataFrame:
    """Returns the input of the gate: the lines to commit.

    The columns are group_id, topic, partition, target_topic, target_partition, status, upstream_offset,
    downstream_offset, recomputed (by the definition), mirrored_end, log_end (of the target), open_blocks (blocks that
    are not accepted).
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
    """Returns the plan for display: one row for each line, blocked lines first."""
    import pandas as pd

    hidden = {
        "metadata",
        "target_start",
        "mirrored_end",
        "piece_start",
        "piece_to_start",
        "later_start",
        "blocks",
        "accepted",
    }
    columns = [one.name for one in fields(Line) if one.name not in hidden]
    rows = [
        {
            **{name: getattr(line, name) for name in columns},
            "downstream_offset": line.continues_at,
            "go": line.go,
            "blocks": "; ".join(f"{kind}: {reason}" for kind, reason in line.blocks),
            "accepted": ", ".join(line.accepted),
        }
        for line in sorted(lines, key=lambda line: (line.go, line.group_id, line.topic or "", line.partition or 0))
    ]
    return pd.DataFrame(rows, columns=[*columns, "go", "blocks", "accepted"])
