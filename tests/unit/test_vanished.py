"""Mapped offsets of which neither log has a record: how many of them the logs' movement explains."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mirrorlake.jobs.verification.logs import Cleanup
from mirrorlake.jobs.verification.result import PartitionVerification, VerificationStatus
from mirrorlake.jobs.verification.segments import Extent
from mirrorlake.jobs.verification.summarize import _settle_vanished

KEY, REMOTE = ("t", 0), ("a.t", 0)


def settled(vanished: int, source_start: int, target_start: int, *, compacted: bool = False) -> PartitionVerification:
    """Settles a partition of 100 records whose logs began at 5 and 7 before they were compared, and begin there now."""
    extent = Extent(*KEY, *REMOTE, 0, 100, 0, 100, 100, -1, 0, 0, source_start=5, target_start=7)
    one = PartitionVerification(*KEY, *REMOTE, records=80, mapped=100, accounted=100 - vanished)
    cleaned = Cleanup({"t": 0, "a.t": 0} if compacted else {}, {})
    logs: Any = SimpleNamespace(
        starts=lambda _: ({KEY: source_start}, {REMOTE: target_start}), cleanup=lambda *_: cleaned
    )
    of_map: Any = SimpleNamespace(extents={KEY: extent})
    _settle_vanished([one], of_map, logs)
    return one


@pytest.mark.parametrize(
    ("vanished", "source_start", "target_start", "explained"),
    [(20, 5, 7, 0), (20, 6, 7, 1), (20, 5, 10, 3), (20, 25, 8, 20), (20, 90, 7, 20)],
)
def test_no_more_records_have_expired_meanwhile_than_a_log_has_lost_offsets(
    vanished: int, source_start: int, target_start: int, explained: int
) -> None:
    one = settled(vanished, source_start, target_start)
    left = vanished - explained
    assert (one.not_comparable, one.mapped - one.accounted) == (explained, left)
    assert one.notes == ([f"the map has {left} records that neither side has"] if left else [])
    assert one.status is (VerificationStatus.DIFFERENT if left else VerificationStatus.EQUAL)


def test_what_both_sides_compact_may_have_vanished_in_any_number() -> None:
    assert settled(20, 5, 7, compacted=True).not_comparable == 20
