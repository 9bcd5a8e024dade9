"""The scope of a verification: everything, a time range, a sample, or new records; and the version of the map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from mirrorlake.config.name_filter import NameFilter, split_list
from mirrorlake.errors import ConfigurationError
from mirrorlake.parameters import moment, resolve


class VerificationMode(StrEnum):
    """The mode of a verification: column mode of the table verifications."""

    INCREMENTAL = "incremental"
    FULL = "full"
    TIME = "time"
    SAMPLE = "sample"


LONGEST_S = 10 * 365 * 86_400  # no deadline, for all that is in a log
DEFAULTS = {
    "mode": VerificationMode.INCREMENTAL.value,
    "from_time": "",
    "to_time": "",
    "version": "",
    "fraction": "1",
    "topics": "",
    "max_lateness_seconds": "3600",
}


@dataclass(frozen=True)
class VerificationScope:
    """The scope of a verification.

    Attributes:
        mode: FULL: the whole map. INCREMENTAL: the runs since the last verification that passed. TIME: the runs that
            were committed on the target in a time range. SAMPLE: some runs of the map, first by the digests of their
            batches.
        from_time: start of the range for TIME, inclusive; None for no limit.
        to_time: end of the range for TIME, exclusive; None for no limit.
        version: Delta version of offset_syncs; None for the newest.
        fraction: share of the runs for SAMPLE, above 0 and up to 1.
        topics: source topics; None for all.
        max_lateness_s: seconds that a record of the source may be old without being mirrored, for FULL and INCREMENTAL
            of the newest version.
    """

    mode: VerificationMode = VerificationMode.FULL
    from_time: datetime | None = None
    to_time: datetime | None = None
    version: int | None = None
    fraction: float = 1.0
    topics: NameFilter | None = None
    max_lateness_s: int = 3600

    @property
    def minds_lateness(self) -> bool:
        return self.version is None and self.mode in (VerificationMode.FULL, VerificationMode.INCREMENTAL)

    @property
    def is_of_all_records(self) -> bool:
        """True if it tells whether the flow as it is now is verified."""
        return self.minds_lateness and self.topics is None

    def has(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics

    @classmethod
    def resolve(cls, namespace: Mapping[str, Any]) -> VerificationScope:
        """Reads the parameters of the notebook; see `parse`."""
        return cls.parse(**resolve(namespace, DEFAULTS))

    @classmethod
    def parse(
        cls,
        mode: str = VerificationMode.INCREMENTAL,
        from_time: str = "",
        to_time: str = "",
        version: str = "",
        fraction: str = "1",
        topics: str = "",
        max_lateness_seconds: str = "3600",
    ) -> VerificationScope:
        """Parses a scope from text; an empty text means no limit.

        Args:
            mode: a value of `VerificationMode`.
            from_time: ISO format, UTC unless it names a zone.
            to_time: as from_time.
            version: Delta version of offset_syncs.
            fraction: a number above 0 and up to 1.
            topics: names and Java regexes, separated by commas.
            max_lateness_seconds: a whole number from 0 to LONGEST_S.

        Raises:
            ConfigurationError: a value is malformed, or does not apply to this mode.
        """
        if mode not in [*VerificationMode]:
            raise ConfigurationError(f"parameter mode is '{mode}'; allowed is {', '.join(VerificationMode)}")
        begin, end = moment("from_time", from_time), moment("to_time", to_time)
        if (mode == VerificationMode.TIME) != bool(begin or end):
            rule = "needs from_time, to_time, or both"
            if mode != VerificationMode.TIME:
                rule = f"takes no from_time and to_time; they belong to mode = {VerificationMode.TIME}"
            raise ConfigurationError(f"parameter mode is {mode}, which {rule}")
        if begin and end and begin >= end:
            raise ConfigurationError(f"parameter from_time is '{from_time}', which is not before to_time ('{to_time}')")
        if version and not version.isdecimal():
            raise ConfigurationError(
                f"parameter version is '{version}'; allowed is a Delta version of offset_syncs, from 0 up, or empty "
                "for the newest"
            )
        if not max_lateness_seconds.isdecimal() or int(max_lateness_seconds) > LONGEST_S:
            raise ConfigurationError(
                f"parameter max_lateness_seconds is '{max_lateness_seconds}'; allowed is a whole number from 0 to "
                f"{LONGEST_S}"
            )
        part = _fraction(fraction)
        if part < 1 and mode != VerificationMode.SAMPLE:
            raise ConfigurationError(
                f"parameter fraction is '{fraction}', but mode is {mode}; fraction belongs to mode = "
                f"{VerificationMode.SAMPLE}"
            )
        return cls(
            mode=VerificationMode(mode),
            from_time=begin,
            to_time=end,
            version=int(version) if version else None,
            fraction=part,
            topics=NameFilter("topics", split_list(topics)) if topics else None,
            max_lateness_s=int(max_lateness_seconds),
        )


def _fraction(value: str) -> float:
    try:
        part = float(value)
    except ValueError:
        part = 0.0
    if not 0 < part <= 1:
        raise ConfigurationError(f"parameter fraction is '{value}'; allowed is a number above 0 and up to 1")
    return part
