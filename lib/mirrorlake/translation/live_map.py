"""The map of a flow as it is now: the ledger's rows, and behind them what the offset-syncs topic holds and the ledger
does not have yet.

So a group is translated by what was committed a moment ago, however seldom the ledger is appended to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirrorlake.config.flow import Flow
from mirrorlake.errors import LedgerError
from mirrorlake.ledger.store import Ledger, gap_rows, offset_sync_records, offset_sync_states, run_rows
from mirrorlake.protocol.cluster import LATEST_TIMESTAMP, Cluster
from mirrorlake.translation.sql_join import current_runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUN_COLUMNS = (
    "topic",
    "partition",
    "upstream_start",
    "upstream_end",
    "downstream_start",
    "downstream_end",
    "incarnation",
)
GAP_COLUMNS = ("topic", "partition", "kind", "from_offset", "incarnation", "committed_at")
MARKER = 1  # what follows every state


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

    def read(self, session: SparkSession) -> Map:
        """The map that holds now. How far the ledger goes is asked each time: somebody may have emptied it, and a map
        with a hole would send groups past records.

        Args:
            session: of the micro-batch.

        Raises:
            TargetError: the target can't be read.
            LedgerError: the table holds more than the topic, so one of them isn't the other's.
        """
        ledger = self._ledger.within(session)
        missing = self._missing(ledger.last_syncs(self._flow))
        runs, gaps = (
            ledger.of_flow("offset_syncs", self._flow).select(*RUN_COLUMNS),
            ledger.of_flow("gaps", self._flow).select(*GAP_COLUMNS),
        )
        if missing:  # or is in the ledger by now: what is there twice says the same
            first, end = ({partition: bounds[number] for partition, bounds in missing.items()} for number in (0, 1))
            states = offset_sync_states(offset_sync_records(session, self._flow, first, end))
            runs, gaps = (
                runs.unionByName(run_rows(states).select(*RUN_COLUMNS)),
                gaps.unionByName(gap_rows(states).select(*GAP_COLUMNS)),
            )
        return Map(current_runs(runs, gaps), gaps)

    def _missing(self, last: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """From where to where the topic's partitions have to be read, given the last offset of each that the ledger
        has."""
        topic = self._flow.offset_syncs_topic
        known = self._target.refresh([topic], self._flow.connect_timeout_ms).get(topic)
        keys = [(topic, partition) for partition in range(known.partitions if known else 0)]
        ends = self._target.offsets(keys, LATEST_TIMESTAMP, self._flow.connect_timeout_ms) if keys else {}
        for (_, partition), end in ends.items():
            if last.get(partition, -1) >= end:
                raise LedgerError(
                    f"flow {self._flow.name}: table {self._ledger.table('offset_syncs')} has offset {last[partition]} "
                    f"of {topic}-{partition}, which ends at {end}: the topic was created anew, or "
                    "the target has lost records. Groups would be moved by a map that is another one's. Use another "
                    "schema, or delete the flow's rows",
                    retriable=True,  # where a leader was elected a moment ago, the end may come back
                )
        found = {partition: (last.get(partition, -1) + 1, end) for (_, partition), end in ends.items()}
        return {
            partition: (start, end)
            for partition, (start, end) in found.items()
            if end > start + (MARKER if start else 0)
        }
