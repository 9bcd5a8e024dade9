"""What the mirror job says of its micro-batches, and of a whole run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrorlake.state.slot_report import SlotReport

# The way of a micro-batch, from the moment a plan is begun to the last commit. Nothing else is on it.
STAGES = ("plan", "spark", "collect", "copy", "gate", "commit")


@dataclass
class Stopwatch:
    """Milliseconds of one step after the other."""

    began_ms: float = field(default_factory=lambda: 1000 * time.time())
    laps_ms: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, name: str) -> None:
        """Ends a step."""
        now = time.perf_counter()
        self.laps_ms[name] = 1000 * (now - self._last)
        self._last = now

    @property
    def total_ms(self) -> float:
        """All steps that have ended."""
        return sum(self.laps_ms.values())


def stages(plan_ms: float, planned_at_ms: float, clock: Stopwatch, reports: Sequence[SlotReport]) -> dict[str, float]:
    """Where the time of a micro-batch went, in milliseconds.

    plan: asking both clusters. spark: from the plan to the call of the driver's code, all Spark's own. collect: the
    plan's way to the driver. copy: the Spark job that copies; of it, `copy.begin`, `copy.move`, `copy.state` and
    `copy.other` in the slowest task. gate, commit.
    """
    slowest = max((report.stages_ms for report in reports), key=lambda laps: sum(laps.values()), default={})
    inside = {f"copy.{name}": value for name, value in slowest.items()}
    waited_ms = max(0.0, clock.began_ms - planned_at_ms)  # two processes of one machine, one clock
    return {"plan": plan_ms, "spark": waited_ms, **clock.laps_ms, **inside}


@dataclass(frozen=True)
class Progress:
    """One micro-batch: what was committed, and how long each step took. `lag` counts source offsets still to be
    mirrored, `stages_ms` is that of `stages`."""

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
        """Returns what a log line says of it."""
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
    """What a run of the job has done; `history` has its last micro-batches."""

    flow: str
    generation: int
    batches: int
    records: int
    bytes: int
    lag: int
    seconds: float
    history: tuple[Progress, ...] = field(repr=False, default=())

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("flow", "generation", "batches", "records", "bytes", "lag")} | {
            "seconds": round(self.seconds, 3)
        }
