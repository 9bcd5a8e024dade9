"""The streaming source `kafka_ranges`: plans as a stream, without records and without side effects.

Its offset *is* the plan. Every call of latestOffset makes a new plan (`planning/planner.py`), so Spark's own position
does not matter. A lost checkpoint directory does no harm, and a range that is planned twice is copied once. An equal
offset (no work, no news) makes Spark wait.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, fields, replace
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from mirrorlake.config.flow import Flow
from mirrorlake.config.reload import LiveFlow
from mirrorlake.jobs.mirror.planning.planner import Planner
from mirrorlake.log import quiet_kafka
from mirrorlake.model.copy_plan import Range

SCHEMA = """
  kind STRING, detail STRING, generation INT, slots INT,
  topic STRING, partition INT, topic_id STRING, partitions INT, slot INT, start BIGINT, end BIGINT, is_set_back BOOLEAN,
    incarnation INT, leader_epoch INT
"""


class Rows(InputPartition):
    """One Spark partition: its rows, unchanged."""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self.rows = rows


class KafkaRanges(DataSource):
    """The data source of `spark.readStream.format("kafka_ranges")`.

    Options are `config` (property file), `flow`, `until`: `now` ends the stream at the source's end offsets of its
    start, and `pause`: `ignored` goes on in a pause. Rows have a kind: `plan` (one in each batch; its detail is the
    plan without ranges, as JSON) or `range` (offsets to copy).
    """

    @classmethod
    def name(cls) -> str:
        return "kafka_ranges"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> RangesReader:  # noqa: N802 (Spark's name)
        quiet_kafka()
        flow = Flow.load(self.options["config"], self.options["flow"])
        flow = replace(flow, ignores_pause=self.options.get("pause") == "ignored")
        return RangesReader(
            Planner(LiveFlow(self.options["config"], flow), until_now=self.options.get("until") == "now")
        )


class RangesReader(DataSourceStreamReader):
    """Gives Spark the plans of a `Planner`; runs in its own Python process on the driver's machine."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"plan": 0}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._planner.latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Rows]:
        generation, slots = end.get("generation", -1), end.get("slots", 0)
        detail = json.dumps({name: value for name, value in end.items() if name != "ranges"})
        nothing = [None] * len(fields(Range))
        by_slot: dict[int, list[tuple[Any, ...]]] = {}
        for values in end.get("ranges", ()):
            planned = Range(**values)
            by_slot.setdefault(planned.slot, []).append(("range", None, generation, slots, *astuple(planned)))
        plan = Rows([("plan", detail, generation, slots, *nothing)])
        return [plan, *(Rows(rows) for _, rows in sorted(by_slot.items()))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Rows)  # only `partitions` makes them
        return iter(partition.rows)

    def commit(self, end: dict[str, Any]) -> None:
        pass  # committed positions are on the target

    def stop(self) -> None:
        self._planner.close()
