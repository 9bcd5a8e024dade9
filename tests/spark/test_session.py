"""What a local session hands to Spark's launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mirrorlake
import pyspark
import pytest
from mirrorlake.local.session import KEPT_LOGS, _delete_oldest, one_line

LIB = Path(mirrorlake.__file__).parents[1]
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-cp")
SUBMIT = ("org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "--master", "local", "--conf")


def test_options_of_the_jvm_stay_whole_in_a_checkout_whose_path_has_spaces_and_quotes() -> None:
    options = ["-XX:+UseSerialGC", "-Da=/my projects/a", "-Db=/x", '-Dc=/a "b" \\c d/e']
    home = Path(pyspark.__file__).parent
    done = subprocess.run(
        [*JAVA, home / "jars/*", *SUBMIT, f"spark.driver.extraJavaOptions={one_line(options)}", "pyspark-shell"],
        env={**os.environ, "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    words = done.stdout.split("\0")
    at = words.index(options[0])
    assert words[at : at + len(options)] == options


@pytest.mark.parametrize("lacking", ["JAVA_HOME", "SPARK_DRIVER_MEMORY"])
def test_a_jvm_that_does_not_start_is_no_defect_and_its_own_words_are_told(lacking: str, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from mirrorlake.local.session import local_session; local_session(Path.cwd(), 'x')"
    )
    jars = tmp_path / ".local/jars/spark"
    jars.mkdir(parents=True)
    (jars / "any.jar").touch()
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(LIB), "SPARK_HOME": "/nowhere", lacking: "/no/such/java"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = done.stderr.strip().splitlines()[-1]
    assert told.startswith("mirrorlake.errors.ConfigurationError: Spark's JVM does not start: "), done.stderr
    assert "/no/such/java" in told
    assert "Java 17" in told


def test_the_logs_of_a_few_sessions_are_kept(tmp_path: Path) -> None:
    for number in range(KEPT_LOGS + 3):
        file = tmp_path / f"spark-{5_000_000 + number}.log"  # no process of Linux has such an id
        file.touch()
        os.utime(file, (number, number))
    (tmp_path / f"spark-{os.getpid()}.log").touch()
    os.utime(tmp_path / f"spark-{os.getpid()}.log", (0, 0))
    _delete_oldest(tmp_path)
    left = {file.stem.removeprefix("spark-") for file in tmp_path.iterdir()}
    assert left == {str(os.getpid()), *(str(5_000_000 + number) for number in range(3, KEPT_LOGS + 3))}


def test_queries_carry_few_of_hadoops_thousand_properties_and_files_work_without_the_others(
    spark: Any, tmp_path: Path
) -> None:
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    assert hadoop.size() < 100
    spark.range(3).write.parquet(str(tmp_path / "rows"))
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 3
    assert "io.serializations" in {entry.getKey() for entry in hadoop.iterator()}, "a session relies on it"
