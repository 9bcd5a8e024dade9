"""The result of a verification: a row for each partition, the input of the gate, and a one-sentence summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mirrorlake.gate import ExpectationResult, require
from mirrorlake.jobs.verification.classify import FindingKind
from mirrorlake.jobs.verification.scope import VerificationMode

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Row


class VerificationStatus(StrEnum):
    """The result for a partition: column status of the table verifications."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NOT_COMPARABLE = "not_comparable"
    NOT_COVERED = "not_covered"
    NOT_MIRRORED = "not_mirrored"  # nothing to compare, though the source has records that are late
    NOTHING_NEW = "nothing_new"  # of the one row of a verification that has had nothing to compare, as it must be


@dataclass
class PartitionVerification:
    """The result for one partition: a row of the table verifications, without the columns that all rows of a
    verification share.

    Counts are numbers of records; ends are exclusive.

    Attributes:
        topic: source topic.
        partition: source partition.
        target_topic: remote topic.
        target_partition: remote partition.
        upstream_from: first source offset that was verified.
        upstream_to: end of the verified source offsets.
        downstream_from: first target offset that was verified.
        downstream_to: end of the verified target offsets.
        records: records that were compared with their copies.
        digested: those of `records` that were recognised by the digests of their batches, unopened.
        missing: findings of kind MISSING (`FindingKind`).
        duplicated: findings of kind DUPLICATED.
        out_of_order: findings of kind OUT_OF_ORDER.
        different: findings of kind DIFFERENT.
        unexpected: findings of kind UNEXPECTED.
        not_comparable: records that one side has deleted since; neither right nor wrong.
        mapped: mapped offsets that had to be verified.
        accounted: those of `mapped` that have a result.
        verified_to: commit time of the last verified run on the target.
        is_covered: false if the partition could not be verified.
        is_exempt: true if the partition can never be verified: a transform changes its records, or it was promoted.
        is_unreadable: true if the partition has new records, and Spark can't read past a corrupt batch.
        is_unread: true if no leader of the partition's log, on either cluster, has answered.
        unmirrored: records of the source that are not mirrored, if the oldest of them is late.
        notes: remarks for the column detail.
    """

    topic: str
    partition: int
    target_topic: str | None = None
    target_partition: int | None = None
    upstream_from: int | None = None
    upstream_to: int | None = None
    downstream_from: int | None = None
    downstream_to: int | None = None
    records: int = 0
    digested: int = 0
    missing: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    different: int = 0
    unexpected: int = 0
    not_comparable: int = 0
    mapped: int = 0
    accounted: int = 0
    verified_to: datetime | None = None
    is_covered: bool = True
    is_exempt: bool = False
    is_unreadable: bool = False
    is_unread: bool = False
    unmirrored: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def differences(self) -> int:
        return sum(getattr(self, kind) for kind in FindingKind)

    @property
    def status(self) -> VerificationStatus:
        if not self.is_covered:
            return VerificationStatus.NOT_MIRRORED if self.unmirrored else VerificationStatus.NOT_COVERED
        if self.differences or self.mapped != self.accounted:
            return VerificationStatus.DIFFERENT
        return VerificationStatus.EQUAL if self.records else VerificationStatus.NOT_COMPARABLE

    @property
    def passed(self) -> bool:
        """True only if records were compared, and all of them are equal."""
        return self.status is VerificationStatus.EQUAL

    def row(self) -> dict[str, Any]:
        """Returns the columns of the table that belong to this partition."""
        return {**asdict(self), "status": self.status, "passed": self.passed, "detail": "; ".join(self.notes) or None}


@dataclass(frozen=True)
class Finding:
    """One record that differs; see `jobs/verification/classify.py`."""

    topic: str
    partition: int
    upstream_offset: int | None
    downstream_offset: int | None
    kind: FindingKind
    detail: str | None

    @classmethod
    def from_row(cls, row: Row) -> Finding:
        """Reads a finding from a row of Spark."""
        return cls(
            topic=row["topic"],
            partition=row["partition"],
            upstream_offset=row["upstream_offset"],
            downstream_offset=row["downstream_offset"],
            kind=FindingKind(row["kind"]),
            detail=row["detail"],
        )

    def __str__(self) -> str:
        here, there = (
            "none" if offset is None else f"{offset:,}" for offset in (self.upstream_offset, self.downstream_offset)
        )
        return (
            f"{self.topic}, partition {self.partition}: source offset {here}, target offset {there}: "
            f"{self.kind}{f' ({self.detail})' if self.detail else ''}"
        )


@dataclass(frozen=True)
class VerificationResult:
    """The result of one verification: `results` are those of the gate, `examples` the first findings.

    `is_neutral` is true if an incremental verification found nothing in the map that no earlier one has known, or if no
    partition can ever be compared: it has neither passed nor failed, and the gate was not evaluated. `topics` is
    the filter of topics; None for all. `is_pinned` is true if the operator has chosen the version of the map.
    """

    flow: str
    verification_id: str
    mode: VerificationMode
    offset_syncs_version: int
    gaps_version: int
    started_at: datetime
    finished_at: datetime
    partitions: tuple[PartitionVerification, ...] = field(repr=False)
    results: tuple[ExpectationResult, ...] = field(repr=False)
    examples: tuple[Finding, ...] = field(repr=False, default=())
    is_neutral: bool = False
    topics: str | None = None
    is_pinned: bool = False

    def total(self, name: str) -> int:
        """Returns the sum of a count over all partitions."""
        return sum(getattr(partition, name) for partition in self.partitions)

    @property
    def passed(self) -> bool:
        return bool(self.results) and all(result.success for result in self.results)

    @property
    def is_whole(self) -> bool:
        """False if a partition could not be looked at: then the flow as a whole does not count as verified."""
        return not self.total("is_unread")

    @property
    def verified_to(self) -> datetime | None:
        return max((partition.verified_to for partition in self.partitions if partition.verified_to), default=None)

    def statement(self) -> str:
        """Summarises the result: verified to 14:03:07, 12,345,678 records, 0 differences. The time is UTC."""
        records, differences = self.total("records"), self.total("differences")
        if self.is_neutral and is_exempt(self.partitions):
            return (
                f"nothing to compare: of all {len(self.partitions):,} partitions, a transform changes the records, or "
                "the topic was promoted"
            )
        if self.is_neutral:
            return (
                f"nothing new: no record was mirrored since an earlier verification (version "
                f"{self.offset_syncs_version} of offset_syncs)"
            )
        late = self.total("unmirrored")
        behind = sum(partition.unmirrored > 0 for partition in self.partitions)
        unread = self.total("is_unread")
        blindness = f"{unread:,} partition{'' if unread == 1 else 's'} could not be looked at"
        lateness = f"{late:,} records of {behind:,} partition{'' if behind == 1 else 's'} are late: not mirrored yet"
        if self.verified_to is None or not (records or differences):
            return (
                f"not verified: there was nothing to compare ({self.mode}, version {self.offset_syncs_version} of "
                f"offset_syncs){f'; {lateness}' if late else ''}{f'; {blindness}' if unread else ''}"
            )
        day = "" if self.verified_to.date() == self.finished_at.date() else f"{self.verified_to:%Y-%m-%d} "
        kinds = [f"{self.total(kind):,} {kind.replace('_', ' ')}" for kind in FindingKind if self.total(kind)]
        uncovered = sum(not (partition.is_covered or partition.is_unread) for partition in self.partitions)
        words = [
            f"verified to {day}{self.verified_to:%H:%M:%S}, {records:,} records, {differences:,} "
            f"difference{'' if differences == 1 else 's'}",
            f" ({', '.join(kinds)})" if kinds else "",
            f"; {self.total('not_comparable'):,} can't be compared any more" if self.total("not_comparable") else "",
            f"; {uncovered:,} partition{'' if uncovered == 1 else 's'} not covered" if uncovered else "",
            f"; {blindness}" if unread else "",
            f"; {lateness}" if late else "",
        ]
        if self.passed:
            return "".join(words)
        is_equal = late and not differences and self.total("mapped") == self.total("accounted")
        return f"{'NOT WHOLE' if is_equal else 'NOT EQUAL'}: {''.join(words)}"

    def require(self) -> None:
        """Lets a job continue only after a verification that passed, or that had nothing new to compare.

        Raises:
            GateError: the verification failed; names the failed expectations and the first findings by both offsets.
        """
        if self.is_neutral:
            return
        named = "".join(f"\n  {example}" for example in self.examples)
        require(
            list(self.results),
            f"flow {self.flow}, verification {self.verification_id}: {self.statement()}{named}\n",
            "the results are in verifications",
        )

    def table(self) -> pd.DataFrame:
        """Returns one row for each partition, for display."""
        import pandas as pd

        shown = (
            "topic",
            "partition",
            "target_topic",
            "upstream_from",
            "upstream_to",
            "records",
            "digested",
            *FindingKind,
            "not_comparable",
            "unmirrored",
            "status",
            "verified_to",
            "detail",
        )
        return pd.DataFrame(
            [{name: partition.row()[name] for name in shown} for partition in self.partitions], columns=list(shown)
        )

    def to_json(self) -> dict[str, Any]:
        names = ("flow", "verification_id", "mode", "offset_syncs_version", "gaps_version", "passed")
        values = {name: getattr(self, name) for name in names} | {
            name: self.total(name) for name in ("records", "differences", "digested", "not_comparable", "unmirrored")
        }
        verified_to = self.verified_to.isoformat(timespec="milliseconds") if self.verified_to else None
        values["nothing_new"] = self.is_neutral
        return {**values, "partitions": len(self.partitions), "verified_to": verified_to, "statement": self.statement()}


def is_exempt(partitions: Sequence[PartitionVerification]) -> bool:
    """Tells whether there are partitions, and none of them can ever be verified."""
    return bool(partitions) and all(partition.is_exempt and not partition.unmirrored for partition in partitions)


GATE_COLUMNS = ("topic", "partition", "records", *FindingKind, "not_comparable", "mapped", "accounted", "unmirrored")


def gate_frame(partitions: Iterable[PartitionVerification]) -> pd.DataFrame:
    """Returns the input of the gate: one row for each partition that is covered or late, with columns GATE_COLUMNS."""
    import pandas as pd

    rows = [
        {name: getattr(partition, name) for name in GATE_COLUMNS}
        for partition in partitions
        if partition.is_covered or partition.unmirrored
    ]
    return pd.DataFrame(rows, columns=list(GATE_COLUMNS))
