"""A model of a partition: its history as a mirror sees it, and the valid mapping of each offset at the end.

Tests compare views and maintenance with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mirrorlake.ledger.folding import fold_gaps, fold_runs
from mirrorlake.ledger.store import Ledger

from tests.example_ledger import DAY, gap, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KINDS = ("marker", "aborted", "retention", "filtered")


@dataclass
class Log:
    """Runs and gaps as the views of both tables have them, and the offsets that are mapped or missing at the end.

    Each state has the runs and gaps of one hour.
    """

    source: str
    partition: int
    runs: list[dict[str, Any]] = field(default_factory=list)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    upstream: int = 0
    downstream: int = 0
    incarnation: int = 0
    per_state: int = 1  # steps that are in one state
    mapped: dict[int, int] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)

    def _committed(self) -> dict[str, Any]:
        step = (len(self.runs) + len(self.gaps)) // self.per_state
        return {
            "source": self.source,
            "sync_partition": self.partition % 3,
            "sync_offset": 10 * step + self.partition,
            "committed_at": DAY + timedelta(hours=step),
        }

    def mirror(self, length: int) -> None:
        self.runs.append(
            run(
                0,
                "t",
                self.partition,
                (self.upstream, self.upstream + length),
                self.downstream,
                "12:00:00",
                self.incarnation,
                **self._committed(),
            )
        )
        self.mapped |= {self.upstream + at: self.downstream + at for at in range(length)}
        self.upstream, self.downstream = self.upstream + length, self.downstream + length

    def skip(self, length: int, kind: str) -> None:
        self.gaps.append(
            gap(
                0,
                "t",
                self.partition,
                (self.upstream, self.upstream + length),
                kind,
                self.downstream,
                "12:00:00",
                self.incarnation,
                **self._committed(),
            )
        )
        self.missing |= dict.fromkeys(range(self.upstream, self.upstream + length), kind)
        self.upstream += length

    def reset(self, offset: int) -> None:
        self.gaps.append(
            gap(
                0,
                "t",
                self.partition,
                (offset, self.upstream),
                "truncated",
                self.downstream,
                "12:00:00",
                self.incarnation,
                **self._committed(),
            )
        )
        self.mapped, self.missing = (
            {at: value for at, value in had.items() if at < offset} for had in (self.mapped, self.missing)
        )
        self.upstream, self.incarnation = offset, self.incarnation + 1

    @classmethod
    def at_random(cls, dice: random.Random, source: str, partition: int, resets: int = 0) -> Log:
        log = cls(source, partition, upstream=dice.choice([0, 7]), downstream=dice.randint(0, 9))
        log.per_state = 5 if partition % 2 else 1
        log.missing = dict.fromkeys(range(log.upstream), "before_mirror")
        steps = [*["mirror"] * dice.randint(1, 30), *["skip"] * dice.randint(0, 15), *["reset"] * resets]
        dice.shuffle(steps)
        for step in ["mirror", *steps]:
            if step == "mirror":
                log.downstream += dice.randint(0, 3)  # markers
                log.mirror(dice.randint(1, 9))
            elif step == "skip":
                log.skip(dice.randint(1, 4), dice.choice(KINDS))
            else:
                log.reset(dice.randint(max(1, log.upstream // 2), log.upstream - 1) if log.upstream > 1 else 1)
        return log


def store(ledger: Ledger, logs: list[Log]) -> None:
    """Writes the logs as the ledger's stream does, states with several runs or gaps of a partition folded."""
    write(ledger, "offset_syncs", fold_runs, [row for log in logs for row in log.runs])
    write(ledger, "gaps", fold_gaps, [row for log in logs for row in log.gaps])


def write(ledger: Ledger, name: str, fold: Callable[[DataFrame], DataFrame], rows: list[dict[str, Any]]) -> None:
    """Folds rows that have one run or gap each, and appends them to a table."""
    columns = [
        f"{field.name} {field.dataType.simpleString()}" for field in ledger.read(name).schema if field.name in rows[0]
    ]
    values = [tuple(row[column.split()[0]] for column in columns) for row in rows]
    ledger.append_frame(name, fold(ledger.spark.createDataFrame(values, ", ".join(columns))).coalesce(1))
