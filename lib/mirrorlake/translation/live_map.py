"""The current map of a flow: the ledger's rows, and the newer states of the offset-syncs topic.

Groups are therefore translated by the newest commits, even if appends to the ledger are rare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirrorlake.config.flow import Flow
from mirrorlake.errors import LedgerError
from mirrorlake.ledger import views
from mirrorlake.ledger.offset_sync_rows import gap_rows, offset_sync_records, offset_sync_states, run_rows
from mirrorlake.ledger.store import Ledger
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
GAP_COLUMNS = ("topic", "partition", "kind", "from_offset", "incarnation", "downstream_offset", "committed_at")
MARKER = 1  # the commit marker that follows each state


@dataclass(frozen=True)
class Map:
    """The map of a flow at one time.

    Attributes:
        runs: columns as `sql_join.current_runs` returns them; rows may occur twice.
        gaps: columns GAP_COLUMNS; rows may occur twice.
    """

    runs: DataFrame
    gaps: DataFrame


class LiveMap:
    """Reads the current map of one flow repeatedly.

    Args:
        ledger: tables that hold the map.
        flow: flow of the map.
        target: cluster that holds the offset-syncs topic.
    """

    def __init__(self, ledger: Ledger, flow: Flow, target: Cluster) -> None:
        self._ledger, self._flow, self._target = ledger, flow, target

    def read(self, session: SparkSession, *, by_topic: bool = False) -> Map:
        """Reads the map that holds now.

        Each call asks the ledger how far it goes. The tables may have been emptied, and a map with a hole would move
        groups past records.

        Args:
            session: Spark session of the micro-batch.
            by_topic: whether to read the whole offset-syncs topic, as rows are missing in the tables.

        Raises:
            TargetError: the target can't be read.
            LedgerError: the table holds later offsets than the topic, so they do not belong together.
        """
        ledger = self._ledger.within(session)
        missing = self._missing({} if by_topic else ledger.last_syncs(self._flow))
        runs, gaps = (
            views.runs_of_pair(ledger, self._flow.source, self._flow.target).select(*RUN_COLUMNS),
            ledger.of_flow("gaps", self._flow).select(*GAP_COLUMNS),
        )
        if missing:  # the ledger may have received these rows meanwhile; duplicates do no harm
            first, end = ({partition: bounds[number] for partition, bounds in missing.items()} for number in (0, 1))
            states = offset_sync_states(offset_sync_records(session, self._flow, first, end))
            runs, gaps = (
                runs.unionByName(run_rows(states).select(*RUN_COLUMNS)),
                gaps.unionByName(gap_rows(states).select(*GAP_COLUMNS)),
            )
        return Map(current_runs(runs, gaps), gaps)

    def _missing(self, last: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """Returns the offsets to read of each partition of the topic: (start, end).

        `last` holds the last offset of each partition that the ledger has.
        """
        topic = self._flow.offset_syncs_topic
        known = self._target.refresh([topic], self._flow.connect_timeout_ms).get(topic)
        partitions = known.partitions if known else 0
        keys = [(topic, partition) for partition in range(partitions)]
        ends = self._target.offsets(keys, LATEST_TIMESTAMP, self._flow.connect_timeout_ms) if keys else {}
        for (_, partition), end in ends.items():
            if last.get(partition, -1) >= end:
                raise LedgerError(
                    f"flow {self._flow.name}: table {self._ledger.table('offset_syncs')} has offset "
                    f"{last[partition]} of {topic}-{partition}, which ends at {end}: the topic was created anew, or "
                    "the target has lost records. The table may hold the map of another topic, so no group is moved "
                    "by it. Use another schema, or delete the flow's rows",
                    retriable=True,  # just after a leader election, the end may still rise again
                )
        found = {partition: (last.get(partition, -1) + 1, end) for (_, partition), end in ends.items()}
        return {
            partition: (start, end)
            for partition, (start, end) in found.items()
            if end > start + (MARKER if start else 0)
        }
