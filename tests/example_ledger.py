"""The ledger that docs/sql.md shows: small, and always the same."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from mirrorlake.ledger.store import Ledger
from mirrorlake.reasons import PositionReason

DAY = datetime(2026, 11, 20)
WEST_EAST = {"source": "west", "target": "east"}


def at(time: str) -> datetime:
    hours, minutes, seconds = map(int, time.split(":"))
    return DAY + timedelta(hours=hours, minutes=minutes, seconds=seconds)


def run(
    sync_offset: int,
    topic: str,
    partition: int,
    upstream: tuple[int, int],
    downstream_start: int,
    committed: str,
    incarnation: int = 0,
    /,
    **changes: Any,
) -> dict[str, Any]:
    start, end = upstream
    return {
        **WEST_EAST,
        "topic": topic,
        "partition": partition,
        "target_topic": f"west.{topic}",
        "target_partition": partition,
        "upstream_start": start,
        "upstream_end": end,
        "downstream_start": downstream_start,
        "downstream_end": downstream_start + end - start,
        "records": end - start,
        "bytes": 100 * (end - start),
        "first_timestamp": at(committed) - timedelta(seconds=60),
        "last_timestamp": at(committed) - timedelta(seconds=2),
        "digest": "0badcafe",
        "transactional_id": "mirrorlake.west.east.slot-0",
        "producer_id": 1,
        "producer_epoch": sync_offset,
        "sync_partition": 0,
        "sync_offset": sync_offset,
        "committed_at": at(committed),
        "inferred": False,
        "incarnation": incarnation,
        "shared": False,
        **changes,
    }


def gap(
    sync_offset: int,
    topic: str,
    partition: int,
    upstream: tuple[int, int],
    kind: str,
    downstream_offset: int,
    committed: str,
    incarnation: int = 0,
    /,
    **changes: Any,
) -> dict[str, Any]:
    return {
        **WEST_EAST,
        "topic": topic,
        "partition": partition,
        "from_offset": upstream[0],
        "to_offset": upstream[1],
        "kind": kind,
        "incarnation": incarnation,
        "downstream_offset": downstream_offset,
        "sync_partition": 0,
        "sync_offset": sync_offset,
        "committed_at": at(committed),
        **changes,
    }


def checkpoint(
    group_id: str,
    topic: str | None,
    partition: int | None,
    offsets: tuple[int | None, int | None],
    created: str,
    **changes: Any,
) -> dict[str, Any]:
    return {
        **WEST_EAST,
        "group_id": group_id,
        "topic": topic,
        "partition": partition,
        "target_topic": topic and f"west.{topic}",
        "target_partition": partition,
        "upstream_offset": offsets[0],
        "downstream_offset": offsets[1],
        "metadata": "",
        "status": "exact",
        "cycle_id": created,
        "created_at": at(created),
        "sync": "committed",
        **changes,
    }


def verification(
    number: int,
    topic: str,
    partition: int,
    upstream: tuple[int, int],
    started: str,
    *,
    passed: bool = True,
    **changes: Any,
) -> dict[str, Any]:
    return {
        **WEST_EAST,
        "verification_id": f"v{number}",
        "mode": "incremental",
        "topic": topic,
        "partition": partition,
        "target_topic": f"west.{topic}",
        "target_partition": partition,
        "upstream_from": upstream[0],
        "upstream_to": upstream[1],
        "records": upstream[1] - upstream[0],
        "digested": 0,
        "missing": 0,
        "duplicated": 0,
        "out_of_order": 0,
        "different": 0 if passed else 1,
        "unexpected": 0,
        "not_comparable": 0,
        "status": "equal" if passed else "different",
        "passed": passed,
        "offset_syncs_version": 1,
        "gaps_version": 1,
        "started_at": at(started),
        "finished_at": at(started) + timedelta(seconds=20),
        **changes,
    }


def counted(
    topic: str, counting: int, hour: int, records: tuple[int, int], counted_at: str, **changes: Any
) -> dict[str, Any]:
    return {
        **WEST_EAST,
        "topic": topic,
        "target_topic": f"west.{topic}",
        "counting": counting,
        "window_start": DAY + timedelta(hours=hour),
        "window_end": DAY + timedelta(hours=hour + 1),
        "source_records": records[0],
        "target_records": records[1],
        "counted_at": at(counted_at),
        "due_at": at(counted_at) - timedelta(hours=1),
        "source_offsets": {0: 0},
        "target_offsets": {0: 0},
        **changes,
    }


def lag_sample(measured: str, *partitions: dict[str, Any]) -> dict[str, Any]:
    return {
        **WEST_EAST,
        "measured_at": at(measured),
        "due_at": at(measured) + timedelta(minutes=7),
        "records": sum(one["lag"] for one in partitions),
        "seconds": max(one["lag_seconds"] for one in partitions),
        "uncommitted": 0,
        "partitions": [
            {
                "reason": None,
                "high_watermark": one["last_stable_offset"],
                "uncommitted": 0,
                "oldest_at": at(measured) - timedelta(seconds=one["lag_seconds"]) if one["lag"] else None,
                **one,
            }
            for one in partitions
        ],
    }


def partition_lag(
    topic: str, partition: int, offsets: tuple[int, int], seconds: float = 0.0, state: str = "mirroring", **more: Any
) -> dict[str, Any]:
    upstream_next, end = offsets
    return {
        "topic": topic,
        "partition": partition,
        "state": state,
        "upstream_next": upstream_next,
        "last_stable_offset": end,
        "lag": end - upstream_next,
        "lag_seconds": seconds,
        **more,
    }


def fill(ledger: Ledger) -> Ledger:
    """Writes the rows into empty tables."""
    ledger.append(
        "offset_syncs",
        [
            run(2, "orders", 0, (0, 500), 0, "13:50:00"),
            run(2, "orders", 1, (120, 400), 0, "13:50:00"),
            run(2, "payments", 0, (0, 300), 0, "13:50:00"),
            run(4, "orders", 0, (520, 900), 501, "13:52:00"),
            run(4, "orders", 1, (450, 700), 281, "13:52:00"),
            run(6, "payments", 0, (250, 400), 301, "13:56:00", incarnation=1),
        ],
    )
    ledger.append(
        "gaps",
        [
            gap(
                4,
                "orders",
                0,
                (500, 901),
                "several",
                500,
                "13:52:00",
                parts=[(0, 1, "marker", 0), (1, 19, "aborted", 0), (400, 1, "marker", 381)],
            ),
            gap(4, "orders", 1, (400, 450), "retention", 280, "13:52:00"),
            gap(6, "payments", 0, (250, 300), "truncated", 300, "13:56:00"),
        ],
    )
    ledger.append(
        "checkpoints",
        [
            checkpoint("billing", "orders", 0, (300, 300), "13:50:30", source_lag=200),
            checkpoint("billing", "orders", 1, (390, 270), "13:50:30", source_lag=10),
            checkpoint("billing", "orders", 0, (510, 501), "13:54:10", source_lag=391),
            checkpoint("billing", "orders", 0, (901, 881), "13:58:00", source_lag=49),
            checkpoint(
                "fraud",
                "payments",
                0,
                (120, 120),
                "13:50:30",
                source_lag=180,
                sync="held",
                reason=PositionReason.MEMBERS,
            ),
            checkpoint(
                "reports",
                "orders",
                0,
                (950, 881),
                "13:58:00",
                source_lag=0,
                status="clamped",
                reason=PositionReason.PAST_THE_MIRROR,
            ),
            checkpoint("trial", "orders", 1, (200, 80), "13:50:30", source_lag=200),
            checkpoint(
                "trial",
                None,
                None,
                (None, None),
                "13:53:00",
                status="deleted",
                sync="held",
                reason=PositionReason.GROUP_GONE,
            ),
        ],
    )
    ledger.append(
        "verifications",
        [
            verification(1, "orders", 0, (0, 700), "13:53:00"),
            verification(1, "orders", 1, (120, 300), "13:53:00"),
            verification(1, "orders", 1, (450, 700), "13:53:00", passed=False),
            verification(1, "payments", 0, (0, 300), "13:53:00"),
            verification(2, "orders", 1, (120, 700), "13:54:00", mode="sample"),
        ],
    )
    ledger.append(
        "counts",
        [
            counted("orders", 1, 11, (500, 500), "12:35:00"),
            counted("orders", 1, 12, (300, 280), "12:35:00"),
            counted("orders", 2, 12, (150, 150), "13:35:00"),
            counted("orders", 2, 13, (350, 300), "13:35:00"),
            counted(
                "payments",
                1,
                13,
                (400, 0),
                "13:35:00",
                neutral="compacted on the source: the log cleaner deletes records",
            ),
        ],
    )
    ledger.append(
        "lag_samples",
        [
            lag_sample("13:57:00", partition_lag("orders", 0, (500, 950), 90.0)),
            lag_sample(
                "13:58:00",
                partition_lag("orders", 0, (901, 950), 4.2),
                partition_lag("orders", 1, (700, 700)),
                partition_lag("payments", 0, (400, 400), high_watermark=430, uncommitted=30),
                partition_lag("returns", 0, (10, 70), 86_400.0, "paused", reason="mirrorlake.topics.paused"),
            ),
        ],
    )
    return ledger


def write_flow(directory: Path, **more: str) -> Path:
    """Writes a property file of the flow, whose clusters don't exist; returns its path."""
    values = {
        "clusters": "west, east", "west.bootstrap.servers": "localhost:1", "east.bootstrap.servers": "localhost:2",
        "west->east.enabled": "true", "topics": "orders|payments|new", "mirrorlake.connect.timeout.ms": "300", **more,
    }  # fmt: skip
    file = directory / "mirrorlake.properties"
    file.write_text("".join(f"{name} = {value}\n" for name, value in values.items()))
    return file
