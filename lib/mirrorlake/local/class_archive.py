"""Class archives (JEP 350): the classes that Spark and Kafka load at every start, parsed once.

With them, the start takes two thirds of the time. The empty tables that are made along the way are kept for tests.
"""

from __future__ import annotations

import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from crc32c import crc32c

from mirrorlake.ledger.store import Ledger
from mirrorlake.ledger.tables import TABLES
from mirrorlake.local.cluster import QUIET_ARCHIVE, LocalCluster, running
from mirrorlake.local.session import local_session

SCHEMA = "archive"


def empty_ledger(root: Path) -> Path:
    """Returns the directory of empty tables, which exists if archives were made with these definitions of tables.

    In a JVM that has just started, creating the tables takes longer than most tests. A copy of them takes no time.
    """
    return root / ".local/empty_ledger" / f"{crc32c(repr(TABLES).encode()):08x}"


def make_archives(root: Path) -> list[Path]:
    """Starts a broker and a Spark session, runs some typical work, and archives the classes that they loaded.

    Keeps the tables that it makes (`empty_ledger`).

    Returns:
        The archives that were made.
    """
    jars = root / ".local/jars"
    archives = [jars / "kafka.jsa", jars / "spark.jsa"]
    kafka, spark = ((f"-XX:ArchiveClassesAtExit={archive}", *QUIET_ARCHIVE) for archive in archives)
    for archive in archives:
        archive.unlink(missing_ok=True)
    with (
        tempfile.TemporaryDirectory() as place,
        running(LocalCluster("archive", Path(place) / "cluster", jars / "kafka", java_options=kafka)) as cluster,
    ):
        session = local_session(root, "archive", java_options=spark)
        ledger = Ledger(session, "spark_catalog", SCHEMA, place).ensure_tables()
        shutil.rmtree(empty_ledger(root).parent, ignore_errors=True)
        shutil.copytree(Path(place) / SCHEMA, empty_ledger(root))
        ledger.append(
            "anomalies",
            [{"source": "a", "target": "b", "kind": "none", "detected_at": datetime.now(UTC).replace(tzinfo=None)}],
        )
        ledger.read("anomalies").groupBy("kind").count().collect()
        session.read.format("kafka").options(
            **{"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "__transaction_state"}
        ).load().count()
        gateway = session.sparkContext._gateway
        assert gateway is not None  # the context runs
        jvm = gateway.proc
        session.stop()
        gateway.shutdown()
        jvm.stdin.close()
        jvm.wait(120)
    return [archive for archive in archives if archive.exists()]
