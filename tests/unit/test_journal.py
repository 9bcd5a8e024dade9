"""The journal keeps a limited number of rows, and those that can't be written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.errors import LedgerError
from mirrorlake.jobs.mirror.ledger_keeper import LedgerKeeper
from mirrorlake.ledger import journal
from mirrorlake.ledger.journal import Journal
from mirrorlake.ledger.memory import MemoryLedger
from mirrorlake.metrics import Metrics
from mirrorlake.model.anomaly import AnomalyKind


class Away(MemoryLedger):
    """A ledger that can't be written for now."""

    is_away = True

    def append(self, name: str, rows: Iterable[Any]) -> None:
        if self.is_away:
            raise LedgerError("no space left")
        super().append(name, rows)


def numbers(rows: Iterable[int]) -> list[dict[str, int]]:
    return [{"number": number} for number in rows]


def test_rows_that_can_not_be_written_wait_in_their_order_and_the_oldest_leave_if_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "MOST_ROWS", 10)
    ledger = Away()
    waiting = Journal(ledger)
    waiting.note("cycles", numbers(range(8)))
    waiting.note("anomalies", numbers(range(3)))
    with pytest.raises(LedgerError):
        waiting.write()
    assert waiting.take_dropped() == {}
    waiting.note("cycles", numbers(range(8, 13)))
    with pytest.raises(LedgerError):
        waiting.write()
    ledger.is_away = False
    waiting.write()
    assert ledger.rows == {"cycles": numbers(range(3, 13)), "anomalies": numbers(range(3))}
    assert (waiting.take_dropped(), waiting.take_dropped()) == ({"cycles": 3}, {})
    waiting.write()
    assert len(ledger.rows["cycles"]) == 10


def test_rows_that_are_large_wait_in_smaller_numbers() -> None:
    waiting = Journal(Away())
    for _ in range(2):
        waiting.note("lag_samples", numbers(range(20)))
        with pytest.raises(LedgerError):
            waiting.write()
    assert waiting.waiting() == {"lag_samples": 30}
    assert waiting.take_dropped() == {"lag_samples": 10}


def test_a_mirror_job_records_which_rows_have_made_room_while_a_table_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MOST_ROWS", 10)
    clusters = {"clusters": "a, b", "a.bootstrap.servers": "a:9092", "b.bootstrap.servers": "b:9092"}
    flow = Flow.from_properties(Properties({**clusters, "a->b.enabled": "true"}), "a->b")
    ledger = MemoryLedger()
    keeper = LedgerKeeper(flow, ledger, Metrics(), "job")
    keeper.note("cycles", numbers(range(13)))
    for _ in range(3):
        keeper._tend()  # as its thread does
    (row,) = ledger.rows["anomalies"]
    assert row["kind"] == AnomalyKind.LEDGER_AWAY
    assert row["detail"].endswith("3 of cycles. The ledger has all runs")
