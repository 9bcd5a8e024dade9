"""Canaries: a record and the offset of a group that travel the whole way, so that users' latency is measured.

A canary is a heartbeat on the source, in MirrorMaker 2's topic and format. The flow mirrors it as any record, and a
consumer with read_committed sees it on the target. At longer intervals, a group commits the offset behind it on the
source, and the checkpoint job brings it to the target. Time is taken by one clock, that of this process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from mirrorlake.config.flow import Flow
from mirrorlake.config.replication_policy import HEARTBEATS
from mirrorlake.errors import MirrorlakeError, unexpected
from mirrorlake.log import event
from mirrorlake.metrics import Metrics
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.clients.arrivals import Arrivals
from mirrorlake.protocol.cluster import LATEST_TIMESTAMP, Cluster, connect_both
from mirrorlake.protocol.group_offsets import commit_group_offsets, group_offsets
from mirrorlake.protocol.group_requests import delete_group
from mirrorlake.protocol.mm2_topics import Mm2Topic, heartbeat

log = logging.getLogger(__name__)

RECORD, GROUP = "record", "group"  # what travels: values of the label path
NEWEST = 360  # canaries that quantiles and burn are of; an hour, at an interval of ten seconds
GROUP_EVERY_S = 60.0  # each moves a position, and so makes a row of checkpoints
POLL_S, LOOK_S, RETRY_S = 0.2, 1.0, 5.0
GIVEN_UP_AFTER = 10  # times of the SLA
ENDS_WITHIN_S = 8.0


@dataclass
class Objective:
    """The canaries of one path, and how they have kept their time.

    Args:
        flow: the flow.
        path: RECORD or GROUP.
        sla_s: the time within which a canary must arrive.
        objective: the share that must arrive in time, below 1.
        metrics: the metrics to update.
    """

    flow: str
    path: str
    sla_s: float
    objective: float
    metrics: Metrics
    _under_way: dict[int, float] = field(default_factory=dict)  # when each was sent
    _late: set[int] = field(default_factory=set)
    _newest: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=NEWEST))

    def __post_init__(self) -> None:
        for counter in (self.metrics.canaries, self.metrics.late_canaries):  # one that begins with 1 has no increase
            counter.labels(self.flow, self.path)

    def sent(self, canary: int, at_s: float) -> None:
        """Notes that a canary was sent, or should have been."""
        self._under_way[canary] = at_s
        self.metrics.canaries.labels(self.flow, self.path).inc()

    def arrived(self, canary: int, at_s: float) -> None:
        """Notes the arrival of a canary; one that is not known was sent by another job."""
        if (sent_at_s := self._under_way.pop(canary, None)) is None:
            return
        took_s = at_s - sent_at_s
        self.metrics.canary_seconds.labels(self.flow, self.path).observe(took_s)
        if canary in self._late:
            self._late.discard(canary)
        else:
            self._judge(took_s, is_late=took_s > self.sla_s)

    def look(self, now_s: float) -> None:
        """Counts the canaries that are late by now; gives up those that are late for long."""
        for canary, sent_at_s in list(self._under_way.items()):
            waited_s = now_s - sent_at_s
            if waited_s > self.sla_s and canary not in self._late:
                self._late.add(canary)
                self._judge(waited_s, is_late=True)
            if waited_s > GIVEN_UP_AFTER * self.sla_s:
                del self._under_way[canary]
                self._late.discard(canary)

    def forget(self) -> None:
        """Forgets the canaries under way, which nobody carries on, and those before them: none burns on in a pause."""
        self._under_way.clear()
        self._late.clear()
        self._newest.clear()
        self.metrics.canary_burn_ratio.labels(self.flow, self.path).set(0)

    @property
    def is_waiting(self) -> bool:
        """Whether a canary is under way."""
        return bool(self._under_way)

    def _judge(self, took_s: float, *, is_late: bool) -> None:
        self._newest.append((took_s, is_late))
        if is_late:
            self.metrics.late_canaries.labels(self.flow, self.path).inc()
        times = sorted(took for took, _ in self._newest)
        for quantile in (0.5, 0.99):
            value = times[min(len(times) - 1, int(quantile * len(times)))]
            self.metrics.canary_quantile_seconds.labels(self.flow, self.path, str(quantile)).set(value)
        late = sum(is_late for _, is_late in self._newest) / NEWEST  # of few, one would be too many
        self.metrics.canary_burn_ratio.labels(self.flow, self.path).set(late / (1 - self.objective))


class Canary:
    """Sends canaries while a mirror job runs, in a thread of its own. It holds up nothing, and its errors stop nothing.

    Args:
        flow: the flow, with `canary_enabled`.
        metrics: the metrics to update.
        is_paused: tells whether the flow is paused. No canary is sent then, and none is late.
        clock: returns the time in seconds, monotonic.
    """

    def __init__(
        self,
        flow: Flow,
        metrics: Metrics,
        is_paused: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._flow, self._is_paused, self._clock = flow, is_paused, clock
        objective = flow.canary_objective_percent / 100
        self._records = Objective(flow.name, RECORD, flow.canary_record_sla_ms / 1000, objective, metrics)
        self._groups = Objective(flow.name, GROUP, flow.canary_group_sla_ms / 1000, objective, metrics)
        self._heartbeats = Mm2Topic(
            flow.source_connection, HEARTBEATS, flow.heartbeats_replication_factor, f"{flow.name}|canary"
        )
        self._here: PartitionKey = HEARTBEATS, 0
        self._there: PartitionKey = flow.policy.remote_topic(HEARTBEATS), 0
        self._clusters: tuple[Cluster, Cluster] | None = None
        self._arrivals: Arrivals | None = None
        self._due = self._group_due = self._look_due = 0.0
        self._awaited: tuple[int, int] | None = None  # the group's canary, and the offset that it has on the target
        self._trouble = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"canary {flow.name}", daemon=True)

    def prepare(self) -> None:
        """Sees to it that the heartbeats topic is there before the flow looks for topics. The record is no canary."""
        self._send(int(1000 * time.time()))

    def start(self) -> None:
        """Starts to send canaries."""
        self._thread.start()

    def finish(self) -> None:
        """Ends, and deletes the group on both clusters; waits for ENDS_WITHIN_S at most."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(ENDS_WITHIN_S)

    def _keep(self) -> None:
        while not self._ending.is_set():
            if self._is_paused():
                self._wait_in_pause()
                continue
            try:
                self._step()
            except Exception as error:  # whatever it is, the job goes on
                known = error if isinstance(error, MirrorlakeError) else unexpected("sending a canary", error)
                if str(known) != self._trouble:
                    log.warning(event("canary_not_sent", flow=self._flow.name, error=known))
                self._trouble = str(known)
                self._close()
                if self._clock() >= self._due:  # one that can't be sent does not arrive in time
                    self._begin()
                self._ending.wait(RETRY_S)
            self._records.look(self._clock())
            self._groups.look(self._clock())
        if self._group_due:
            self._delete_group()
        self._close()

    def _wait_in_pause(self) -> None:
        self._records.forget()
        self._groups.forget()
        self._awaited = None
        self._close()
        self._ending.wait(LOOK_S)

    def _step(self) -> None:
        if self._clusters is None:
            self._clusters = connect_both(self._flow, "canary", again=True)
        if self._arrivals is None:
            self._arrivals = Arrivals(self._flow.target_connection, *self._there, client_id=f"{self._flow.name}|canary")
        if self._clock() >= self._due:
            canary = self._begin()
            self._send(canary)
        for key, value, offset in self._arrivals.poll(POLL_S):
            if key == heartbeat(self._flow.source, self._flow.target, 0)[0]:
                canary = int.from_bytes(value[-8:], "big")
                self._records.arrived(canary, self._clock())
                self._move_group(canary, offset)
        self._look_at_group()
        self._trouble = ""

    # -- the record ---------------------------------------------------------------------------------

    def _begin(self) -> int:
        """Returns the next canary, which is the time in ms, and the heartbeat's own."""
        canary = int(1000 * time.time())
        self._due = self._clock() + self._flow.canary_interval_s
        self._records.sent(canary, self._clock())
        return canary

    def _send(self, canary: int) -> None:
        self._heartbeats.write([(*heartbeat(self._flow.source, self._flow.target, canary), canary)])

    # -- the group ----------------------------------------------------------------------------------

    def _move_group(self, canary: int, offset: int) -> None:
        """Commits the group behind a canary that has arrived, if it is time to."""
        is_due = self._clock() >= self._group_due and not self._groups.is_waiting
        if not (is_due and self._flow.sync_group_offsets_enabled) or self._clusters is None:
            return
        source, timeout_ms = self._clusters[0], self._flow.connect_timeout_ms
        self._group_due = self._clock() + max(GROUP_EVERY_S, self._flow.canary_interval_s)
        source.refresh([self._here[0]], timeout_ms)
        end = source.offsets([self._here], LATEST_TIMESTAMP, timeout_ms)[self._here]
        refused = commit_group_offsets(source, {self._flow.canary_group: {self._here: (end, "")}}, timeout_ms)
        for errors in refused.values():
            raise source.explained(f"committing the canary's group {self._flow.canary_group}", errors[self._here])
        self._groups.sent(canary, self._clock())
        self._awaited = canary, offset + 1

    def _look_at_group(self) -> None:
        """Looks whether the group has arrived on the target."""
        if self._awaited is None or self._clock() < self._look_due or self._clusters is None:
            return
        self._look_due = self._clock() + LOOK_S
        group = self._flow.canary_group
        found = group_offsets(self._clusters[1], [group], self._flow.connect_timeout_ms).get(group, [])
        canary, offset = self._awaited
        if any((one.topic, one.partition) == self._there and one.offset >= offset for one in found):
            self._groups.arrived(canary, self._clock())
            self._awaited = None
        elif not self._groups.is_waiting:
            self._awaited = None

    def _delete_group(self) -> None:
        flow, timeout_ms = self._flow, int(1_000 * ENDS_WITHIN_S / 3)
        for connection, side in ((flow.target_connection, "target"), (flow.source_connection, "source")):
            try:
                with closing(
                    Cluster(connection, side, f"{flow.name}|canary", timeout_ms).connect(again=True)
                ) as cluster:
                    delete_group(cluster, flow.canary_group, timeout_ms)
            except MirrorlakeError as error:
                log.info(event("canary_group_left", flow=flow.name, error=error))

    def _close(self) -> None:
        for cluster in self._clusters or ():
            cluster.close()
        if self._arrivals is not None:
            self._arrivals.close()
        self._clusters = self._arrivals = None
