"""The start of a partition that was never mirrored: its first record, its end, a time, or an offset."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from mirrorlake.config import options
from mirrorlake.config.properties import Scope
from mirrorlake.config.replication_policy import HEARTBEATS
from mirrorlake.errors import ConfigurationError

TOPIC_PREFIX = "mirrorlake.start.topic."
OFFSETS = re.compile(r"\d+:\d+(\s*,\s*\d+:\d+)*")


class StartWord(StrEnum):
    """An end of a log, by the word for it in the property file."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True)
class StartSpec:
    """The start of partitions: `earliest`, `latest`, a time, or offsets by partition. A partition without an offset
    begins at its first record."""

    word: StartWord = StartWord.EARLIEST
    timestamp_ms: int | None = None
    offsets: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, name: str, value: str) -> StartSpec:
        """Parses `earliest`, `latest`, an ISO time (UTC unless it names a zone), or `partition:offset, ...`.

        Raises:
            ConfigurationError: the value is none of these.
        """
        if value in tuple(StartWord):
            return cls(StartWord(value))
        if OFFSETS.fullmatch(value):
            pairs = [tuple(map(int, pair.split(":"))) for pair in value.split(",")]
            if len({partition for partition, _ in pairs}) < len(pairs):
                raise ConfigurationError(f"property {name} is '{value}': it names a partition twice")
            return cls(offsets=tuple(sorted((partition, offset) for partition, offset in pairs)))
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            raise ConfigurationError(
                f"property {name} is '{value}'; allowed is {StartWord.EARLIEST}, {StartWord.LATEST}, a time such as "
                "2026-11-01T08:00:00+01:00 (UTC if it names no zone), "
                "or, for one topic, offsets such as 0:1500, 1:1720"
            ) from None
        return cls(timestamp_ms=int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000))


@dataclass(frozen=True)
class Start:
    """The starts of the partitions of a flow.

    Args:
        flow: for partitions that are there when the flow starts for the first time.
        new: for topics and partitions that appear later.
        topics: for single topics, whenever they appear.
        is_chosen: whether the file says where the flow begins, and be it at the first records (`mirrorlake.start`).
    """

    flow: StartSpec = StartSpec()
    new: StartSpec = StartSpec()
    topics: tuple[tuple[str, StartSpec], ...] = ()
    is_chosen: bool = False

    @classmethod
    def parse(cls, scope: Scope) -> Start:
        """Reads the starts of a flow.

        Raises:
            ConfigurationError: a start is malformed, or offsets are given for all topics.
        """
        is_own = bool(scope.text("mirrorlake.start", ""))
        place = None if is_own else scope.place_of_consumer("auto.offset.reset")
        flow = scope.read("mirrorlake.start", scope.source_consumer("auto.offset.reset"))
        topics = sorted(scope.resolved_below(TOPIC_PREFIX).items())
        start = cls(
            StartSpec.parse(place or "mirrorlake.start", flow),
            StartSpec.parse("mirrorlake.start.new", scope.read("mirrorlake.start.new")),
            tuple((topic, StartSpec.parse(f"{TOPIC_PREFIX}{topic}", value)) for topic, value in topics),
            is_chosen=is_own or flow != options.find("mirrorlake.start").default,
        )
        if start.flow.offsets or start.new.offsets:
            raise ConfigurationError(
                "properties mirrorlake.start and mirrorlake.start.new can't be offsets, as offsets belong to one "
                "topic. Set mirrorlake.start.topic.<topic>"
            )
        return start

    @property
    def is_earliest_always(self) -> bool:
        """Whether every partition begins at its first record, so that no start has to be remembered for empty ones."""
        return self.flow == self.new == StartSpec()

    def of(self, topic: str, *, is_first: bool) -> StartSpec:
        """Finds the start of the partitions of a topic; `is_first` while the flow has never mirrored anything."""
        if topic == HEARTBEATS:
            return StartSpec(StartWord.LATEST)  # an old heartbeat is no sign of life
        return dict(self.topics).get(topic) or (self.flow if is_first else self.new)
