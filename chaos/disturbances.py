"""Makes the disturbances of a run, and ends them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Protocol

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)
from mirrorlake.local.proxy.control import NetworkLine

from chaos.clusters import Side
from chaos.scenario import Disturbance, Event
from chaos.supervisor import Supervisor

SECOND_BROKER = 2  # broker 1 is the controller, too
FROZEN_S, SILENT_S = (1, 3, 7), (1, 3, 6)
LOOK_S, LONGEST_DELIVERY_S = 0.2, 30.0
SLOW = NetworkLine(delay_ms=40, window_bytes=256 << 10, bytes_per_s=2 << 20)


class Topics(Protocol):
    """The topics of a run."""

    @property
    def topics(self) -> dict[str, int]:
        """The topics on the source, with their numbers of partitions."""

    @property
    def alias(self) -> str:
        """The name of the source in the flow."""

    def add_topic(self, name: str, partitions: int) -> None:
        """Creates a topic on the source."""

    def follow(self, name: str, partitions: int) -> None:
        """Writes to new partitions of a topic."""


class Disturbances:
    """The disturbances of a run; those that last are ended by `end`, or by a later one."""

    def __init__(self, source: Side, target: Side, supervisor: Supervisor, topics: Topics) -> None:
        self._source, self._target, self._supervisor, self._topics = source, target, supervisor, topics
        self._lasting: list[tuple[float, Callable[[], None]]] = []

    def make(self, event: Event) -> None:
        """Makes one."""
        self._end_due(time.monotonic())
        match event.what:
            case Disturbance.KILL_MIRROR:
                self._supervisor.kill_one("mirror")
            case Disturbance.SECOND_MIRROR:
                self._supervisor.begin("mirror")
            case Disturbance.KILL_CHECKPOINT:
                self._supervisor.kill_one("checkpoint")
            case Disturbance.NEW_TOPIC | Disturbance.NEW_PARTITIONS | Disturbance.NEW_CONFIG:
                self._change_topics(event)
            case Disturbance.CUT_ALL | Disturbance.SILENCE | Disturbance.SLOW_LINE:
                self._trouble_line(event)
            case _:
                self._trouble_broker(event)

    def end(self) -> None:
        """Ends everything that lasts, also the faults of single requests; returns when no late request is to arrive."""
        self._end_due(float("inf"))
        for side in (self._source, self._target):
            side.proxy.arm([])
            side.proxy.line(NetworkLine())
        until = time.monotonic() + LONGEST_DELIVERY_S
        while any(side.proxy.traffic().late_requests for side in (self._source, self._target)):
            if time.monotonic() > until:
                raise RuntimeError(f"requests that are delivered late have not arrived after {LONGEST_DELIVERY_S} s")
            time.sleep(LOOK_S)

    def _end_due(self, now: float) -> None:
        for one in [one for one in self._lasting if one[0] <= now]:
            self._lasting.remove(one)
            one[1]()

    def _last(self, seconds: float, ending: Callable[[], None]) -> None:
        self._lasting.append((time.monotonic() + seconds, ending))

    def _trouble_line(self, event: Event) -> None:
        proxy = (self._source, self._target)[event.number % 2].proxy
        if event.what is Disturbance.CUT_ALL:
            proxy.cut()
        elif event.what is Disturbance.SLOW_LINE:
            proxy.line(SLOW)
        else:
            proxy.line(NetworkLine(is_silent=True))
            self._last(SILENT_S[event.number % len(SILENT_S)], lambda: proxy.line(NetworkLine()))

    def _trouble_broker(self, event: Event) -> None:
        cluster = self._target.cluster
        node = min(SECOND_BROKER, len(cluster.brokers))
        if event.what is not Disturbance.MOVE_LEADERS:
            self._end_due(float("inf"))  # a frozen broker does not end, and one that is down can't be frozen
        if event.what is Disturbance.FREEZE_BROKER:
            cluster.freeze_broker(node)
            self._last(FROZEN_S[event.number % len(FROZEN_S)], lambda: cluster.thaw_broker(node))
        elif event.what is Disturbance.MOVE_LEADERS:
            self._elect()
        else:
            cluster.stop_broker(node, kill=event.what is Disturbance.CRASH_BROKER)
            self._last(1 + event.number % 3, lambda: cluster.start_broker(node))

    def _elect(self) -> None:
        """Makes the preferred replicas leaders again, which a broker that was away no longer is."""
        admin = AdminClient({"bootstrap.servers": self._target.servers, "log_level": 0})
        with contextlib.suppress(KafkaException):  # also: they are the leaders already
            admin.elect_leaders(ElectionType.PREFERRED, None).result()

    def _change_topics(self, event: Event) -> None:
        admin = AdminClient({"bootstrap.servers": self._source.servers, "log_level": 0})
        names = sorted(self._topics.topics)
        name = names[event.number % len(names)]
        if event.what is Disturbance.NEW_TOPIC:
            self._topics.add_topic(f"{self._topics.alias}-new{event.number}", 1 + event.number % 3)
        elif event.what is Disturbance.NEW_PARTITIONS:
            wanted = self._topics.topics[name] + 1
            admin.create_partitions([NewPartitions(name, wanted)])[name].result()
            self._topics.follow(name, wanted)
        else:
            entry = ConfigEntry("retention.ms", str(10**9 + event.number), incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
            admin.incremental_alter_configs([resource])[resource].result()
