"""Positions outside Kafka: offsets that a Spark query, a Flink job or another program stores itself.

Input is JSON `topic -> partition -> offset`. Output has the same shape, with the target's topic names. An offset is
that of the next record to read. -2 (earliest) means the first mirrored record, -1 (latest) the end of what is mirrored.
Both are replaced by the current offsets, so that a program that starts twice starts at the same offset.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import ConfigurationError, TargetError
from mirrorlake.model.status import Status
from mirrorlake.parameters import moment

if TYPE_CHECKING:
    import pandas as pd

Offsets = Mapping[str, Mapping[int, int]]  # topic, partition, offset

EARLIEST, LATEST = -2, -1
SAID = {
    Status.CLAMPED: "the reader is past what is mirrored, as far as the ledger knows. Let the mirror and its "
    "ledger catch up, and translate again",
    Status.BEFORE_MIRROR: "the position is before the first mirrored record, so the reader would miss earlier "
    "records of the source",
    Status.NOT_COVERED: "a transform spreads the partition's records over several partitions of the target, so no "
    "single offset corresponds to the position",
    Status.NOT_MIRRORED: "the flow does not mirror the partition",
}


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """The position of a reader in one partition of the source.

    `label` names the reader where there are several.
    """

    topic: str
    partition: int
    upstream_offset: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class Translated:
    """A position on both sides, with a status as in the table checkpoints.

    target_topic, target_partition and downstream_offset are None if the position has no offset on the target.
    """

    label: str
    topic: str
    partition: int
    upstream_offset: int
    target_topic: str | None
    target_partition: int | None
    downstream_offset: int | None
    status: Status
    reason: str | None


@dataclass(frozen=True)
class Translation:
    """The translation of a set of positions."""

    flow: str
    positions: tuple[Translated, ...]

    @property
    def statuses(self) -> dict[str, int]:
        return dict(Counter(position.status for position in self.positions))

    def offsets(self, label: str = "") -> dict[str, dict[int, int]]:
        """Returns topic -> partition -> offset on the target; positions without an offset there are left out."""
        found: dict[str, dict[int, int]] = {}
        for position in self.positions:
            if (
                position.label == label
                and position.target_topic is not None
                and position.target_partition is not None
                and position.downstream_offset is not None
            ):
                found.setdefault(position.target_topic, {})[position.target_partition] = position.downstream_offset
        return found

    def require(self, allowed: Iterable[str] = (), labels: Iterable[str] | None = None) -> Translation:
        """Returns itself if all positions are exact.

        Args:
            allowed: statuses that are accepted besides exact.
            labels: labels of the positions to check; None for all.

        Raises:
            TargetError: a position isn't exact; names the first one and the remedy.
        """
        accepted, of = {Status.EXACT, *allowed}, None if labels is None else {*labels}
        for position in self.positions:
            if position.status not in accepted and (of is None or position.label in of):
                where = (
                    f"flow {self.flow}, topic {position.topic}, partition {position.partition}, offset "
                    f"{position.upstream_offset}"
                )
                whose, why = (f" ({text})" if text else "" for text in (position.label, position.reason))
                raise TargetError(
                    f"{where}{whose}: the position is {position.status}{why}: "
                    f"{SAID.get(position.status, 'the position is not exact')}. Nothing was written"
                )
        return self

    def table(self) -> pd.DataFrame:
        """Returns one row for each position, for display."""
        import pandas as pd

        return pd.DataFrame(
            [asdict(position) for position in self.positions], columns=list(Translated.__dataclass_fields__)
        )

    def to_json(self) -> dict[str, Any]:
        return {"flow": self.flow, "positions": len(self.positions), "statuses": self.statuses}


def parse(text: str) -> dict[str, dict[int, int]]:
    """Parses offsets from JSON `{"topic": {"0": 123}}`, the form that Spark and most stores use.

    Partitions and offsets may be numbers or text.

    Raises:
        ConfigurationError: the text has another form.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f'positions are not JSON ({error}); expected is {{"topic": {{"0": 123}}}}') from None
    found = as_offsets(value)
    if found is None:
        raise ConfigurationError(
            'positions do not have the form {"topic": {"0": 123}}. Give each partition of each topic an offset from 0 '
            "up (-2: earliest, -1: latest)"
        )
    return found


def as_offsets(value: Any) -> dict[str, dict[int, int]] | None:
    """Returns a JSON value as offsets, or None if it has another form."""
    if not (
        isinstance(value, dict)
        and value
        and all(isinstance(partitions, dict) and partitions for partitions in value.values())
    ):
        return None
    try:
        found = {
            topic: {int(partition): _offset(offset) for partition, offset in partitions.items()}
            for topic, partitions in value.items()
        }
    except (TypeError, ValueError):
        return None
    return found if all(partition >= 0 for partitions in found.values() for partition in partitions) else None


def _offset(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str) or (offset := int(value)) < EARLIEST:
        raise ValueError(value)
    return offset


def listed(offsets: Offsets, label: str = "") -> list[ReaderPosition]:
    """Returns offsets as positions."""
    return [
        ReaderPosition(topic, partition, offset, label)
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    ]


def time_ms(text: str) -> int:
    """Parses a time in ISO form (UTC unless it names a zone) to milliseconds since the epoch.

    Raises:
        ConfigurationError: the text is not a time.
    """
    when = moment("at", text)
    if when is None:
        raise ConfigurationError("parameter at is empty; allowed is a time such as 2026-11-01 08:00:00 (UTC)")
    return int(when.timestamp() * 1000)
