"""Metrics of each topic, partition and group, also under the names of MirrorMaker 2.

They are off by default (`mirrorlake.metrics.detailed`), as there may be many thousands of them. MirrorMaker 2 has them
as JMX beans. The names here are those that Strimzi's rules for the JMX exporter make of the beans, so that existing
dashboards and alerts go on working.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

MOST_SERIES = 10_000  # partitions, and positions of groups; of more lags the longest are shown, else those seen first
LONGEST_LABEL, SHOWN_OF_LONGER = 250, 180  # characters; topics have 249 at most, groups may have 32,767
WINDOW_S = 30.0  # of Kafka's own statistics, which keep two windows
KEPT_S = 3600.0  # if there are too many, a series without news for so long makes room: topics and groups come and go

SOURCE_CONNECTOR = "kafka_connect_mirror_mirrorsourceconnector_"
CHECKPOINT_CONNECTOR = "kafka_connect_mirror_mirrorcheckpointconnector_"
PARTITION_LABELS = ("target", "topic", "partition")
GROUP_LABELS = ("source", "target", "group", "topic", "partition")
Labels = tuple[str, ...]

# Name of the family, documentation, labels. `telemetry.details` alone defines what each means; the page
# docs/monitoring.md repeats it.
FAMILIES: Mapping[str, tuple[str, Labels]] = {
    "mirrorlake_partition_lag_records": (
        "Stable source offsets of a partition that are not mirrored, when the lag was last measured.",
        ("flow", "topic", "partition"),
    ),
    "mirrorlake_partition_lag_seconds": (
        "Age of the oldest record of a partition that was not mirrored when the lag was last measured.",
        ("flow", "topic", "partition"),
    ),
    "mirrorlake_partition_uncommitted_records": (
        "Source offsets of a partition that wait for open transactions, when the lag was last measured.",
        ("flow", "topic", "partition"),
    ),
    "mirrorlake_group_lag_records": (
        "Offsets that a group has not read on the source, in the last cycle of the checkpoint job.",
        ("flow", "group", "topic", "partition"),
    ),
    f"{SOURCE_CONNECTOR}record_count": ("Records mirrored since the job began.", PARTITION_LABELS),
    f"{SOURCE_CONNECTOR}record_rate": ("Records mirrored per second, of the last minute.", PARTITION_LABELS),
    f"{SOURCE_CONNECTOR}byte_count": ("Bytes of record batches mirrored since the job began.", PARTITION_LABELS),
    f"{SOURCE_CONNECTOR}byte_rate": ("Bytes mirrored per second, of the last minute.", PARTITION_LABELS),
    **{
        f"{SOURCE_CONNECTOR}{name}_ms{suffix}": (f"{what}, in ms: {which}.", PARTITION_LABELS)
        for name, what in (
            ("record_age", "Age of records when they were read"),
            ("replication_latency", "Age of records when they were committed on the target"),
        )
        for suffix, which in (
            ("", "the newest one"),
            ("_min", "the least of the last minute"),
            ("_max", "the most of the last minute"),
            ("_avg", "the mean of the last minute"),
        )
    },
    **{
        f"{CHECKPOINT_CONNECTOR}checkpoint_latency_ms{suffix}": (
            f"Time from a checkpoint to its commit on the target, in ms: {which}.",
            GROUP_LABELS,
        )
        for suffix, which in (
            ("", "the newest one"),
            ("_min", "the least of the last minute"),
            ("_max", "the most of the last minute"),
            ("_avg", "the mean of the last minute"),
        )
    },
}


@dataclass
class Window:
    """The least, most, sum and number of some values of one window."""

    began_s: float
    count: int = 0
    total: float = 0.0
    least: float = float("inf")
    most: float = float("-inf")

    def add(self, least: float, most: float, count: int) -> None:
        """Adds values between two of them; their mean is taken to be in the middle."""
        self.count += count
        self.total += count * (least + most) / 2
        self.least, self.most = min(self.least, least), max(self.most, most)


@dataclass
class Statistic:
    """A value over the last minute, in two windows as Kafka's SampledStat keeps them."""

    clock: Callable[[], float]
    newest: float = 0.0
    windows: list[Window] = field(default_factory=list)

    def add(self, least: float, most: float, count: int, newest: float) -> None:
        """Adds values; see `Window.add`."""
        now_s = self.clock()
        self._drop(now_s)
        if not self.windows or now_s >= self.windows[-1].began_s + WINDOW_S:
            self.windows.append(Window(now_s))
        self.windows[-1].add(least, most, count)
        self.newest = newest

    def _drop(self, now_s: float) -> None:
        self.windows = [window for window in self.windows if now_s < window.began_s + 2 * WINDOW_S]

    def read(self) -> tuple[float, float, float, float, int]:
        """Returns the newest value, the least, the most, the mean, and the number of values."""
        self._drop(self.clock())
        count = sum(window.count for window in self.windows)
        if not count:
            return self.newest, 0.0, 0.0, 0.0, 0
        total = sum(window.total for window in self.windows)
        least, most = min(window.least for window in self.windows), max(window.most for window in self.windows)
        return self.newest, least, most, total / count, count


class Details(Collector):
    """The metrics of topics, partitions and groups of this process. Several threads may use them.

    Args:
        clock: returns the time in seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in FAMILIES}
        self._statistics: dict[str, dict[Labels, Statistic]] = {}
        self._updated: dict[str, dict[Labels, float]] = {}  # when each count and statistic was, by the clock
        self._made_room: dict[str, float] = {}

    def lag(self, flow: str, partitions: Iterable[Any]) -> None:
        """Takes a measurement (`PartitionLag`), which replaces the flow's last one. Of too many, the oldest stay."""
        found: dict[str, dict[Labels, float]] = {"lag_records": {}, "lag_seconds": {}, "uncommitted_records": {}}
        for one in sorted(partitions, key=lambda one: (-(one.lag_seconds or 0.0), -(one.lag or 0))):
            labels = flow, one.topic, str(one.partition)
            for name, value in (
                ("lag_records", one.lag),
                ("lag_seconds", one.lag_seconds),
                ("uncommitted_records", one.uncommitted),
            ):
                if value is not None and len(found[name]) < MOST_SERIES:
                    found[name][labels] = value
        with self._lock:
            for name, values in found.items():
                self._replace(f"mirrorlake_partition_{name}", flow, values)

    def groups(self, flow: str, lags: Mapping[tuple[str, str, int], int]) -> None:
        """Takes the lags of groups on the source, by group, topic and partition; they replace the flow's last ones.

        Of too many, the longest stay.
        """
        longest = sorted(lags.items(), key=lambda one: (-one[1], one[0]))[:MOST_SERIES]
        values: dict[Labels, float] = {
            (flow, label(group), topic, str(partition)): float(records)
            for (group, topic, partition), records in longest
        }
        with self._lock:
            self._replace("mirrorlake_group_lag_records", flow, values)

    def _replace(self, name: str, flow: str, values: dict[Labels, float]) -> None:
        others = {labels: value for labels, value in self._values[name].items() if labels[0] != flow}
        self._values[name] = others | values

    def mirrored(
        self, target: str, runs: Iterable[Mapping[str, Any]], read_at_ms: float, committed_at_ms: float
    ) -> None:
        """Takes the runs of a micro-batch (the values of `Run`)."""
        with self._lock:
            for run in runs:
                labels = target, run["target_topic"], str(run["target_partition"])
                self._add(f"{SOURCE_CONNECTOR}record_count", labels, run["records"])
                self._add(f"{SOURCE_CONNECTOR}byte_count", labels, run["bytes"])
                self._note(f"{SOURCE_CONNECTOR}record", labels, (run["records"], run["records"], 1))
                self._note(f"{SOURCE_CONNECTOR}byte", labels, (run["bytes"], run["bytes"], 1))
                for name, at_ms in (("record_age", read_at_ms), ("replication_latency", committed_at_ms)):
                    least, most = (max(0.0, at_ms - run[edge]) for edge in ("last_timestamp", "first_timestamp"))
                    self._note(f"{SOURCE_CONNECTOR}{name}_ms", labels, (least, most, run["records"]))

    def checkpointed(self, labels: Iterable[Labels], latency_ms: float) -> None:
        """Takes the time from the beginning of a cycle to the commits of positions, by GROUP_LABELS."""
        with self._lock:
            for one in (tuple(map(label, some)) for some in labels):
                self._note(f"{CHECKPOINT_CONNECTOR}checkpoint_latency_ms", one, (latency_ms, latency_ms, 1))

    def _add(self, name: str, labels: Labels, value: float) -> None:
        values = self._values[name]
        if self._has_room(name, values, labels):
            values[labels] = values.get(labels, 0.0) + value

    def _note(self, name: str, labels: Labels, values: tuple[float, float, int]) -> None:
        statistics = self._statistics.setdefault(name, {})
        if not self._has_room(name, statistics, labels):
            return
        least, most, count = values
        statistics.setdefault(labels, Statistic(self._clock)).add(least, most, count, newest=least)

    def _has_room(self, name: str, series: dict[Labels, Any], labels: Labels) -> bool:
        """Tells whether there is room for a series, and notes that it has news."""
        now_s, updated = self._clock(), self._updated.setdefault(name, {})
        if labels not in series and len(series) >= MOST_SERIES:
            if now_s < self._made_room.get(name, -WINDOW_S) + WINDOW_S:
                return False
            self._made_room[name] = now_s
            for old in [one for one, at_s in updated.items() if now_s >= at_s + KEPT_S]:
                del series[old], updated[old]
            if len(series) >= MOST_SERIES:
                return False
        updated[labels] = now_s
        return True

    def collect(self) -> Iterator[Metric]:
        """Yields all families that have values; see `Collector`."""
        with self._lock:
            values = {name: dict(found) for name, found in self._values.items()}
            read = {
                (name, labels): (statistic.read(), statistic.windows)
                for name, of in self._statistics.items()
                for labels, statistic in of.items()
            }
        for (name, labels), ((newest, least, most, mean, count), windows) in read.items():
            if name.endswith("_ms"):
                for suffix, value in (("", newest), ("_min", least), ("_max", most), ("_avg", mean)):
                    values[f"{name}{suffix}"][labels] = value
            else:  # a rate, over the time that the windows span
                span_s = max(WINDOW_S, self._clock() - windows[0].began_s) if windows else WINDOW_S
                values[f"{name}_rate"][labels] = mean * count / span_s
        for name, (documentation, label_names) in FAMILIES.items():
            if values[name]:
                family = GaugeMetricFamily(name, documentation, labels=label_names)
                for labels, value in values[name].items():
                    family.add_metric(labels, value)
                yield family


def label(name: str) -> str:
    """Shortens a long name, so that each series stays small; a digest keeps apart what begins alike."""
    if len(name) <= LONGEST_LABEL:
        return name
    return f"{name[:SHOWN_OF_LONGER]}...{sha256(name.encode(errors='replace')).hexdigest()[:16]}"


_OF: WeakKeyDictionary[CollectorRegistry, Details] = WeakKeyDictionary()


def details_of(registry: CollectorRegistry) -> Details:
    """Returns the details that a registry shows; registers them the first time."""
    if registry not in _OF:
        _OF[registry] = Details()
        registry.register(_OF[registry])
    return _OF[registry]
