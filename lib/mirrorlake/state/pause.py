"""The pause of a flow: an operator's order to every job of the flow, recorded on the target with who and why.

The topic `mirrorlake.pause.<source>.internal` has one record for each pause and each resumption; the last one holds.
The order is no part of the protocol: a job that has not read it yet goes on for some seconds, and does no harm. So it
is apart from the states, and takes no new generation: a running job is not fenced, and a failover needs no exception.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError, TargetError
from mirrorlake.printable import printable
from mirrorlake.protocol.admin import Admin, NewTopic
from mirrorlake.protocol.clients.record import append_record
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Cluster
from mirrorlake.state.offset_syncs import committed_messages, topic_config

PREFIX, SUFFIX = "mirrorlake.pause.", ".internal"
VERSION = 1
LOOK_S = 5.0  # between two looks of a running job
BESIDE_S = 0.25  # for which a look holds up a job that knows the last answer; then it goes on beside the job
LONGEST_REASON, LONGEST_NAME = 500, 100
READ = 3  # AclOperation


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause that holds.

    Attributes:
        by: the person who has ordered it.
        reason: why.
        at_ms: since when, in ms since the epoch.
    """

    by: str
    reason: str
    at_ms: int

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)

    def __str__(self) -> str:
        return f"paused by {self.by} at {self.at:%Y-%m-%d %H:%M:%S} UTC: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"at": self.at.isoformat(timespec="seconds")}


def pause_topic(alias: str) -> str:
    """Names the topic on the target that records the pauses of the flow from the cluster of that alias."""
    return f"{PREFIX}{alias}{SUFFIX}"


def read_pause(target: Cluster, flow: Flow, timeout_ms: int) -> Pause | None:
    """Reads the pause of a flow; None if it is not paused.

    Raises:
        TargetError: the record can't be read. A job must not go on then, as it might be paused.
    """
    found: Pause | None = target.net.run(lambda: read_pause_async(target, flow, timeout_ms))
    return found


async def read_pause_async(target: Cluster, flow: Flow, timeout_ms: int) -> Pause | None:
    """Does the same as `read_pause`, for use inside the event loop."""
    order = await _read_order(target, flow, timeout_ms)
    return None if order is None else parse_order(order, flow)


def read_order(target: Cluster, flow: Flow, timeout_ms: int) -> bytes | None:
    """Reads the last record of a flow's pause topic, whatever it says; None if there is none.

    Raises:
        TargetError: the record can't be read.
    """
    found: bytes | None = target.net.run(lambda: _read_order(target, flow, timeout_ms))
    return found


async def _read_order(target: Cluster, flow: Flow, timeout_ms: int) -> bytes | None:
    topic = pause_topic(flow.source)
    key = topic, 0

    async def listed(at: int) -> int:
        return (await target.retry("listing offsets", lambda: target.list_offsets([key], at), timeout_ms))[key]

    described = await target.retry(
        "reading metadata", lambda: target.update_metadata([topic], operations=True), timeout_ms
    )
    there = described.get(topic)
    if there is None or not there.leaders:  # also where the principal may not even describe it
        return None
    if not there.allows(READ):
        raise TargetError(
            f"flow {flow.name}: the principal needs READ on TOPIC {topic} of cluster {flow.target}, which says whether "
            "the flow is paused. Grant it and start again"
        )
    first, end = await target.together(partial(listed, EARLIEST_TIMESTAMP), partial(listed, LATEST_TIMESTAMP))
    for start in range(end - 1, first - 1, -1):
        for message in await committed_messages(target, key, start, start + 1, timeout_ms):
            return message.value or b""
    return None


def parse_order(value: bytes, flow: Flow) -> Pause | None:
    """Parses a record of a flow's pause topic; None if the flow is not paused.

    Raises:
        TargetError: it is of a later version, or of another program.
    """
    try:
        found = json.loads(value)
        if found["version"] != VERSION:
            raise ValueError(found["version"])
        if not found["paused"]:
            return None
        return Pause(
            printable(str(found["by"]), LONGEST_NAME),
            printable(str(found["reason"]), LONGEST_REASON),
            int(found["at_ms"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        raise TargetError(
            f"flow {flow.name}: the last record of topic {pause_topic(flow.source)} on cluster {flow.target} is none "
            "that this version of mirrorlake has written. Upgrade mirrorlake, or record the pause anew: mirrorlake "
            "resume, or pause"
        ) from None


def record_pause(flow: Flow, pause: Pause) -> None:
    """Records that a flow is paused; creates the topic if it is missing.

    Raises:
        TargetError: the topic can't be created or written.
    """
    _record(flow, {"paused": True, **asdict(pause)})


def record_resumption(flow: Flow, by: str, reason: str, at_ms: int) -> None:
    """Records that a flow is paused no longer.

    Raises:
        TargetError: the topic can't be written.
    """
    _record(flow, {"paused": False, "by": by, "reason": reason, "at_ms": at_ms})


def _record(flow: Flow, order: dict[str, Any]) -> None:
    topic = pause_topic(flow.source)
    admin = Admin(flow.target_connection, "target", flow.name)
    if topic not in admin.partitions():
        # A small cluster can't have the default of three replicas, but the order must get through.
        for factor in (flow.offset_syncs_replication_factor, -1):
            refusals = admin.create([NewTopic(topic, 1, factor, config=topic_config(factor))])
            if not refusals:
                break
        for error in refusals.values():
            raise error
    value = json.dumps({"version": VERSION, **order}).encode()
    append_record(
        flow.target_connection,
        f"{flow.name}|pause",
        topic,
        flow.name.encode(),
        value,
        flow.connect_timeout_ms / 1_000,
    )


class PauseWatch:
    """The pause of a flow as a running job knows it: read again every few seconds.

    Only the first look holds up the job. A later one that takes long, as the topic has no leader, goes on beside the
    job's own requests, on the event loop of the target.

    Args:
        clock: monotonic clock, in seconds.
        holds_s: seconds for which later looks hold up the job, once in LOOK_S. A job that looks seldom needs enough for
            an answer: one that comes afterwards is as old as its last look when it is taken.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, holds_s: float = BESIDE_S) -> None:
        self._clock, self._holds_s = clock, holds_s
        self._due = self._held_at = float("-inf")
        self._known: Pause | None = None
        self._has_read = False
        self._under_way: Any = None  # the future of a look
        self._asked: Cluster | None = None

    def look(self, target: Cluster, flow: Flow) -> Pause | None:
        """Returns the pause; None if the flow is not paused, or if this job goes on in a pause (`ignores_pause`).

        An error that may pass changes nothing: the last answer holds, if there is one.

        Raises:
            TargetError: see `read_pause`.
        """
        began = self._clock()
        for _ in range(2):  # what has come first may be old
            self.begin(target, flow)
            until = began + (self._holds_s if began >= self._held_at + LOOK_S else 0.0)
            if self._under_way is not None:
                self._wait(target, until)
        return self._known

    def begin(self, target: Cluster, flow: Flow) -> None:
        """Sends a look that is due, so that it goes on while the job asks for other things.

        Raises:
            TargetError: as `look`, for the look before.
        """
        if flow.ignores_pause:
            return
        if self._asked is not target:  # a look that is under way has ended with its connections
            if self._under_way is not None:
                self._due = self._held_at = float("-inf")
            self._under_way, self._asked = None, target
        if self._under_way is not None and self._under_way.is_done:
            self._take()
        if self._under_way is None and self._clock() >= self._due:
            self._due = self._clock() + LOOK_S
            self._under_way = target.net.call_soon_with_future(
                partial(read_pause_async, target, flow, flow.connect_timeout_ms)
            )

    def _wait(self, target: Cluster, until: float) -> None:
        """Waits for the look that is under way, and takes its answer if it has come."""
        waits_s = max(0.0, until - self._clock())
        target.net.poll(timeout_ms=1000 * waits_s if self._has_read else None, future=self._under_way)
        if self._under_way.is_done:
            self._take()
        elif waits_s:
            self._held_at = self._clock()

    def _take(self) -> None:
        """Takes the answer of a look that has ended."""
        ended, self._under_way = self._under_way, None
        error = ended.exception
        if error is None:
            self._known, self._has_read = ended.value, True
        elif not (isinstance(error, MirrorlakeError) and error.retriable and self._has_read):
            self._due = float("-inf")
            raise error
