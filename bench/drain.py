"""A mirror job on a flow of its own in this process, which works off what a topic holds; for benchmarks of something
else than speed beside others."""

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
    """Mirrors the topic, which must hold so many records, from a source that is called by the alias."""
    result = mirror_job(spark, clusters, topic, alias, **settings).run(None)
    assert result.records == records, f"{result.records} of {records} records were mirrored"
    return result


def mirror_job(spark: Any, clusters: Clusters, topic: str, alias: str, **settings: str) -> MirrorJob:
    """The job that mirrors the topic from a source that is called by the alias; everything begins anew under a new
    one."""
    properties = {
        "clusters": f"{alias}, t",
        f"{alias}.bootstrap.servers": clusters.source.bootstrap_servers,
        "t.bootstrap.servers": clusters.target.bootstrap_servers,
        f"{alias}->t.enabled": "true",
        "topics": topic,
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        **settings,
    }
    config = _config_of(alias)
    config.write_text("".join(f"{name} = {value}\n" for name, value in properties.items()))
    return MirrorJob(
        SparkEngine(spark), str(config), flow_of(alias), ledger(spark), ROOT / "expectations/offset_syncs.json"
    )


def flow_of(alias: str) -> Flow:
    """The flow of a job that was made under that alias."""
    return Flow.load(_config_of(alias), f"{alias}->t")


def ledger(spark: Any) -> Ledger:
    return Ledger(spark, "spark_catalog", "bench", str(HOME / "warehouse"))


def _config_of(alias: str) -> Path:
    return HOME / f"{alias}.properties"
