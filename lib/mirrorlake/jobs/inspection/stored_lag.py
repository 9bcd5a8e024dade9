"""The lag of each partition as the mirror jobs have last measured it, from a local warehouse."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from mirrorlake.ledger.local_tables import LocalTables

AHEAD = timedelta(minutes=5)
LOOK_BACK = (timedelta(hours=1), timedelta(days=30))  # a job that runs has measured within the first


def newest(tables: LocalTables, names: Collection[str], now: datetime | None = None) -> list[dict[str, Any]]:
    """Returns the newest measurement of flows, with the columns of the view lag_now and the name of the flow.

    Args:
        tables: the tables.
        names: the flows; one without a measurement is left out.
        now: the present time; None for this machine's clock.

    Raises:
        LedgerError: the table can't be read.
    """
    now = now or datetime.now(UTC)
    found: dict[str, dict[str, Any]] = {}
    for back in LOOK_BACK:
        until = now + AHEAD  # not by a clock that was further ahead
        for row in tables.newest(
            "lag_samples", ("source", "target"), ("due_at",), "measured_at", now - back, until=until
        ):
            name = f"{row['source']}->{row['target']}"
            if name in names:
                found[name] = row
        if {*names} <= found.keys():
            break
    return [
        {"flow": name, **one, "measured_at": row["measured_at"], "is_stale": _utc(row["due_at"]) < now}
        for name, row in found.items()
        for one in _partitions(tables, row)
    ]


def _partitions(tables: LocalTables, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Reads the partitions of one measurement. Those of all, thousands of times a month, would not fit into memory."""
    at = _utc(row["measured_at"])
    of = {name: row[name] for name in ("source", "target", "measured_at")}
    (whole,) = tables.rows("lag_samples", ("partitions",), "measured_at", at, of)[:1] or [{"partitions": []}]
    found: list[dict[str, Any]] = whole["partitions"]
    return found


def _utc(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)
