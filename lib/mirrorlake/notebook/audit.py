"""The subject of an audit; the ledger provides defaults, so that the notebook shows results without any parameter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import ConfigurationError
from mirrorlake.ledger.sql_text import filled, literal
from mirrorlake.ledger.store import Ledger
from mirrorlake.ledger.tables import TABLES
from mirrorlake.ledger.views import VIEWS
from mirrorlake.parameters import resolve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TELLING = ("offset_syncs", "cycles", "topology_changes", "anomalies")  # tables that have rows of any flow
TIME = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d(:\d\d(\.\d+)?)?)?")


@dataclass(frozen=True)
class Question:
    """The subject of an audit: a flow, a group, a partition and an offset of it, a time (UTC)."""

    source: str
    target: str
    group_id: str
    topic: str
    partition: int
    upstream_offset: int
    at: str

    @classmethod
    def resolve(cls, ledger: Ledger, flow: str, namespace: Mapping[str, Any]) -> Question:
        """Reads the parameters of the notebook, and takes empty ones from the ledger.

        Raises:
            ConfigurationError: a value is malformed.
            LedgerError: the tables have rows of other flows only.
        """
        given = resolve(namespace, dict.fromkeys(("group_id", "topic", "partition", "upstream_offset", "at"), ""))
        for name in ("partition", "upstream_offset"):
            if given[name] and not given[name].isdecimal():
                raise ConfigurationError(
                    f"parameter {name} is '{given[name]}'; allowed is a whole number from 0 up, or empty"
                )
        if given["at"] and not TIME.fullmatch(given["at"]):
            raise ConfigurationError(f"parameter at is '{given['at']}'; allowed is YYYY-MM-DD HH:MM:SS, or empty")
        source, target = (alias.strip() for alias in flow.partition("->")[::2])
        if known := ledger.flows(*TELLING):
            ledger.require_flow(f"{source}->{target}", known)
        group_id = given["group_id"] or _newest_group(ledger, source, target)
        topic, partition, middle = _busiest_partition(
            ledger, source, target=target, topic=given["topic"], partition=given["partition"]
        )
        at = given["at"] or datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        return cls(
            source=source,
            target=target,
            group_id=group_id,
            topic=topic,
            partition=partition,
            upstream_offset=int(given["upstream_offset"] or middle),
            at=at,
        )

    def ask(self, ledger: Ledger, query: str) -> DataFrame:
        """Runs a query on the ledger.

        Args:
            ledger: the ledger.
            query: the SQL text. Names in braces are this question's fields, as literals, and tables and views of the
                ledger.
        """
        fields = asdict(self)

        def word(name: str) -> str:
            if name in fields:
                value = fields[name]
                return literal(value) if isinstance(value, str) else str(value)
            if name not in TABLES and name not in VIEWS:
                raise ConfigurationError(f"the query names {{{name}}}, which is neither a field nor a table or view")
            return ledger.table(name)

        return ledger.spark.sql(filled(query, word))


def _newest_group(ledger: Ledger, source: str, target: str) -> str:
    table = ledger.of_pair("checkpoints", source, target)
    row = table.filter(table.topic.isNotNull()).orderBy(table.created_at.desc(), table.group_id).first()
    return row["group_id"] if row else ""


def _busiest_partition(ledger: Ledger, source: str, target: str, topic: str, partition: str) -> tuple[str, int, int]:
    """Returns topic, partition and the middle of the mirrored offsets of the partition with the most records."""
    from pyspark.sql import functions as F

    runs = ledger.of_pair("offset_syncs", source, target)
    runs = runs.filter(runs.topic == topic) if topic else runs
    runs = runs.filter(runs.partition == int(partition)) if partition else runs
    middle = ((F.min("upstream_start") + F.max("upstream_end")) / 2).cast("bigint").alias("middle")
    row = (
        runs.groupBy("topic", "partition")
        .agg(F.sum("records").alias("records"), middle)
        .orderBy(F.desc("records"), "topic", "partition")
        .first()
    )
    return (row["topic"], row["partition"], row["middle"]) if row else (topic, int(partition or 0), 0)
