"""The notebooks as operators run them: by papermill, one process each, on real brokers.

The first mirror starts a JVM of its own; the others use a warm one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from mirrorlake.errors import ConfigurationError
from mirrorlake.notebook.runtime import Parameters, finish, parameters
from mirrorlake.parameters import resolve, seconds

from tests.canary import CANARY, leaks
from tests.empty_ledger import ledger_in, put_tables
from tests.example_ledger import fill, write_flow
from tests.notebooks.warm_jvm import WarmJvm
from tests.secured_cluster import SecuredCluster
from tests.world import PROCESS_S, World, consume_as, read_committed

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


CONF_DIR_OF_NOTEBOOKS = "MIRRORLAKE_TEST_CONF_DIR"  # not Spark's own variable: the session of this process has no log


def logging_events() -> dict[str, str]:
    """Returns the environment of a process whose sessions write event logs, within the fixture `event_logs`."""
    settings = os.environ.get(CONF_DIR_OF_NOTEBOOKS)
    return {"SPARK_CONF_DIR": settings} if settings else {}


@pytest.fixture(scope="module")
def event_logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Lets each session of a notebook write what it does into the event log of its application, and knows a secret of
    a scope."""
    settings, logs = tmp_path_factory.mktemp("conf"), tmp_path_factory.mktemp("events")
    values = {"enabled": "true", "dir": logs.as_uri(), "compress": "false", "rolling.enabled": "false"}
    lines = [f"spark.eventLog.{name} {value}\n" for name, value in values.items()]
    (settings / "spark-defaults.conf").write_text("".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CONF_DIR_OF_NOTEBOOKS, str(settings))
        patch.setenv("SECRET_KAFKA_PASSWORD", CANARY)
        yield logs


@pytest.fixture(scope="module")
def jvm(event_logs: Path) -> Iterator[WarmJvm]:
    with WarmJvm.running(**logging_events()) as found:
        yield found


@pytest.fixture
def world(secured_clusters: tuple[SecuredCluster, SecuredCluster], tmp_path: Path, event_logs: Path) -> Iterator[World]:
    """A flow that logs in at both clusters by a password, which is nowhere afterwards: not in any file of the test, in
    the tables, in the executed notebooks, in the logs, in Spark's event logs, and on the target."""
    since = time.time()
    made = World(*(cluster.bootstrap_servers for cluster in secured_clusters), tmp_path)
    secrets = tmp_path.with_name(f"{tmp_path.name}.secrets")
    secrets.touch(0o600)
    secrets.write_text(f"password = {CANARY}\n")
    log_in(made, *secured_clusters, secrets)
    yield made
    spark_logs = [log for log in (ROOT / ".local/logs").glob("spark-*.log") if log.stat().st_mtime >= since]
    topic = made.flow.offset_syncs_topic
    states = (
        read_committed(made.target_servers, topic) if topic in made.target_admin.list_topics(timeout=10).topics else {}
    )
    assert [*event_logs.iterdir()], "Spark has written no event log"
    assert not [*leaks([tmp_path, event_logs, *spark_logs], [*made.lines, str(states)])]
    assert {log.stat().st_mode & 0o077 for log in spark_logs} <= {0}


def log_in(world: World, source: SecuredCluster, target: SecuredCluster, secrets: Path) -> None:
    """Lets the flow log in at both clusters; one password is in a scope, the other in a file."""
    world.write_config(
        **source.client(world.alias, "${secrets:kafka:password}"),
        **target.client(world.target_alias, f"${{file:{secrets}:password}}"),
    )


def cell(notebook: dict[str, Any], tag: str) -> dict[str, Any]:
    return next(cell for cell in notebook["cells"] if tag in cell["metadata"].get("tags", []))


def run(name: str, output: Path, jvm: WarmJvm | None, /, *, fails_with: str = "", **given: str) -> dict[str, Any]:
    """Runs a notebook by papermill's command line, as in the README; returns the executed notebook.

    It must fail with `fails_with`, if that is given. Without `jvm` it starts its own JVM.
    """
    words = [
        str(Path(sys.executable).with_name("papermill")),
        "--no-progress-bar",
        str(ROOT / f"notebooks/{name}.ipynb"),
        str(output),
    ]
    if "warehouse" in given:
        put_tables(given["warehouse"], given.get("schema", "mirrorlake"))
    for parameter, value in given.items():
        words += ["-p", parameter, value]
    environment = os.environ | logging_events() | (jvm.environment if jvm else {})
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=PROCESS_S, check=False, env=environment
    )
    if jvm:
        jvm.end_session()
    assert bool(done.returncode) == bool(fails_with), done.stderr[-3000:]
    assert fails_with in done.stderr
    return json.loads(output.read_text())


def result(notebook: dict[str, Any]) -> dict[str, Any]:
    (output,) = cell(notebook, "result")["outputs"]
    return json.loads("".join(output["text"]))


def printed(notebook: dict[str, Any]) -> str:
    return "".join("".join(output.get("text", [])) for cell in notebook["cells"] for output in cell.get("outputs", []))


def images(notebook: dict[str, Any]) -> int:
    return sum(
        "image/png" in output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", [])
    )


def test_notebooks_are_clean() -> None:
    checked = subprocess.run(
        [sys.executable, str(ROOT / "tools/check_notebooks.py")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout
    assert {path.stem for path in NOTEBOOKS} == {
        "assess",
        "topics",
        "mirror",
        "checkpoint",
        "audit",
        "takeover",
        "handback",
        "translate",
        "transform",
        "verify",
        "counts",
        "maintain",
        "report",
        "failover",
        "failback",
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_parameters_cell_repeats_the_defaults_of_the_library(path: Path) -> None:
    namespace: dict[str, Any] = {}
    exec("".join(cell(json.loads(path.read_text()), "parameters")["source"]), namespace)
    defaults = vars(Parameters())
    shared = {name: value for name, value in namespace.items() if name in defaults}
    assert shared == {name: defaults[name] for name in shared}
    assert shared


def test_topics_mirror_checkpoint_and_audit_run_by_papermill_and_move_a_group(
    world: World, tmp_path: Path, jvm: WarmJvm
) -> None:
    topic = world.topic()
    world.produce(topic, 500)
    source = world.source_records(topic)
    group = world.commit(
        "o'neil \\ \"${env:HOME} {0} <b>",
        {(topic, partition): records[len(records) // 2][0] for partition, records in source.items()},
    )
    given = {"config": world.config, "flow": world.flow_name, "warehouse": world.warehouse}

    assessed = run("assess", tmp_path / "assess.ipynb", jvm, config=world.config, flow=world.flow_name)
    found = result(assessed)
    assert (found["topics"], found["offsets"], found["groups"]) == (1, 500, 1)
    pages = [
        output.get("data", {}).get("text/html", "") for one in assessed["cells"] for output in one.get("outputs", ())
    ]
    assert any(topic in "".join(page) for page in pages)

    planned = run("topics", tmp_path / "topics.ipynb", jvm, **given, dry_run="true")
    assert result(planned) == {
        "flow": world.flow_name,
        "topics": 1,
        "changes": 1,
        "planned": 1,
        "applied": 0,
        "refused": 0,
    }
    assert world.remote(topic) not in world.target_admin.list_topics(timeout=10).topics

    mirrored = run("mirror", tmp_path / "mirror.ipynb", None, **given, trigger="availableNow")
    assert result(mirrored)["records"] == 500
    assert re.search(r"\d\d:\d\d:\d\d micro_batch_committed .* batch=0 records=500 ", printed(mirrored))
    assert images(mirrored) == 1

    translated = run("checkpoint", tmp_path / "checkpoint.ipynb", jvm, **given, trigger="2 seconds", run_for="8")
    assert result(translated)["syncs"] in (
        {"committed": 2},
        {"in_step": 2},
    )  # in the first cycle, and in those behind it
    assert result(translated)["statuses"] == {"exact": 2}
    unread = {
        (world.remote(topic), partition): [record[1] for _, record in records[len(records) // 2 :]]
        for partition, records in source.items()
    }
    assert consume_as(world.target_servers, group, [world.remote(topic)]) == unread

    offset = source[0][3][0]
    audited = run(
        "audit",
        tmp_path / "audit.ipynb",
        jvm,
        flow=world.flow_name,
        warehouse=world.warehouse,
        topic=topic,
        partition="0",
        upstream_offset=str(offset),
    )
    assert result(audited)["runs"] >= 1
    assert result(audited)["gate_failures"] == 0
    tables = {
        cell["id"]: "".join(
            "".join(output["data"].get("text/plain", [])) for output in cell["outputs"] if "data" in output
        )
        for cell in audited["cells"]
        if cell.get("outputs")
    }
    assert group in tables["group"]
    assert str(world.target_records(topic)[0][3][0]) in tables["offset"]
    assert images(audited) == 1

    given_back = run("handback", tmp_path / "handback.ipynb", jvm, config=world.config, flow=world.flow_name)
    assert result(given_back) == {"flow": world.flow_name, "generation": 2, "partitions": 2}
    taken = run("takeover", tmp_path / "takeover.ipynb", jvm, **given, dry_run="true")
    assert (result(taken)["generation"], result(taken)["partitions"], result(taken)["copied"]) == (0, 2, 0)
    run("report", tmp_path / "report.ipynb", jvm, warehouse=world.warehouse)
    command = [str(Path(sys.executable).with_name("jupyter-nbconvert")), "--to", "html", str(tmp_path / "report.ipynb")]
    subprocess.run(command, check=True, capture_output=True)
    assert world.flow_name.replace("->", " → ") in (tmp_path / "report.html").read_text()


def test_verify_passes_with_all_records_and_fails_with_a_stray_one(world: World, tmp_path: Path, jvm: WarmJvm) -> None:
    topic = world.topic()
    world.produce(topic, 300)
    given = {"config": world.config, "flow": world.flow_name, "warehouse": world.warehouse}
    world.mirror()
    verified = run("verify", tmp_path / "verify.ipynb", jvm, **given)
    found = result(verified)
    assert (found["records"], found["differences"], found["passed"], found["mode"]) == (300, 0, True, "incremental")
    assert "300 records, 0 differences" in found["statement"]
    assert images(verified) == 1
    counted = run("counts", tmp_path / "counts.ipynb", jvm, **given)
    assert "300 records of 1 topic, 0 missing, 0 surplus" in result(counted)["statement"]
    assert images(counted) == 1

    producer = Producer({"bootstrap.servers": world.target_servers, "log_level": 0})
    producer.produce(world.remote(topic), b"stray", partition=1)
    assert producer.flush(30) == 0
    failed = run(
        "verify", tmp_path / "failed.ipynb", jvm, **given, mode="full", fails_with="1 difference (1 unexpected)"
    )
    assert images(failed) == 1
    assert not cell(failed, "result")["outputs"][0].get("text"), "a verification that has failed has no result"


def test_a_transform_is_tried_on_records_and_nothing_is_written(world: World, tmp_path: Path, jvm: WarmJvm) -> None:
    topic, prefix = world.topic(), "mirrorlake.transform.slim."
    settings = {
        "topics": ".*orders",
        "where": "value IS NOT NULL",
        "key": "upper(CAST(key AS STRING))",
        "partition": "CAST(CAST(key AS STRING) AS INT)",
    }
    world.write_config(
        **{"mirrorlake.transforms": "slim"}, **{f"{prefix}{name}": value for name, value in settings.items()}
    )
    world.produce(topic, 100)

    tried = run(
        "transform",
        tmp_path / "transform.ipynb",
        jvm,
        config=world.config,
        flow=world.flow_name,
        topic=topic,
        sample="30",
    )
    counts = result(tried)
    assert {name: counts[name] for name in ("flow", "topic", "transform", "records")} == {
        "flow": world.flow_name,
        "topic": topic,
        "transform": "slim",
        "records": 30,
    }
    assert counts["kept"] + counts["filtered"] + counts["failed"] == 30
    assert counts["failed"] > 5
    assert f"{prefix}where = value IS NOT NULL" in printed(tried)
    shown = {cell["id"]: json.dumps(cell["outputs"]) for cell in tried["cells"] if cell.get("outputs")}
    assert "CAST_INVALID_INPUT" in shown["transform-6"]
    assert f"'{prefix}partition': {counts['failed']}" in shown["transform-8"]
    assert not [name for name in world.target_admin.list_topics(timeout=10).topics if world.alias in name]


def test_what_a_program_keeps_is_translated_by_the_ledger_alone_which_is_then_maintained(
    spark: Any, tmp_path: Path, jvm: WarmJvm
) -> None:
    ledger = fill(ledger_in(spark, "notebooks", tmp_path))
    config = write_flow(tmp_path)
    given = {"config": str(config), "flow": "west->east", "warehouse": ledger.warehouse, "schema": ledger.schema}

    translated = run(
        "translate",
        tmp_path / "translate.ipynb",
        jvm,
        **given,
        positions='{"orders": {"0": 510, "1": "390"}}',
        output=str(tmp_path / "moved.json"),
        source_is_gone="true",
    )
    assert result(translated) == {
        "flow": "west->east",
        "positions": 2,
        "statuses": {"exact": 2},
        "output": str(tmp_path / "moved.json"),
    }
    assert json.loads((tmp_path / "moved.json").read_text()) == {"west.orders": {"0": 501, "1": 270}}
    assert images(translated) == 1

    ages = {"checkpoints_days": "1", "anomalies_days": "7"}
    shared = {name: value for name, value in given.items() if name != "flow"}
    maintained = run("maintain", tmp_path / "maintain.ipynb", jvm, **shared, **ages)
    found = result(maintained)
    assert (found["dry_run"], found["files_after"] <= found["files"]) == (False, True)
    assert any(note.startswith("flow west->east: its map is kept") for note in found["notes"])
    assert images(maintained) == 1


def test_failover_moves_the_groups_and_failback_shows_what_has_diverged(
    world: World, tmp_path: Path, jvm: WarmJvm, secured_clusters: tuple[SecuredCluster, SecuredCluster]
) -> None:
    there = f"{world.alias}t"
    world.target_alias = there
    log_in(world, *secured_clusters, tmp_path.with_name(f"{tmp_path.name}.secrets"))
    world.write_config(
        **{
            "replication.policy.class": "IdentityReplicationPolicy",
            f"{world.alias}->{there}.enabled": "true",
            f"{there}->{world.alias}.enabled": "true",
        }
    )
    topic = world.topic(partitions=1)
    world.produce(topic, 200, 1)
    group = world.commit("readers", {(topic, 0): 120})
    given = {"config": world.config, "flow": world.flow_name, "warehouse": world.warehouse}

    moved = run("failover", tmp_path / "failover.ipynb", jvm, **given, mode="promote", signed_by="ann")
    expected = {
        "flow": world.flow_name,
        "mode": "run",
        "source": "alive",
        "go": True,
        "positions": 1,
        "no_go": 0,
        "drained": 200,
        "outcomes": {"committed": 1},
    }
    assert {name: result(moved)[name] for name in expected} == expected
    assert result(moved)["generation"] > 1
    assert images(moved) == 1
    assert world.committed(group) == {(topic, 0): (120, "")}

    world.produce(topic, 15, 1, seed=3)  # on the side that was left
    home = run("failback", tmp_path / "failback.ipynb", jvm, **given)
    expected = {
        "flow": world.flow_name,
        "mode": "plan",
        "diverged": 15,
        "decided": "",
        "positions": 1,
        "blocks": {},
        "reopened": 0,
    }
    assert {name: result(home)[name] for name in expected} == expected
    shown = {cell["id"]: json.dumps(cell["outputs"]) for cell in home["cells"] if cell.get("outputs")}
    assert topic in shown["failback-4"]
    assert "value_bytes" in shown["failback-5"]


def test_a_parameter_comes_from_papermill_then_the_environment_then_the_default() -> None:
    found = parameters(
        {"flow": "x->y", "schema": "mirrorlake"}, {"MIRRORLAKE_FLOW": "e->e", "MIRRORLAKE_SCHEMA": "other"}
    )
    assert (found.flow, found.schema, found.catalog) == ("x->y", "other", "spark_catalog")


def test_the_result_is_written_at_once_so_that_it_is_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=written.append))
    finish({}, {"records": 1})
    assert written == ['{"records": 1}\n']


def test_on_databricks_a_parameter_comes_from_its_widget() -> None:
    declared: dict[str, str] = {}

    class Widgets:
        def text(self, name: str, default: str) -> None:
            declared.setdefault(name, default)

        def get(self, name: str) -> str:
            return {"flow": "w->w"}.get(name, declared[name])

    class DatabricksUtilities:
        widgets = Widgets()

    namespace = {"dbutils": DatabricksUtilities(), "flow": "a->b", "trigger": "5 seconds"}
    assert resolve(namespace, {"flow": "a->b", "trigger": "availableNow"}) == {"flow": "w->w", "trigger": "5 seconds"}
    assert declared == {"flow": "a->b", "trigger": "5 seconds"}


@pytest.mark.parametrize(
    ("text", "expected"), [("5", 5), ("5 seconds", 5), ("1 second", 1), ("2 minutes", 120), ("1.5 hours", 5400)]
)
def test_durations_are_read(text: str, expected: float) -> None:
    assert seconds("run_for", text, "") == expected


@pytest.mark.parametrize("text", ["soon", "5 days", "-1", "5 seconds later"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="parameter trigger is"):
        Parameters(trigger=text).interval_s(1)
