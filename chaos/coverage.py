"""The coverage table: how often each kind of request had each fault, over all runs in a directory."""

from __future__ import annotations

import fcntl
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mirrorlake.local.proxy.faults import Fault

from chaos.cells import CELLS, REQUESTS, Cell
from chaos.scenario import CELLS_OF_A_SEED, chosen, is_of_older

DEALS = 8  # how many cells a full run deals out for each that there is; of some, the request is not sent in time


class Coverage:
    """Counts of faults by side, kind of request and fault, over all runs in a directory; kept in a file.

    Several processes may use the file.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._made: Counter[tuple[str, str, str]] = Counter()
        self._dealt: Counter[Cell] = Counter()
        with self._locked():
            self._read()

    @property
    def full_run(self) -> int:
        """The number of seeds after which no cell may be empty."""
        return DEALS * len(CELLS) // CELLS_OF_A_SEED + 1

    def deal(self, seed: int) -> list[Cell]:
        """Returns the cells for a seed: those that were hit least, and of these the ones that were dealt least."""
        with self._locked():
            self._read()
        first = sorted(CELLS, key=lambda cell: (self._made[_key(cell)], self._dealt[cell]))
        dealt = chosen(first, seed, is_older=is_of_older(seed))
        self._dealt.update(dealt)
        return dealt

    def add(self, made: Mapping[tuple[str, str, str], int]) -> None:
        """Adds the faults of a run."""
        with self._locked():
            self._read()
            self._made.update(made)
            self._file.write_text(json.dumps([[*key, count] for key, count in sorted(self._made.items())]))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self) -> None:
        known = json.loads(self._file.read_text()) if self._file.exists() else []
        self._made = Counter({(side, api, fault): count for side, api, fault, count in known})

    def empty(self) -> list[str]:
        """Lists the cells that were never hit."""
        return [" ".join(_key(cell)) for cell in CELLS if not self._made[_key(cell)]]

    def table(self) -> str:
        """Returns the table; a dash is a fault that such a request can't have."""
        possible = {_key(cell) for cell in CELLS}
        names = [str(fault) for fault in Fault]
        rows = [["", *names]]
        for side, requests in REQUESTS.items():
            for api in requests:
                rows.append(
                    [
                        f"{side} {api}",
                        *(str(self._made[key]) if (key := (side, api, name)) in possible else "-" for name in names),
                    ]
                )
        width = max(len(row[0]) for row in rows)
        widths = [max(len(row[at]) for row in rows) for at in range(1, len(names) + 1)]
        return "\n".join(
            "  ".join([row[0].ljust(width), *(cell.rjust(size) for cell, size in zip(row[1:], widths, strict=True))])
            for row in rows
        )


def _key(cell: Cell) -> tuple[str, str, str]:
    return cell.side, cell.api, str(cell.fault)
