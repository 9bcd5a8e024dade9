"""Durations of micro-batches, and the result of a run of the mirror job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrorlake.state.pause import Pause
    from mirrorlake.state.slot_report import SlotReport

# All stages of a micro-batch, from the beginning of its plan to the last commit.
STAGES = ("plan", "copy", "gate", "commit")


@dataclass
class Stopwatch:
    """A stopwatch for successive steps, in milliseconds."""

    laps_ms: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, name: str) -> None:
        """Ends a step, and starts the next one; a step may come several times."""
        now = time.perf_counter()
        self.laps_ms[name] = self.laps_ms.get(name, 0.0) + 1000 * (now - self._last)
        self._last = now

    @property
    def total_ms(self) -> float:
        """Returns the duration of all steps that have ended."""
        return sum(self.laps_ms.values())


def stages(plan_ms: float, clock: Stopwatch, reports: Sequence[SlotReport]) -> dict[str, float]:
    """Computes the duration of each stage of a micro-batch, in milliseconds.

    - plan: the planner asks both clusters.
    - copy: all copying tasks; `copy.begin`, `copy.move` and `copy.state` are parts of it in the slowest task, and the
      rest is the time that a Spark job takes.
    - gate: the evaluation of expectations.
    - commit: the end of the transactions.

    Args:
        plan_ms: the duration of the plan.
        clock: the driver's stopwatch.
        reports: the reports of the tasks.
    """
    slowest = max((report.stages_ms for report in reports), key=lambda laps: sum(laps.values()), default={})
    inside = {f"copy.{name}": value for name, value in slowest.items()}
    return {"plan": plan_ms, **clock.laps_ms, **inside}


@dataclass(frozen=True)
class Progress:
    """One micro-batch: its committed records, and the duration of each stage.

    `lag` is the number of source offsets still to be mirrored; `stages_ms` is the result of `stages`.
    """

    batch: int
    finished_at: datetime
    records: int
    bytes: int
    runs: int
    partitions: int
    lag: int
    seconds: float
    stages_ms: dict[str, float]

    def fields(self) -> dict[str, int | float]:
        """Returns the fields of the log line about the micro-batch."""
        seconds = max(self.seconds, 1e-9)
        return {
            "batch": self.batch,
            "records": self.records,
            "partitions": self.partitions,
            "seconds": round(self.seconds, 2),
            "records_per_s": round(self.records / seconds),
            "mb_per_s": round(self.bytes / seconds / 1e6, 1),
            "lag": self.lag,
            **{f"{name}_s": round(self.stages_ms[name] / 1000, 2) for name in STAGES},
        }


@dataclass(frozen=True)
class MirrorResult:
    """The result of a run of the mirror job; `history` has its last micro-batches. `paused` is the pause at its end."""

    flow: str
    generation: int
    batches: int
    records: int
    bytes: int
    lag: int
    seconds: float
    history: tuple[Progress, ...] = field(repr=False, default=())
    paused: Pause | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the result as plain values, without `history`."""
        return {name: getattr(self, name) for name in ("flow", "generation", "batches", "records", "bytes", "lag")} | {
            "seconds": round(self.seconds, 3),
            "paused": self.paused.to_json() if self.paused else None,
        }
