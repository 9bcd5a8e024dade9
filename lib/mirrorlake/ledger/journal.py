"""The journal: rows that jobs record about their own cycles.

They reach the ledger a little later, many rows at once. No open transaction waits for them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mirrorlake.ledger.memory import MemoryLedger
from mirrorlake.ledger.store import Ledger

if TYPE_CHECKING:
    from mirrorlake.config.flow import Flow

AGE_S = 30.0  # the longest wait of rows while a job runs
ROWS_AT_ONCE = 2_000
MOST_ROWS = 10_000  # of a table; with more, the ledger has been away for hours
MOST_OF: Mapping[str, int] = {"lag_samples": 30}  # a row has all partitions, and takes megabytes if there are 10,000


class CycleJob(StrEnum):
    """Jobs that have cycles: values of the column job of the table cycles.

    A failover notes CLOSE for a flow that no job mirrors from then on, and a failback OPEN: silence is as it must be
    between the two.
    """

    MIRROR = "mirror"
    LEDGER = "ledger"
    CHECKPOINT = "checkpoint"
    CLOSE = "close"
    OPEN = "open"


@dataclass(frozen=True)
class Cycle:
    """One row of the table cycles.

    A cycle is a micro-batch of the mirror job, an append to the ledger, or a round of the checkpoint job.
    """

    source: str
    target: str
    job: CycleJob
    cycle_id: str
    duration_ms: float
    stages_ms: Mapping[str, float]
    finished_at: datetime = field(default_factory=lambda: datetime.now(UTC).replace(tzinfo=None))
    records: int | None = None
    bytes: int | None = None
    runs: int | None = None
    partitions: int | None = None
    lag: int | None = None
    positions: int | None = None
    unfinished: int | None = None

    @classmethod
    def note(cls, flow: Flow, job: CycleJob, generation: int) -> Cycle:
        """Returns the row of a step that takes no time: that a generation has closed a flow, or opened it."""
        return cls(flow.source, flow.target, job, f"{job}-{generation}", 0.0, {})


class Journal:
    """Rows that wait to be appended to the ledger, at most MOST_ROWS for each table, or what MOST_OF says. Several
    threads may use it.

    Args:
        ledger: the ledger.
        clock: returns the time in seconds, monotonic.
    """

    def __init__(self, ledger: Ledger | MemoryLedger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger, self._clock = ledger, clock
        self._rows: dict[str, deque[Any]] = {}
        self._dropped = Counter[str]()
        self._since: float | None = None
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def note(self, table: str, rows: Iterable[Any]) -> None:
        """Records rows of a table, in the form that `Ledger.append` takes; too many make the oldest ones leave."""
        with self._lock:
            most = min(MOST_ROWS, MOST_OF.get(table, MOST_ROWS))
            waiting = self._rows.setdefault(table, deque(maxlen=most))
            for row in rows:
                self._dropped[table] += len(waiting) == most
                waiting.append(row)
            if self._since is None and any(self._rows.values()):
                self._since = self._clock()

    def take_dropped(self) -> dict[str, int]:
        """Returns the number of rows of each table that have made room since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, Counter()
        return dict(+dropped)

    def waiting(self) -> dict[str, int]:
        """Returns the number of rows of each table that wait."""
        with self._lock:
            return {table: len(rows) for table, rows in self._rows.items() if rows}

    def write(self) -> None:
        """Appends the waiting rows.

        Raises:
            LedgerError: a table can't be written. Its rows keep waiting.
        """
        with self._writing:
            with self._lock:
                waiting, self._rows, self._since = self._rows, {}, None
            with ThreadPoolExecutor(max(1, len(waiting))) as pool:  # each waits for files most of the time
                written = {table: pool.submit(self._ledger.append, table, rows) for table, rows in waiting.items()}
            failures = [
                (table, failure) for table, future in written.items() if (failure := future.exception()) is not None
            ]
            for table, _ in failures:
                self._put_back(table, waiting[table])
            for _, failure in failures:
                raise failure

    def _put_back(self, table: str, rows: Iterable[Any]) -> None:
        """Lets rows wait again, before those that came meanwhile."""
        with self._lock:
            later = self._rows.pop(table, ())
        self.note(table, (*rows, *later))

    def write_if_due(self) -> None:
        """Appends the waiting rows if there are many, or if they have waited for AGE_S."""
        with self._lock:
            is_due = self._since is not None and (
                self._clock() >= self._since + AGE_S or sum(map(len, self._rows.values())) >= ROWS_AT_ONCE
            )
        if is_due:
            self.write()
