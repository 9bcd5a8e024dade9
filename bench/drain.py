"""A mirror job on a flow of its own, in this process, which mirrors the records of a topic.

It is for benchmarks of mirrorlake alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mirrorlake.config.flow import Flow
from mirrorlake.jobs.mirror.job import MirrorJob
from mirrorlake.jobs.mirror.spark_engine import SparkEngine
from mirrorlake.ledger.store import Ledger
from mirrorlake.spark.timing import MirrorResult

from bench.clusters import HOME, ROOT, Clusters


def drain(spark: Any, clusters: Clusters, topic: str, records: int, alias: str, **settings: str) -> MirrorResult:
    """Mirrors a topic that must hold that many records.

    Args:
        spark: the session.
        clusters: both clusters.
        topic: the topic.
        records: the number of records of the topic.
        alias: the alias of the source.
        settings: further properties.
    """
    result = mirror_job(spark, clusters, topic, alias, **settings).run(None)
    assert result.records == records, f"{result.records} of {records} records were mirrored"
    return result


def mirror_job(spark: Any, clusters: Clusters, topic: str, alias: str, **settings: str) -> MirrorJob:
    """Makes the job that mirrors a topic; with a new alias, the flow begins anew.

    Args:
        spark: the session.
        clusters: both clusters.
        topic: the topic.
        alias: the alias of the source.
        settings: further properties.
    """
    config, flow = configured(clusters, topic, alias, **settings)
    return MirrorJob(SparkEngine(spark), str(config), flow, ledger(spark), ROOT / "expectations/offset_syncs.json")


def configured(clusters: Clusters, topic: str, alias: str, **settings: str) -> tuple[Path, Flow]:
    """Writes the property file of a flow that mirrors a topic; returns its path, and the flow."""
    properties = {
        "clusters": f"{alias}, t",
        f"{alias}.bootstrap.servers": clusters.servers("source"),
        "t.bootstrap.servers": clusters.servers("target"),
        f"{alias}->t.enabled": "true",
        "topics": topic,
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        **settings,
    }
    config = _config_of(alias)
    config.write_text("".join(f"{name} = {value}\n" for name, value in properties.items()))
    return config, flow_of(alias)


def flow_of(alias: str) -> Flow:
    """Returns the flow of the job that was made with that alias."""
    return Flow.load(_config_of(alias), f"{alias}->t")


def ledger(spark: Any) -> Ledger:
    """Returns the ledger of the benchmarks."""
    return Ledger(spark, "spark_catalog", "bench", str(HOME / "warehouse"))


def _config_of(alias: str) -> Path:
    return HOME / f"{alias}.properties"
