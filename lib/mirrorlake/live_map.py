"""The map of a flow as it is now: the ledger's rows, and behind them what the offset-syncs topic holds and the ledger does not have yet.

So a group is translated by what was committed a moment ago, however seldom the ledger is appended to.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from mirrorlake.flow import Flow
from mirrorlake.ledger import Ledger, gap_rows, offset_sync_states, run_rows
from mirrorlake.translate import current_runs
from mirrorlake.wire import LATEST, Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUN_COLUMNS = ("topic", "partition", "upstream_start", "upstream_end", "downstream_start", "downstream_end", "incarnation")
GAP_COLUMNS = ("topic", "partition", "kind", "from_offset", "incarnation", "committed_at")
RECENT = timedelta(minutes=10)  # slots commit side by side, and clocks of brokers differ
MARKER = 1  # what follows every state
LOOK_AGAIN = 500  # offsets of the topic, half of them markers: reading so many again takes less than asking the ledger for them


@dataclass(frozen=True)
class Map:
    """A map as it was at one time.

    Attributes:
        runs: as `translate.current_runs` has them; some may be there twice.
        gaps: columns GAP_COLUMNS; some may be there twice.
    """

    runs: DataFrame
    gaps: DataFrame


class LiveMap:
    """One flow's map, looked at again and again.

    Args:
        ledger: its tables.
        flow: whose map.
        target: the cluster that has the offset-syncs topic.
    """

    def __init__(self, ledger: Ledger, flow: Flow, target: Cluster) -> None:
        self._ledger, self._flow, self._target = ledger, flow, target
        self._known: dict[int, int] = {}  # partition of the topic: last offset in the ledger
        self._known_at: datetime | None = None

    def read(self, session: SparkSession) -> Map:
        """The map that holds now.

        Args:
            session: of the micro-batch.

        Raises:
            TargetError: the target can't be read.
        """
        ledger = self._ledger.within(session)
        ends = self._ends()
        missing = self._missing(ends)
        if self._known_at is None or sum(end - start for start, end in missing.values()) > LOOK_AGAIN:
            self._look_into(ledger)
            missing = self._missing(ends)
        runs, gaps = ledger.of_flow("offset_syncs", self._flow).select(*RUN_COLUMNS), ledger.of_flow("gaps", self._flow).select(*GAP_COLUMNS)
        if missing:  # or is in the ledger by now: what is there twice says the same
            states = self._read(session, missing)
            runs, gaps = runs.unionByName(run_rows(states).select(*RUN_COLUMNS)), gaps.unionByName(gap_rows(states).select(*GAP_COLUMNS))
        return Map(current_runs(runs, gaps), gaps)

    def _look_into(self, ledger: Ledger) -> None:
        """Asks the ledger how far it goes, which takes a second; only new files are looked at, after the first time."""
        after = None if self._known_at is None else self._known_at - RECENT
        for partition, (last, at) in ledger.last_syncs(self._flow, after).items():
            self._known[partition] = max(last, self._known.get(partition, -1))
            self._known_at = max(at, self._known_at or at)

    def _ends(self) -> dict[int, int]:
        """Where the topic's partitions end."""
        topic = self._flow.offset_syncs_topic
        known = self._target.refresh([topic], self._flow.connect_timeout_ms).get(topic)
        keys = [(topic, partition) for partition in range(known.partitions if known else 0)]
        ends = self._target.offsets(keys, LATEST, self._flow.connect_timeout_ms) if keys else {}
        return {partition: end for (_, partition), end in ends.items()}

    def _missing(self, ends: dict[int, int]) -> dict[int, tuple[int, int]]:
        """From where to where the topic's partitions have to be read."""
        found = {partition: (self._known.get(partition, -1) + 1, end) for partition, end in ends.items()}
        return {partition: (start, end) for partition, (start, end) in found.items() if end > start + (MARKER if start else 0)}

    def _read(self, session: SparkSession, missing: dict[int, tuple[int, int]]) -> DataFrame:
        topic = self._flow.offset_syncs_topic
        first, last = ({str(partition): bounds[number] for partition, bounds in missing.items()} for number in (0, 1))
        records = (
            session.read.format("kafka")
            .options(**self._flow.target_connection.spark())
            .option("assign", json.dumps({topic: sorted(missing)}))
            .option("kafka.isolation.level", "read_committed")
            .option("failOnDataLoss", "false")  # nothing is ever deleted there; if somebody has, the ledger's own stream says so
            .option("startingOffsets", json.dumps({topic: first}))
            .option("endingOffsets", json.dumps({topic: last}))
            .load()
        )
        return offset_sync_states(records)
