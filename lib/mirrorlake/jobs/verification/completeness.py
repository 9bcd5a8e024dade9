"""The result of a counting: how the numbers of records compare on both sides, for each topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import ConfigurationError
from mirrorlake.gate import ExpectationResult, require
from mirrorlake.parameters import resolve

if TYPE_CHECKING:
    import pandas as pd

DEFAULTS = {"max_lateness_seconds": "3600", "days": "7"}


class CountStatus(StrEnum):
    """The status of a window or a topic: column status of the view completeness."""

    EQUAL = "equal"
    PENDING = "pending"
    MISSING = "missing"
    SURPLUS = "surplus"
    NEUTRAL = "neutral"


@dataclass(frozen=True)
class CountScope:
    """The scope of a counting.

    Attributes:
        max_lateness_s: seconds that a record may have been counted on the source before it must be on the target.
        days: age of the windows that are judged, and of the records with which the counting of a topic begins.
    """

    max_lateness_s: int = 3600
    days: int = 7

    @classmethod
    def resolve(cls, namespace: Mapping[str, Any]) -> CountScope:
        """Reads the parameters of the notebook; see `parse`."""
        return cls.parse(**resolve(namespace, DEFAULTS))

    @classmethod
    def parse(cls, max_lateness_seconds: str = "3600", days: str = "7") -> CountScope:
        """Parses a scope from text.

        Raises:
            ConfigurationError: a value is not a whole number, or out of bounds.
        """
        for name, value, least, most in (
            ("max_lateness_seconds", max_lateness_seconds, 0, 31_536_000),
            ("days", days, 1, 365),
        ):
            if not (value.isascii() and value.isdigit() and least <= int(value) <= most):
                raise ConfigurationError(
                    f"parameter {name} is '{value}'; allowed is a whole number from {least} to {most:,}"
                )
        return cls(int(max_lateness_seconds), int(days))


@dataclass(frozen=True, slots=True)
class TopicCount:
    """The counts of one topic, over all of its judged windows.

    `pending`, `missing` and `surplus` are records of windows that must be equal; `windows` is their number. `reason`
    explains the status neutral.
    """

    topic: str
    target_topic: str
    windows: int
    source_records: int
    target_records: int
    pending: int
    missing: int
    surplus: int
    reason: str | None = None

    @property
    def status(self) -> CountStatus:
        if not self.windows:
            return CountStatus.NEUTRAL
        for status in (CountStatus.MISSING, CountStatus.SURPLUS, CountStatus.PENDING):
            if getattr(self, status):
                return status
        return CountStatus.EQUAL


@dataclass(frozen=True, slots=True)
class UnequalWindow:
    """An hour of a topic in which records are missing, or in surplus.

    `doubt` says why nobody can tell whether the counts need be equal, and what to do; empty if they must be.
    """

    topic: str
    window_start: datetime
    source_records: int
    target_records: int
    missing: int
    surplus: int
    doubt: str = ""

    def __str__(self) -> str:
        number = f"{self.missing:,} missing" if self.missing else f"{self.surplus:,} in surplus"
        return (
            f"{self.topic}, {self.window_start:%Y-%m-%d %H:%M} to +1 h: {self.source_records:,} on the source, "
            f"{self.target_records:,} on the target: {number}{f' ({self.doubt})' if self.doubt else ''}"
        )


@dataclass(frozen=True, slots=True)
class HourCount:
    """The records of one hour over all topics whose counts must be equal."""

    window_start: datetime
    target_records: int
    pending: int
    missing: int
    surplus: int


@dataclass(frozen=True)
class Completeness:
    """The result of one counting.

    Attributes:
        flow: flow that was counted.
        counting_id: id of the counting: cycle_id of its rows in expectation_results.
        counted_at: time of the counting, in UTC.
        new_source_records: records that this counting found on the source.
        new_target_records: records that this counting found on the target.
        topics: one row for each topic with records.
        unequal: the first windows with missing records or a surplus.
        hours: the records of each hour.
        results: results of the gate; empty if no topic has a window that must be equal.
    """

    flow: str
    counting_id: str
    counted_at: datetime
    new_source_records: int
    new_target_records: int
    topics: tuple[TopicCount, ...] = field(repr=False)
    unequal: tuple[UnequalWindow, ...] = field(repr=False, default=())
    hours: tuple[HourCount, ...] = field(repr=False, default=())
    results: tuple[ExpectationResult, ...] = field(repr=False, default=())

    @property
    def is_neutral(self) -> bool:
        """True if there is no window whose counts must be equal."""
        return not self.results

    @property
    def passed(self) -> bool:
        return bool(self.results) and all(result.success for result in self.results)

    def total(self, name: str) -> int:
        """Returns the sum of a count over the topics whose counts must be equal."""
        return sum(getattr(topic, name) for topic in self.topics if topic.windows)

    def statement(self) -> str:
        """Summarises the result: counted to 14:03:07, 12,345 records of 3 topics, 0 missing, 0 surplus (UTC)."""
        neutral = sum(topic.status == CountStatus.NEUTRAL for topic in self.topics)
        rest = f"; {neutral:,} topic{'' if neutral == 1 else 's'} neutral" if neutral else ""
        to = f"counted to {self.counted_at:%H:%M:%S}"
        if self.is_neutral:
            return f"{to}: no window's counts must be equal{rest}"
        compared = sum(topic.windows > 0 for topic in self.topics)
        pending = f", {self.total('pending'):,} pending" if self.total("pending") else ""
        words = (
            f"{to}, {self.total('source_records'):,} records of {compared:,} topic{'' if compared == 1 else 's'}, "
            f"{self.total('missing'):,} missing, {self.total('surplus'):,} surplus{pending}{rest}"
        )
        return words if self.passed else f"NOT COMPLETE: {words}"

    def require(self) -> None:
        """Lets a job continue only if no record is missing or in surplus.

        Raises:
            GateError: the counts differ; names the failed expectations and the first windows.
        """
        if self.is_neutral:
            return
        named = "".join(f"\n  {window}" for window in self.unequal)
        require(
            list(self.results), f"flow {self.flow}: {self.statement()}{named}\n", "the counts are in the table counts"
        )

    def table(self) -> pd.DataFrame:
        """Returns one row for each topic, for display."""
        import pandas as pd

        return pd.DataFrame(
            [{**asdict(topic), "status": topic.status.value} for topic in self.topics],
            columns=[*TopicCount.__dataclass_fields__, "status"],
        )

    def to_json(self) -> dict[str, Any]:
        counts = {
            name: self.total(name) for name in ("source_records", "target_records", "missing", "surplus", "pending")
        }
        return {
            "flow": self.flow,
            "counting_id": self.counting_id,
            "counted_at": self.counted_at.isoformat(timespec="milliseconds"),
            "passed": self.passed,
            "neutral": self.is_neutral,
            "new_source_records": self.new_source_records,
            "new_target_records": self.new_target_records,
            **counts,
            "topics": len(self.topics),
            "statement": self.statement(),
        }


GATE_COLUMNS = ("topic", "windows", "source_records", "target_records", "missing", "surplus")


def gate_frame(topics: Iterable[TopicCount]) -> pd.DataFrame:
    """Returns the input of the gate: one row for each topic with windows whose counts must be equal (GATE_COLUMNS)."""
    import pandas as pd

    rows = [{name: getattr(topic, name) for name in GATE_COLUMNS} for topic in topics if topic.windows]
    return pd.DataFrame(rows, columns=list(GATE_COLUMNS))
