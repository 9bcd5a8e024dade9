"""Rewrites the checkpoint directory of a Structured Streaming query, so that the query continues with the remote
topics.

The directory (format v1) holds these files:

- `offsets/<batch>`: the plan of a batch, with a line of metadata and one line for each source;
- `commits/<batch>`: written when the batch is finished;
- `sources/<n>/0`: the offsets at which Kafka source n began;
- the state of operators.

When a query restarts, Spark reads the last plan. If that batch is committed, the query continues at the plan's end. If
not, Spark repeats the batch up to its planned end. A repeated batch starts at the end of the batch before it. The first
batch starts at `sources/<n>/0`.

So at most two plans matter, and both are translated. A repeated batch then has the same records as on the source. Older
plans are left out of the copy, as they name topics of the source. All other files are copied unchanged. The original
directory is never changed.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirrorlake.errors import ConfigurationError
from mirrorlake.translation.positions import Offsets, ReaderPosition, Translation, as_offsets, listed

VERSION = "v1"
OFFSETS, COMMITS, SOURCES = "offsets", "commits", "sources"
INITIAL = b"\0"  # Spark writes this byte before the version in sources/<n>/0, so that releases before 2.1 fail on it


@dataclass(frozen=True)
class Plan:
    """One file of `offsets/`: the metadata, and one line for each source.

    `kafka` holds the offsets of the Kafka sources to translate, by number.
    """

    batch: int
    metadata: str
    lines: tuple[str, ...]
    kafka: Mapping[int, Offsets]

    def text(self, translated: Callable[[int], Offsets]) -> str:
        lines = [
            to_json(translated(number)) if number in self.kafka else line for number, line in enumerate(self.lines)
        ]
        return "\n".join([VERSION, self.metadata, *lines])


@dataclass(frozen=True)
class SparkCheckpoint:
    """The offsets in a checkpoint directory at which its query continues.

    Attributes:
        directory: the checkpoint directory.
        plan: plan of the last batch.
        is_committed: true if that batch was finished.
        before: the plan before it; None in the first batch.
        initial: offsets at which Kafka sources began, by number.
    """

    directory: Path
    plan: Plan
    is_committed: bool
    before: Plan | None
    initial: Mapping[int, Offsets]

    @classmethod
    def read(cls, directory: Path, sources: Sequence[int] = ()) -> SparkCheckpoint:
        """Reads a checkpoint directory.

        Args:
            directory: the checkpoint directory of a streaming query.
            sources: numbers of the sources to translate, from 0 in the order of the query; empty for all Kafka sources.

        Raises:
            ConfigurationError: the directory is not a checkpoint, has another format, or lacks one of these sources.
        """
        planned, committed = _batches(directory / OFFSETS), _batches(directory / COMMITS)
        if not planned:
            raise ConfigurationError(
                f"{directory} holds no plan of a batch ({OFFSETS}/0 and up): it is no checkpoint of a streaming query, "
                "or the query has never run"
            )
        last = planned[-1]
        plan = _plan(directory, last, sources)
        chosen = sources or range(len(plan.lines))
        initial = {number: offsets for number in chosen if (offsets := _initial(directory, number))}
        missing = sorted({*sources} - plan.kafka.keys() - initial.keys())
        if missing or not (plan.kafka or initial):
            what = f"source {missing[0]} is not a Kafka source" if missing else "no source is a Kafka source"
            raise ConfigurationError(
                f"{directory / OFFSETS / str(last)}: {what}. The query has {len(plan.lines)} sources, numbered from 0"
            )
        before = _plan(directory, last - 1, sources) if last - 1 in planned else None
        is_committed = bool(committed) and committed[-1] >= last
        if before is None and last > 0 and not is_committed:
            raise ConfigurationError(
                f"{directory}: batch {last} was not committed and is to be repeated, but {OFFSETS}/{last - 1}, which "
                "holds its first offsets, is missing"
            )
        return cls(directory=directory, plan=plan, is_committed=is_committed, before=before, initial=initial)

    @property
    def positions(self) -> list[ReaderPosition]:
        """All offsets in the directory that have to be translated; their labels name the file and the source."""
        found = [
            position
            for plan in self._plans()
            for number, offsets in plan.kafka.items()
            for position in listed(offsets, _label(plan, number))
        ]
        return found + [
            position for number, offsets in self.initial.items() for position in listed(offsets, _label(None, number))
        ]

    @property
    def needed(self) -> set[str]:
        """Labels of the positions that a query reads when it restarts; the other positions are history."""
        plans = [self.plan] if self.is_committed else [self.plan, self.before]
        return {
            _label(plan if plan is not None and number in plan.kafka else None, number)
            for plan in plans
            for number in {*self.plan.kafka, *self.initial}
        }

    def write(self, translation: Translation, output: Path, allowed: Iterable[str] = ()) -> Path:
        """Writes the translated copy, as a whole or not at all, and returns its path.

        Args:
            translation: translation of `positions`.
            output: directory for the copy; must not exist.
            allowed: statuses that are accepted besides exact.

        Raises:
            TargetError: a needed position isn't exact.
            ConfigurationError: the output exists or lies within the directory, or the query ran during the copy.
        """
        translation.require(allowed, self.needed)
        if output.exists() or self.directory.resolve() in (output.resolve(), *output.resolve().parents):
            raise ConfigurationError(
                f"output {output} exists already, or is within {self.directory}: name a new directory"
            )
        draft = output.with_name(f".{output.name}-{uuid.uuid4().hex[:8]}")
        try:
            shutil.copytree(self.directory, draft, ignore=self._left_out)
            for plan in self._plans():
                (draft / OFFSETS / str(plan.batch)).write_text(_translated(plan, translation))
            for number in self.initial:
                (draft / SOURCES / str(number) / "0").write_bytes(
                    INITIAL + f"{VERSION}\n{to_json(translation.offsets(_label(None, number)))}".encode()
                )
            now = SparkCheckpoint.read(self.directory, sorted({*self.plan.kafka, *self.initial}))
            if (now.plan, now.is_committed) != (self.plan, self.is_committed):
                raise ConfigurationError(
                    f"the query of {self.directory} has run during the copy. Stop the query, and translate again"
                )
            shutil.move(draft, output)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return output

    def _plans(self) -> list[Plan]:
        return [plan for plan in (self.before, self.plan) if plan is not None]

    def _left_out(self, directory: str, names: list[str]) -> set[str]:
        """Returns the names that aren't copied: files that are rewritten, older batches, and their checksums.

        Spark's local file system adds a checksum file to each file.
        """
        place = Path(directory).resolve()
        kept = {str(plan.batch) for plan in self._plans()}
        if place == (self.directory / OFFSETS).resolve():
            return {*names}
        if place == (self.directory / COMMITS).resolve():
            return {name for name in names if name.lstrip(".").removesuffix(".crc") not in kept}
        if place in {(self.directory / SOURCES / str(number)).resolve() for number in self.initial}:
            return {"0", ".0.crc"}
        return set()


def to_json(offsets: Offsets) -> str:
    """Formats offsets as Spark writes them."""
    return json.dumps(
        {
            topic: {str(partition): offset for partition, offset in sorted(partitions.items())}
            for topic, partitions in offsets.items()
        },
        separators=(",", ":"),
    )


def _label(plan: Plan | None, number: int) -> str:
    return f"{SOURCES}/{number}/0" if plan is None else f"{OFFSETS}/{plan.batch}, source {number}"


def _translated(plan: Plan, translation: Translation) -> str:
    return plan.text(lambda number: translation.offsets(_label(plan, number)))


def _batches(directory: Path) -> list[int]:
    return sorted(int(file.name) for file in directory.glob("*") if file.name.isdigit())


def _plan(directory: Path, batch: int, sources: Sequence[int]) -> Plan:
    file = directory / OFFSETS / str(batch)
    version, *rest = file.read_text().split("\n")
    if version != VERSION or not rest:
        raise ConfigurationError(
            f"{file} has format '{version[:20]}', but mirrorlake reads {VERSION} only. If Spark was upgraded, "
            "upgrade mirrorlake, too"
        )
    lines = tuple(rest[1:])
    kafka = {
        number: offsets
        for number, line in enumerate(lines)
        if (not sources or number in sources) and (offsets := as_offsets(_value(line)))
    }
    return Plan(batch, rest[0], lines, kafka)


def _initial(directory: Path, number: int) -> Offsets | None:
    file = directory / SOURCES / str(number) / "0"
    if not file.is_file():
        return None
    version, _, text = file.read_bytes().lstrip(INITIAL).decode(errors="replace").partition("\n")
    return as_offsets(_value(text)) if version == VERSION else None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None  # for example `-`, which Spark writes for a source without data
