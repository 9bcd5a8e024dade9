"""The copying task as Spark runs it: rows of ranges in, one row for each slot out; and what a worker keeps from one
micro-batch to the next."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from mirrorlake import errors
from mirrorlake.config.flow import Flow
from mirrorlake.failpoint import from_specification
from mirrorlake.jobs.mirror.copy.slot_copy import copy_slot
from mirrorlake.log import quiet_kafka
from mirrorlake.protocol.cluster import Cluster, Limits
from mirrorlake.state.provenance import Provenance
from mirrorlake.state.slot_report import SlotReport
from mirrorlake.transforms.frame import split

Connections = tuple[Cluster, Cluster, Provenance | None]  # source, target, who wrote what on the source

REPORT_SCHEMA = "slot INT, report STRING, error STRING"


def copy_task(flow: Flow, slots: int, generation: int, failpoint: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The function of a Spark task: rows of ranges in, one row for the slot out (REPORT_SCHEMA). One Spark partition is
    one slot."""

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        quiet_kafka()
        ranges, records = split(iter(batches))
        for slot in sorted({planned.slot for planned in ranges}):  # one, or none
            answer = copy_slot(
                flow,
                lambda: worker_connections(flow),
                slot,
                slots,
                generation,
                ranges,
                records,
                failpoint=from_specification(failpoint),
            )
            report, error = (
                (json.dumps(asdict(answer)), None)
                if isinstance(answer, SlotReport)
                else (None, json.dumps(errors.to_json(answer)))
            )
            if error:
                worker_connections.cache_clear()
            yield pa.RecordBatch.from_pydict(
                {
                    "slot": pa.array([slot], pa.int32()),
                    "report": pa.array([report], pa.string()),
                    "error": pa.array([error], pa.string()),
                },
            )

    return task


def connect(flow: Flow, limits: Limits) -> Connections:
    """Connects to both clusters of a flow, on one event loop.

    Args:
        flow: what is mirrored.
        limits: what is known of the sizes that remote topics take; it grows with what they refuse.
    """
    client_id = f"{flow.name}|copy"
    source = Cluster(flow.source_connection, "source", client_id, flow.connect_timeout_ms)
    target = Cluster(flow.target_connection, "target", client_id, flow.connect_timeout_ms, source.net)
    target.limits = limits
    return source.connect(), target.connect(), Provenance(flow, source) if flow.minds_provenance else None


@lru_cache(maxsize=1)
def worker_connections(flow: Flow) -> Connections:
    """Keeps warm, between micro-batches, the connections of this Spark worker and what it knows of producers."""
    return connect(flow, worker_limits(flow))


@lru_cache(maxsize=1)
def worker_limits(flow: Flow) -> Limits:  # noqa: ARG001 (each flow has its own)
    """What this Spark worker has learnt of the sizes that remote topics take; it outlives connections."""
    return Limits()
