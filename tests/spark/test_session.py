"""What a local session hands to Spark's launcher."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pyspark
from mirrorlake.local.session import one_line

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


def test_queries_carry_few_of_hadoops_thousand_properties_and_files_work_without_the_others(
    spark: Any, tmp_path: Path
) -> None:
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    assert hadoop.size() < 100
    spark.range(3).write.parquet(str(tmp_path / "rows"))
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 3
    assert "io.serializations" in {entry.getKey() for entry in hadoop.iterator()}, "a session relies on it"
