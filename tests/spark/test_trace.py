"""The audit of traces in the ledger's tables."""

from __future__ import annotations

from mirrorlake.ledger.store import Ledger
from mirrorlake.ledger.trace import CHECKS
from mirrorlake.local import audit_trace

from tests.example_ledger import gap, run

PAIR = {"source": "doctored", "target": "east"}


def test_the_rows_of_a_flow_keep_the_invariants_and_doctored_ones_are_named_with_their_places(example: Ledger) -> None:
    example.append(
        "offset_syncs",
        [
            run(2, "orders", 0, (0, 100), 0, "13:50:00", **PAIR),
            run(4, "orders", 0, (110, 200), 101, "13:52:00", producer_epoch=2, **PAIR),  # a hole; the epoch of before
            run(6, "orders", 0, (200, 300), 150, "13:53:00", **PAIR),  # on the target before the end of the last run
            run(8, "orders", 1, (0, 100), 0, "13:54:00", records=99, **PAIR),
            run(10, "orders", 2, (50, 80), 0, "13:55:00", **PAIR),
            run(12, "orders", 2, (0, 50), 40, "13:56:00", **PAIR),  # later, though before
            run(3, "orders", 3, (0, 10), 0, "13:57:00", sync_partition=1, **PAIR),  # by the producer of slot 0
        ],
    )
    example.append("gaps", [gap(2, "orders", 1, (100, 110), "marker", 100, "13:54:00", **PAIR)])
    report, is_true = audit_trace.audit_warehouse(example)
    assert not is_true
    west = report.index("flow west->east, tables: 6 runs, 3 transactions, 1 slots, 1 producers, 3 partitions, 5 gaps")
    honest, doctored = report[west + 1 :], report[1:west]
    assert [line.split("  ")[1] for line in honest] == ["holds"] * len(CHECKS)
    assert [line.split("  ")[1] for line in doctored[: len(CHECKS)]] == ["FAILS"] * len(CHECKS)
    assert (
        "  flow doctored->east, slot 0, state at offset 4, topic orders, partition 0: upstream offsets [110, 200) "
        "follow 100 (runs and gaps continue where the position stood)"
    ) in doctored
