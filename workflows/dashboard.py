"""The AI/BI dashboard (Lakeview) of all flows: lag first, then groups, gates, losses and what is verified.

Its queries name tables and views alone; the dashboard's own fields `dataset_catalog` and `dataset_schema` say where.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from databricks.bundles.core import Resources

from workflows.settings import CATALOG, SCHEMA, Settings

COLUMNS = 6  # of the grid
FLOW = "concat(source, '->', target) AS flow"
RECENT = "current_timestamp() - INTERVAL 1 DAY"


class Kind(StrEnum):
    """How a tile shows the rows of its query."""

    LINE = "line"
    BAR = "bar"
    TABLE = "table"


@dataclass(frozen=True)
class Tile:
    """One tile of the dashboard.

    Attributes:
        key: name of its dataset.
        title: what it shows.
        query: SQL on tables and views.
        columns: columns of the result. Of a line or a bar: x, y and colour.
        kind: how it shows them.
        width: columns of the grid.
        height: rows of the grid.
    """

    key: str
    title: str
    query: str
    columns: tuple[str, ...]
    kind: Kind = Kind.TABLE
    width: int = COLUMNS
    height: int = 6

    def dataset(self) -> dict[str, Any]:
        lines = [line.strip() for line in self.query.strip().splitlines()]
        return {"name": self.key, "displayName": self.title, "queryLines": [f"{line}\n" for line in lines]}

    def widget(self) -> dict[str, Any]:
        fields = [{"name": name, "expression": f"`{name}`"} for name in self.columns]
        query = {"datasetName": self.key, "fields": fields, "disaggregated": True}
        return {
            "name": f"{self.key}_tile",
            "queries": [{"name": "main_query", "query": query}],
            "spec": {
                "version": 1 if self.kind is Kind.TABLE else 3,
                "widgetType": self.kind,
                "frame": {"showTitle": True, "title": self.title},
                "encodings": self._encodings(),
            },
        }

    def _encodings(self) -> dict[str, Any]:
        if self.kind is Kind.TABLE:
            return {"columns": [{"fieldName": name, "title": name, "displayName": name} for name in self.columns]}
        x, y, colour = self.columns
        scales = {"x": "temporal" if self.kind is Kind.LINE else "categorical", "y": "quantitative"}
        return {
            axis: {"fieldName": name, "displayName": name, "scale": {"type": scales.get(axis, "categorical")}}
            for axis, name in (("x", x), ("y", y), ("color", colour))
        }


TILES = (
    Tile(
        "flows",
        "Flows",
        f"""
        SELECT concat(s.source, '->', s.target) AS flow, s.lag,
               timestampdiff(MINUTE, s.mirrored_at, current_timestamp()) AS mirror_minutes,
               timestampdiff(MINUTE, s.checkpointed_at, current_timestamp()) AS checkpoint_minutes,
               coalesce(a.anomalies, 0) AS anomalies, coalesce(g.refused, 0) AS refused
        FROM (
          SELECT source, target, max_by(lag, finished_at) FILTER (WHERE job = 'mirror') AS lag,
                 max(finished_at) FILTER (WHERE job = 'mirror') AS mirrored_at,
                 max(finished_at) FILTER (WHERE job = 'checkpoint') AS checkpointed_at
          FROM cycles GROUP BY source, target
        ) s
        LEFT JOIN (
          SELECT source, target, count(*) AS anomalies
          FROM anomalies WHERE detected_at > {RECENT} GROUP BY source, target
        ) a ON a.source = s.source AND a.target = s.target
        LEFT JOIN (
          SELECT subject, count(DISTINCT cycle_id) AS refused
          FROM expectation_results WHERE NOT success AND evaluated_at > {RECENT} GROUP BY subject
        ) g ON g.subject = concat(s.source, '->', s.target)
        ORDER BY s.lag DESC
        """,
        ("flow", "lag", "mirror_minutes", "checkpoint_minutes", "anomalies", "refused"),
        height=4,
    ),
    Tile(
        "lag_over_time",
        "Lag: source offsets that are not mirrored",
        f"""
        SELECT {FLOW}, date_trunc('MINUTE', finished_at) AS minute, max(lag) AS lag
        FROM cycles WHERE job = 'mirror' AND finished_at > {RECENT} GROUP BY flow, minute
        """,
        ("minute", "lag", "flow"),
        Kind.LINE,
        width=3,
    ),
    Tile(
        "throughput",
        "Records per minute",
        f"""
        SELECT {FLOW}, date_trunc('MINUTE', committed_at) AS minute, sum(records) AS records
        FROM offset_syncs WHERE committed_at > {RECENT} GROUP BY flow, minute
        """,
        ("minute", "records", "flow"),
        Kind.LINE,
        width=3,
    ),
    Tile(
        "partitions",
        "Partitions that are furthest behind",
        f"""
        SELECT {FLOW}, topic, partition, state, lag, lag_seconds, reason, measured_at, is_stale
        FROM lag_now ORDER BY lag_seconds DESC NULLS FIRST LIMIT 100
        """,
        (
            "flow",
            "topic",
            "partition",
            "state",
            "lag",
            "lag_seconds",
            "reason",
            "measured_at",
            "is_stale",
        ),
        width=3,
    ),
    Tile(
        "groups",
        "Groups that are furthest behind",
        f"""
        SELECT {FLOW}, group_id, topic, partition, source_lag, target_lag
        FROM lag WHERE group_id IS NOT NULL ORDER BY source_lag DESC LIMIT 100
        """,
        ("flow", "group_id", "topic", "partition", "source_lag", "target_lag"),
        width=3,
    ),
    Tile(
        "positions",
        "Positions of groups by status",
        f"SELECT {FLOW}, status, count(*) AS positions FROM current_position GROUP BY flow, status",
        ("status", "positions", "flow"),
        Kind.BAR,
        width=3,
    ),
    Tile(
        "not_synced",
        "Positions that are not on the target",
        f"""
        SELECT {FLOW}, group_id, topic, partition, status, sync, reason
        FROM current_position WHERE sync IN ('held', 'refused') OR status <> 'exact' ORDER BY flow, group_id LIMIT 100
        """,
        ("flow", "group_id", "topic", "partition", "status", "sync", "reason"),
        width=3,
    ),
    Tile(
        "anomalies_shown",
        "Anomalies of the last week",
        f"""
        SELECT detected_at, {FLOW}, topic, partition, kind, action, detail
        FROM anomalies WHERE detected_at > current_timestamp() - INTERVAL 7 DAYS ORDER BY detected_at DESC LIMIT 100
        """,
        ("detected_at", "flow", "topic", "partition", "kind", "action", "detail"),
    ),
    Tile(
        "losses",
        "Lost records",
        f"""
        SELECT {FLOW}, topic, partition, from_offset, to_offset, kind, cause, committed_at
        FROM unmirrored WHERE is_loss ORDER BY committed_at DESC LIMIT 100
        """,
        ("flow", "topic", "partition", "from_offset", "to_offset", "kind", "cause", "committed_at"),
    ),
    Tile(
        "gates",
        "Gates that refused a commit",
        """
        SELECT evaluated_at, subject AS flow, suite, expectation, unexpected
        FROM expectation_results WHERE NOT success ORDER BY evaluated_at DESC LIMIT 100
        """,
        ("evaluated_at", "flow", "suite", "expectation", "unexpected"),
    ),
    Tile(
        "not_verified",
        "Records that no verification covers",
        f"""
        SELECT {FLOW}, topic, sum(records) AS records
        FROM unverified GROUP BY flow, topic ORDER BY records DESC LIMIT 100
        """,
        ("flow", "topic", "records"),
        width=3,
    ),
    Tile(
        "counts_that_differ",
        "Hours whose counts differ",
        f"""
        SELECT {FLOW}, topic, window_start, missing, surplus, status
        FROM completeness WHERE status IN ('missing', 'surplus') ORDER BY window_start DESC LIMIT 100
        """,
        ("flow", "topic", "window_start", "missing", "surplus", "status"),
        width=3,
    ),
)


def serialized() -> dict[str, Any]:
    """Returns the dashboard as Lakeview's JSON."""
    layout, x, y, row_height = [], 0, 0, 0
    for tile in TILES:
        if x + tile.width > COLUMNS:
            x, y, row_height = 0, y + row_height, 0
        position = {"x": x, "y": y, "width": tile.width, "height": tile.height}
        layout.append({"widget": tile.widget(), "position": position})
        x, row_height = x + tile.width, max(row_height, tile.height)
    page = {"name": "flows_page", "displayName": "Flows", "pageType": "PAGE_TYPE_CANVAS", "layout": layout}
    return {"datasets": [tile.dataset() for tile in TILES], "pages": [page]}


def add(resources: Resources, settings: Settings) -> None:
    """Adds the dashboard."""
    permissions = [{"group_name": settings.readers, "level": "CAN_READ"}] if settings.readers else []
    resources.add_dashboard(
        "dashboard",
        {
            "display_name": "mirrorlake",
            "warehouse_id": "${var.warehouse_id}",
            "dataset_catalog": CATALOG,
            "dataset_schema": SCHEMA,
            "serialized_dashboard": json.dumps(serialized()),
            "permissions": permissions,
        },
    )
