"""The checkpoint directory of a Structured Streaming query, rewritten so that the query goes on with the remote topics.

What is in it (format v1): `offsets/<batch>`, the plan of a batch, with one line for each source behind a line of
metadata; `commits/<batch>`, written when the batch is done; `sources/<n>/0`, where Kafka source n began; and the state
of operators. A query that starts again looks at the last plan. If that batch is committed, it goes on at its end. If
not, it repeats the batch: from the end of the one before (or from `sources/<n>/0`, in the first batch) to the planned
end. So at most two plans count, and both are translated; a batch that is repeated then has the same records as it had
on the source. Older plans are left out of the copy, as they name topics of the source; everything else is copied as it
is. The directory itself is never changed.
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
INITIAL = b"\0"  # Spark puts it before the version in sources/<n>/0, so that releases before 2.1 fail on it


@dataclass(frozen=True)
class Plan:
    """One file of `offsets/`: metadata, and a line for each source; `kafka` has the offsets of those that are Kafka's
    and are to be translated."""

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
    """What a checkpoint directory says about where its query goes on.

    Attributes:
        plan: of the last batch.
        is_committed: whether that batch was finished.
        before: the plan before it; None in the first batch.
        initial: where Kafka sources began, by number.
    """

    directory: Path
    plan: Plan
    is_committed: bool
    before: Plan | None
    initial: Mapping[int, Offsets]

    @classmethod
    def read(cls, directory: Path, sources: Sequence[int] = ()) -> SparkCheckpoint:
        """Reads a directory.

        Args:
            sources: numbers of the sources to translate, from 0 in the order of the query; empty for all of Kafka.

        Raises:
            ConfigurationError: it is no such directory, of another format, or without one of these sources.
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
            what = f"source {missing[0]}" if missing else "any source"
            raise ConfigurationError(
                f"{directory / OFFSETS / str(last)}: {what} is not one of Kafka; it has {len(plan.lines)} sources, "
                "from 0 up"
            )
        before = _plan(directory, last - 1, sources) if last - 1 in planned else None
        is_committed = bool(committed) and committed[-1] >= last
        if before is None and last > 0 and not is_committed:
            raise ConfigurationError(
                f"{directory}: batch {last} is to be repeated, but {OFFSETS}/{last - 1}, where it begins, is missing"
            )
        return cls(directory, plan, is_committed, before, initial)

    @property
    def positions(self) -> list[ReaderPosition]:
        """Every offset in it that is to be translated; labels say where they stand."""
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
        """Labels of the positions that a query reads when it starts again; the others are history."""
        plans = [self.plan] if self.is_committed else [self.plan, self.before]
        return {
            _label(plan if plan is not None and number in plan.kafka else None, number)
            for plan in plans
            for number in {*self.plan.kafka, *self.initial}
        }

    def write(self, translation: Translation, output: Path, allowed: Iterable[str] = ()) -> Path:
        """Writes the copy, whole or not at all; returns where.

        Args:
            translation: of `positions`.
            allowed: statuses that are accepted besides exact.

        Raises:
            TargetError: a position that counts isn't exact.
            ConfigurationError: the place is taken or within the directory, or the query has gone on meanwhile.
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
                    f"the query of {self.directory} has gone on while it was copied: stop it, and translate again"
                )
            shutil.move(draft, output)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return output

    def _plans(self) -> list[Plan]:
        return [plan for plan in (self.before, self.plan) if plan is not None]

    def _left_out(self, directory: str, names: list[str]) -> set[str]:
        """What isn't copied: what is written anew, older batches, and their checksums, which Spark's local files
        have."""
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
    """Offsets as Spark writes them."""
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
            f"{file} has format '{version[:20]}'; known is {VERSION}. Spark may have been upgraded: mirrorlake must "
            "be, too"
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
        return None  # such as -, of a source without data
