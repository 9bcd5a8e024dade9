"""The copying task as Spark runs it, and the connections that a worker keeps between micro-batches.

A task turns rows of ranges into one row for its slot.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from mirrorlake import errors, spare_memory
from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError
from mirrorlake.failpoint import from_specification
from mirrorlake.jobs.mirror.copy.slot_copy import copy_slot
from mirrorlake.log import quiet_kafka
from mirrorlake.model.copy_plan import Range
from mirrorlake.protocol.cluster import Cluster, connect_both
from mirrorlake.protocol.limits import Limits
from mirrorlake.state.provenance import Provenance
from mirrorlake.state.slot_report import SlotReport
from mirrorlake.transforms.frame import split

Connections = tuple[Cluster, Cluster, Provenance | None]  # source, target, provenance of the source's batches

REPORT_SCHEMA = "slot INT, report STRING, error STRING"


def copy_task(
    flow: Flow,
    slots: int,
    generation: int,
    longest_s: float,
    failpoint: str,
    planned: Sequence[bytes] | None = None,
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Returns the function of a Spark task, which turns its input into the slot's row (REPORT_SCHEMA).

    One Spark partition is one slot. Its input is the number of an element of `planned`; or, without it, ranges and
    transformed records.

    Args:
        flow: flow to mirror.
        slots: number of slots in the plan.
        generation: generation of the plan.
        longest_s: the time for which each slot copies at most.
        failpoint: step at which tests let the task die.
        planned: the ranges of each slot that has some, packed, if no topic among them has a transform.
    """

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        quiet_kafka()
        spare_memory.of_process().give_back_if_due()
        given = iter(batches)
        ranges, records = split(given) if planned is None else (chosen(given, planned), iter(()))
        for slot in sorted({planned.slot for planned in ranges}):  # one, or none
            answer = copy_slot(
                flow,
                lambda: worker_connections(flow),
                slot=slot,
                slots=slots,
                generation=generation,
                longest_s=longest_s,
                ranges=ranges,
                records=records,
                failpoint=from_specification(failpoint),
            )
            report, error = (
                (json.dumps(vars(answer)), None)  # plain values
                if isinstance(answer, SlotReport)
                else (None, json.dumps(errors.to_json(answer)))
            )
            if error:
                drop_connections()
                if isinstance(answer, MirrorlakeError) and answer.retriable:
                    for _ in given:  # else this worker ends, and with it what it has learnt of records and topics
                        pass
            yield pa.RecordBatch.from_pydict(
                {
                    "slot": pa.array([slot], pa.int32()),
                    "report": pa.array([report], pa.string()),
                    "error": pa.array([error], pa.string()),
                },
            )

    return task


def packed(ranges: Sequence[Range]) -> bytes:
    """Packs the ranges of a slot. Spark gives each task the whole plan, of which the task reads only its own part."""
    return pickle.dumps(ranges)


def chosen(batches: Iterable[Any], planned: Sequence[bytes]) -> list[Range]:
    """Returns the ranges whose number is the only value of a task's input."""
    numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
    return [one for number in numbers for one in pickle.loads(planned[number])]


def connect(flow: Flow, limits: Limits) -> Connections:
    """Connects to both clusters of a flow, on one event loop.

    Args:
        flow: flow to mirror.
        limits: known size limits of remote topics; refused batches lower them.
    """
    source, target = connect_both(flow, "copy", again=True)
    target.limits = limits
    for cluster in (source, target):
        cluster.share_refusals(limits.refused_lanes.setdefault(cluster.side, {}))
    return source, target, Provenance(flow, source) if flow.minds_provenance else None


_kept: dict[Flow, Connections] = {}  # those of the flow that this worker has copied last


def worker_connections(flow: Flow) -> Connections:
    """Returns the connections of this Spark worker and its provenance, kept between micro-batches."""
    if flow not in _kept:
        drop_connections()
        _kept[flow] = connect(flow, worker_limits(flow))
    return _kept[flow]


def drop_connections() -> None:
    """Closes the connections of this Spark worker; the next task makes new ones."""
    for source, target, _ in _kept.values():
        source.close()
        target.close()
    _kept.clear()


@lru_cache(maxsize=1)
def worker_limits(flow: Flow) -> Limits:  # noqa: ARG001 (each flow has its own)
    """Returns the size limits of remote topics that this Spark worker knows; they outlive connections."""
    return Limits()
