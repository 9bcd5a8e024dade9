"""The lag of each partition of a flow, measured on the brokers now."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.jobs.inspection.clusters import timeout_ms
from mirrorlake.jobs.mirror.lag_meter import measure


def rows_of(properties: Properties, name: str, deadline_s: float) -> list[dict[str, Any]]:
    """Measures a flow; returns a row for each partition, with the columns of the view lag_now.

    Raises:
        ConfigurationError: the flow is not valid.
        SourceError, TargetError: a cluster can't be read.
    """
    flow = replace(Flow.from_properties(properties, name), connect_timeout_ms=timeout_ms(deadline_s))
    found = measure(flow)
    return [
        {"flow": name, **asdict(one), "state": one.state.value, "measured_at": found.measured_at, "is_stale": False}
        for one in found.partitions
    ]
