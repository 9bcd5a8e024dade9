"""A Spark session on this machine with Delta and the Kafka source, from the jars below `.local/jars` (`jars.py`)."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorlake import resources
from mirrorlake.config.secret_reference import REDACTED
from mirrorlake.errors import ConfigurationError, MirrorlakeError
from mirrorlake.local.cluster import with_archive
from mirrorlake.local.hadoop_defaults import defaults_jar
from mirrorlake.local.jars import SETUP
from mirrorlake.log import private
from mirrorlake.printable import printable
from mirrorlake.spare_memory import LARGE_BYTES
from mirrorlake.spark.parallelism import FREE_CORES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What copies (spark.default.parallelism is the number of slots of a flow) takes all cores but two, and two at least. A
# copying task that waited for one of the ledger's would delay the whole micro-batch. A slot takes 150 MiB; without a
# limit, a large host would run out of memory by a default.
FEWEST_COPYING, MOST_COPYING = 2, 8
CONTAINER_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # microseconds of CPU, or max, in a period of microseconds

KEPT_LOGS = 50  # of 20 KB; a schedule makes one each minute
LONGEST_LINE = 300

IN_ONE_PROCESS = re.compile(r"local(\[[^]]*])?")  # masters without executors of their own
FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
WORKER_PYTHON = Path(__file__).with_name("worker_python")
LOG4J = Path(__file__).with_name("log4j2.properties")

# With the C1 compiler alone the code cache is 48 MB. Spark fills it within a minute of work, and the JVM stops
# compiling then. With the default sizes, the JVM collects garbage again and again while Spark's classes and the heap of
# a small query make them grow, which takes more than a second.
QUICK_START = (
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=256m",
    "-XX:+UseSerialGC",
    "-XX:MetaspaceSize=256m",
    "-Xms768m",
)

# A session that runs for days gives back what it has freed outside of its heap. Earlier updates of Java 17 do not know
# how. What the JVM keeps as long as there is room (SoftReference) goes after minutes instead of half an hour. Netty
# spreads threads over two arenas for each core and allocator, and an arena takes 4 MiB from its first buffer on.
LONG_RUN = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:TrimNativeHeapInterval=60000",
    "-XX:SoftRefLRUPolicyMSPerMB=100",
    "-Dio.netty.allocator.numDirectArenas=1",
    "-Dio.netty.allocator.numHeapArenas=1",
)

# What Spark keeps of jobs that have ended is for its user interface, which is off. The default, 1,000 of them, takes an
# hour to fill.
FEW_KEPT = {
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.sql.ui.explainMode": "simple",
}

# Notes about each column and frame from where in the code it comes, for error messages: five calls of the JVM for a
# column, and its stack.
WITHOUT_ORIGINS = {
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
}

# Compiling a query, or planning it again after each of its stages, takes longer than running it on a few thousand rows.
SMALL_QUERIES = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


def local_session(
    root: Path,
    app_name: str,
    master: str = "",
    *,
    quick_start: bool = True,
    java_options: Sequence[str] = (),
    **settings: str,
) -> SparkSession:
    """Starts Spark, or returns the session that runs in this process.

    Args:
        root: the directory with .local/jars/spark; its .local gets the logs, too.
        app_name: the name of the Spark application.
        master: Spark's master URL; empty for all processors of this machine.
        quick_start: True to let the JVM compile less: it is ready a fifth sooner, and slower once it is warm. In short
            jobs, the start dominates.
        java_options: more options of the JVM.
        settings: Spark properties that override those of this function.

    Raises:
        ConfigurationError: the jars are missing, or the JVM does not start.
    """
    import pyspark
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    jars = sorted(str(jar) for jar in (root / ".local/jars/spark").glob("*.jar"))
    if not jars:
        raise ConfigurationError(f"no Spark jars in {root / '.local/jars/spark'}; {SETUP}")
    use_utc()
    worker = worker_environment()
    os.environ.update(worker)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)  # another Spark of this machine is of another version
    # For the JVM: glibc gives a process eight arenas for each core, of which each keeps what was freed in it. Large
    # pieces come from the system now and go back to it at once (`worker_python` lifts this for copying tasks).
    os.environ.setdefault("MALLOC_ARENA_MAX", "4")
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(LARGE_BYTES))
    options = [
        *LONG_RUN,
        *(QUICK_START if quick_start else ()),
        *with_archive(root / ".local/jars/spark.jsa"),
        *java_options,
    ]
    options += [
        f"-Dlog4j2.configurationFile={LOG4J}",
        f"-Dderby.system.home={root / '.local'}",
    ]
    is_local, copying = not master or master.startswith("local"), copying_tasks_on(processors())
    confs = {
        "spark.jars": ",".join(jars),
        "spark.driver.extraClassPath": str(defaults_jar(root)),
        "spark.driver.memory": os.environ.get("SPARK_DRIVER_MEMORY") or "2g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **FEW_KEPT,
        **WITHOUT_ORIGINS,
        "spark.speculation": "false",
        "spark.python.daemon.module": "mirrorlake.local.daemon",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": str(root / ".local/spark-warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.databricks.delta.autoCompact.enabled": "false",
        # The ledger's tables get a commit every few seconds. A checkpoint of Delta's log takes a second; a read opens
        # all commits since the last one. What Spark keeps for it comes with a table's first one.
        "spark.databricks.delta.properties.defaults.checkpointInterval": "30",
        # Delta keeps the list of a table's files for the next query: half a KB for each commit, also for those whose
        # files were compacted within the last week.
        "spark.databricks.delta.snapshotCache.storageLevel": "DISK_ONLY",
        # The default store for files starts four processes (readlink) for each commit. Neither store keeps out other
        # processes on a local disk; the ledger's lock does.
        "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
        # Each commit lists all files of the table's log. Hadoop's checksum of each file, and Delta's of each version,
        # which has one, too, would make it four times as many.
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.databricks.delta.writeChecksumFile.enabled": "false",
        # Parquet keeps its Snappy codecs, one for each task at work, with buffers outside of the heap for the largest
        # pages that they have had. By default, those of Delta's checkpoints grow to 1 MiB in hours.
        "spark.hadoop.parquet.page.size": str(64 << 10),
        "spark.hadoop.parquet.dictionary.page.size": str(64 << 10),
        # Tasks in which VACUUM lists files: 10,000 take a minute.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # The default manager starts a process (readlink) for each file. No query of mirrorlake continues from an
        # earlier query's checkpoint.
        "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
        "spark.redaction.regex": REDACTED,
        "spark.driver.extraJavaOptions": one_line(options),
        **{
            f"spark.executorEnv.{name}": value for name, value in worker.items()
        },  # of executors on other workers; in local mode there are none
        "spark.executorEnv.TZ": "UTC",
        **(SMALL_QUERIES if quick_start else {}),
        **({"spark.default.parallelism": str(copying)} if is_local else {}),
        # Other users of the machine can reach Spark's ports, too. It draws the secret itself, and keeps it in memory.
        **({"spark.authenticate": "true"} if IN_ONE_PROCESS.fullmatch(master or "local") else {}),
        **settings,
    }
    builder = SparkSession.builder.master(master or f"local[{copying + FREE_CORES}]").appName(app_name)
    for name, value in confs.items():
        builder = builder.config(name, value)
    # Spark's JVM inherits standard error from this process when it starts. Its output goes to a log of its own.
    log = root / ".local/logs" / f"spark-{os.getpid()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    _delete_oldest(log.parent)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they print errors as JSON that are raised anyway
    start = log.stat().st_size if log.exists() else 0
    try:
        with _standard_error_to(log):
            return builder.getOrCreate()
    except (OSError, PySparkRuntimeError) as error:
        if isinstance(error, PySparkRuntimeError) and error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        said = _first_line(log, start)
        kind = MirrorlakeError if MAY_PASS.search(said) else ConfigurationError  # a service is started again then
        raise kind(
            f"Spark's JVM does not start: {said}. It needs Java 17 to 23, on the PATH or where JAVA_HOME says, and "
            f"SPARK_DRIVER_MEMORY for its heap; see {log}"
        ) from None


def processors(limit: Path = CONTAINER_LIMIT) -> int:
    """Returns the number of processors that this process may use, with a container's limit (of cgroup v2)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = limit.read_text().split()
        return max(1, min(allowed, int(quota) // int(period)))
    return allowed


def copying_tasks_on(cores: int) -> int:
    """Returns how many copying tasks a session on this machine runs at the same time."""
    return min(max(cores - FREE_CORES, FEWEST_COPYING), MOST_COPYING)


def one_line(options: Iterable[str]) -> str:
    """Returns options of a JVM as Spark's launcher splits them again: in quotes, as paths may have spaces."""
    escaped = (option.replace("\\", r"\\").replace('"', r"\"") for option in options)
    return " ".join(f'"{option}"' for option in escaped)


def use_utc() -> None:
    """Sets the zone of this process, by which PySpark converts times without a zone; the ledger's times are UTC."""
    os.environ["TZ"] = "UTC"
    time.tzset()


def worker_environment() -> dict[str, str]:
    """Returns the environment in which Spark's Python processes use this interpreter and, in a checkout, its code.

    They find an installed package without further settings.
    """
    checkout = resources.checkout()
    own = [str(checkout / "lib")] if checkout else []
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([*own, *(part for part in given if part and part not in own)])
    return {
        "PYSPARK_PYTHON": str(WORKER_PYTHON),
        "MIRRORLAKE_PYTHON": sys.executable,
        "MIRRORLAKE_PYTHONPATH": path,
        "PYTHONPATH": path,
    }


def _delete_oldest(logs: Path) -> None:
    """Deletes the logs of sessions but the newest ones and those of processes that run."""
    known = {}
    for one in logs.glob("spark-*.log"):
        with suppress(FileNotFoundError):  # another session that starts has deleted it
            known[one] = one.stat().st_mtime
    for one in sorted(known, key=lambda one: -known[one])[KEPT_LOGS:]:
        if not Path(f"/proc/{one.stem.removeprefix('spark-')}").exists():
            one.unlink(missing_ok=True)


NOTHING = "it says nothing"
# Of what a JVM says that does not start.
MAY_PASS = re.compile("insufficient memory|allocate memory|[Kk]illed")


def _first_line(log: Path, start: int) -> str:
    """Returns the first line from a position on that the JVM, or the script that starts it, has written."""
    lines = log.read_bytes()[start:].decode(errors="replace").splitlines() if log.exists() else []
    told = (line.strip() for line in lines if line.strip() and not line.startswith("Picked up "))  # its variables
    return printable(next(told, NOTHING), LONGEST_LINE)


@contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    kept = os.dup(2)
    try:
        with open(path, "ab", opener=private) as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
