"""What a mirror job waits for, while the rest of the flow goes on: log lines, rows of anomalies, and metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from mirrorlake.config.flow import Flow
from mirrorlake.jobs.mirror.planning.uncommitted import WaitingFor
from mirrorlake.ledger.anomaly import Anomaly
from mirrorlake.log import event
from mirrorlake.metrics import Metrics
from mirrorlake.model.anomaly import AnomalyAction, AnomalyKind
from mirrorlake.partition_key import PartitionKey

log = logging.getLogger(__name__)

Place = tuple[str, int | None]  # a topic, or one of its partitions

LONG_MS = 60_000  # a transaction that is open for longer is recorded; most last for less than a second


class Holdups:
    """Topics, partitions and transactions that hold back a part of a flow.

    Args:
        flow: the flow.
        metrics: the metrics to update.
        record: appends rows to the table anomalies.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        flow: Flow,
        metrics: Metrics,
        record: Callable[[Sequence[Anomaly]], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._flow, self._metrics, self._record, self._now = flow, metrics, record, now
        self._topics: Mapping[Place, str] = {}
        self._partitions: Mapping[Place, str] = {}
        self._waiting_for: Sequence[WaitingFor] = ()
        self._recorded: set[tuple[str, int, int]] = set()

    @property
    def held_topics(self) -> dict[str, str]:
        """The topics that can't be mirrored now, with the reasons."""
        return {topic: why for (topic, _), why in self._topics.items()}

    def topics(self, held: Mapping[str, str]) -> None:
        """Notes the topics that can't be mirrored now, with the reasons."""
        self._topics = self._note("topic", self._topics, {(topic, None): why for topic, why in held.items()})
        self._metrics.held_topics.labels(self._flow.name).set(len(held))

    def partitions(self, stuck: Mapping[PartitionKey, str]) -> None:
        """Notes the partitions that do not advance while the others do, with the reasons."""
        self._partitions = self._note("partition", self._partitions, dict[Place, str](stuck.items()))
        self._metrics.held_partitions.labels(self._flow.name).set(len(stuck))

    def _note(self, what: str, before: Mapping[Place, str], now: Mapping[Place, str]) -> Mapping[Place, str]:
        """Logs what is held and what no longer is, and records each new reason; returns the present reasons.

        Args:
            what: topic or partition.
            before: the reasons that were noted last.
            now: the present reasons.
        """
        new = [(_where(place), why) for place, why in now.items() if before.get(place) != why]
        for where, why in new:
            log.warning(event(f"{what}_held", flow=self._flow.name, **where, reason=why))
        for place in before.keys() - now.keys():
            log.info(event(f"{what}_released", flow=self._flow.name, **_where(place)))
        self._record(
            [
                Anomaly.of_flow(self._flow, AnomalyKind.HELD, AnomalyAction.OTHERS_GO_ON, why, **where)
                for where, why in new
            ]
        )
        return now

    def transactions(self, uncommitted: int, waiting_for: Sequence[WaitingFor]) -> None:
        """Notes the offsets that are not stable on the source, and the transactions that keep them so."""
        self._metrics.uncommitted_records.labels(self._flow.name).set(uncommitted)
        self._waiting_for = waiting_for
        self._recorded &= {(one.topic, one.partition, one.offset) for one in waiting_for}
        self.measure()

    def measure(self) -> None:
        """Updates the age of the oldest open transaction; records those that have been open for LONG_MS."""
        now_ms = 1000 * self._now()
        oldest_ms = min((one.since_ms for one in self._waiting_for), default=now_ms)
        self._metrics.open_transaction_seconds.labels(self._flow.name).set(max(0.0, now_ms - oldest_ms) / 1000)
        long = [
            one
            for one in self._waiting_for
            if now_ms >= one.since_ms + LONG_MS and (one.topic, one.partition, one.offset) not in self._recorded
        ]
        rows = []
        for one in long:
            self._recorded.add((one.topic, one.partition, one.offset))
            why = (
                f"flow {self._flow.name}: a transaction of {one.who} is open on cluster {self._flow.source} in "
                f"{one.topic}-{one.partition} from offset {one.offset} on. Records from there on are not mirrored "
                "before it ends, nor read by consumers with read_committed. If its producer is gone, abort it "
                "(kafka-transactions.sh abort)"
            )
            log.warning(
                event(
                    "open_transaction",
                    flow=self._flow.name,
                    topic=one.topic,
                    partition=one.partition,
                    offset=one.offset,
                    age_s=round((now_ms - one.since_ms) / 1000),
                    reason=why,
                )
            )
            rows.append(
                Anomaly.of_flow(
                    self._flow,
                    AnomalyKind.OPEN_TRANSACTION,
                    AnomalyAction.WAIT,
                    why,
                    topic=one.topic,
                    partition=one.partition,
                    from_offset=one.offset,
                )
            )
        if rows:
            self._record(rows)


def _where(place: Place) -> dict[str, str | int]:
    topic, partition = place
    return {"topic": topic} if partition is None else {"topic": topic, "partition": partition}
