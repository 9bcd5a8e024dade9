"""Jobs of an earlier version and of this one, on one flow: one after the other, at the same time, and back.

`make test-upgrade FROM=REVISION` takes the earlier version from the history. It needs a full clone, so that `make test`
does not include it; tests/kafka/test_older_states.py has what earlier versions have left.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from mirrorlake.errors import FencedError, LedgerError
from mirrorlake.failpoint import VARIABLE
from mirrorlake.ledger.tables import TABLES, column_definitions
from mirrorlake.model.slot import VERSION

from tests.world import DEADLINE_S, ROOT, World, eventually

FROM = os.environ.get("MIRRORLAKE_TEST_UPGRADE_FROM", "")
pytestmark = pytest.mark.skipif(not FROM, reason="needs an earlier version: make test-upgrade FROM=REVISION")

REFUSES = "has format version|Upgrade mirrorlake"
RUN_JOBS = Path(__file__).with_name("run_jobs.py")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the code of the earlier version, which uses the jars of this one."""
    folder = tmp_path_factory.mktemp("earlier")
    paths = ["lib", "expectations", "tests/kafka/run_mirror.py"]
    archive = subprocess.run(["git", "archive", FROM, *paths], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "x"], cwd=folder, input=archive, check=True)
    (folder / ".local").mkdir()
    (folder / ".local/jars").symlink_to((ROOT / ".local/jars").resolve())
    return folder


@pytest.fixture
def older_ledger(servers: tuple[str, str], spark: object, tmp_path: Path) -> World:
    """A flow with a ledger whose tables the earlier version makes."""
    warehouse = tmp_path / f"older_{tmp_path.parent.name.replace('-', '_')}"
    (warehouse / warehouse.name).mkdir(parents=True)  # else there would be tables of this version
    return World(*servers, tmp_path, spark, str(warehouse))


def goes_back(earlier: Path) -> bool:
    """Tells whether the earlier version reads the states that this one writes."""
    text = (earlier / "lib/mirrorlake/model/slot.py").read_text()
    read = re.findall(r"^VERSION, READ_VERSIONS = \d+, \((.+)\)", text, re.MULTILINE)
    return VERSION in [int(version) for version in read[0].split(",") if version.strip()]


def writes_upgraded_tables(earlier: Path) -> bool:
    """Tells whether the earlier version names the columns that it writes, so that others may be there, too."""
    return "whenNotMatchedInsertAll" not in (earlier / "lib/mirrorlake/ledger/store.py").read_text()


def mirror_command(folder: Path, world: World, *times: str) -> list[str]:
    return [sys.executable, str(folder / "tests/kafka/run_mirror.py"), world.config, world.flow_name, "", "", *times]


def jobs_command(folder: Path, world: World, *jobs: str) -> list[str]:
    warehouse = Path(world.warehouse)
    words = [folder, world.config, world.flow_name, warehouse, warehouse.name, *jobs]
    return [sys.executable, str(RUN_JOBS), *map(str, words)]


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    return {**kept, "PYTHONPATH": str(folder / "lib"), **more}


def run(folder: Path, command: list[str], **more: str) -> tuple[int, str, str]:
    """Runs a command by the code of a folder to its end; returns its exit code, its output and its log."""
    done = subprocess.run(
        command, env=environment(folder, **more), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    return done.returncode, done.stdout, done.stderr[-3_000:]


@contextmanager
def running(folder: Path, command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command by the code of a folder beside the block; the log has its output."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment(folder), stdout=file, stderr=file)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def copied(world: World, topic: str) -> int:
    return sum(map(len, world.target_records(topic).values()))


def test_forwards_and_back_nothing_is_lost_or_copied_twice(earlier: Path, plain_world: World) -> None:
    world = plain_world
    topic = world.topic(partitions=3)
    world.produce(topic, 200, 3)
    world.produce_transactions(topic, 4, 5, 3)
    code, said, log = run(earlier, mirror_command(earlier, world))
    assert (code, "records=" in said) == (0, True), log
    existing = world.assert_equal(topic)
    world.produce(topic, 100, 3, seed=2)
    assert world.mirror().records == 100, "forwards: it goes on where the other one has stopped"
    assert world.assert_equal(topic) == existing + 100

    # An operator goes back because the new version crashes: it leaves transactions open.
    world.produce(topic, 50, 3, seed=3)
    code, _, log = run(ROOT, mirror_command(ROOT, world), **{VARIABLE: "driver.copied"})
    assert code == -signal.SIGKILL, log
    code, said, log = run(earlier, mirror_command(earlier, world))
    if goes_back(earlier):
        assert (code, "records=50" in said) == (0, True), log
        world.produce(topic, 30, 3, seed=4)
        assert world.mirror().records == 30, "and forwards again"
    else:
        assert code != 0
        assert re.search(REFUSES, log), log
        world.produce(topic, 30, 3, seed=4)
        assert world.mirror().records == 80, "back is refused before anything is copied, and forwards is open"
    assert world.assert_equal(topic) == existing + 180
    world.assert_nothing_open()


def test_at_the_same_time_the_one_that_started_last_goes_on_and_nothing_is_copied_twice(
    earlier: Path, plain_world: World, tmp_path: Path
) -> None:
    world = plain_world
    topic = world.topic(partitions=3)
    world.produce(topic, 300, 3)
    log = tmp_path / "older.log"
    with running(earlier, mirror_command(earlier, world, "0.2", "600"), log) as older:
        eventually(lambda: older.poll() is not None or copied(world, topic) == 300, what="the older job's copy")
        assert older.poll() is None, log.read_text()[-2_000:]
        with world.mirroring():
            world.produce(topic, 100, 3, seed=2)
            assert older.wait(DEADLINE_S) != 0
            eventually(lambda: copied(world, topic) == 400, what="the newer job's copy")
    assert re.search(f"has been taken over|newer|FencedError|{REFUSES}", log.read_text()), log.read_text()[-2_000:]
    assert world.assert_equal(topic) == 400
    world.assert_nothing_open()


def test_a_job_of_the_earlier_version_that_starts_beside_this_one_takes_over_or_disturbs_nothing(
    earlier: Path, plain_world: World
) -> None:
    world = plain_world
    topic = world.topic(partitions=3)
    world.produce(topic, 300, 3)
    job = world.mirror_job()
    with ThreadPoolExecutor(1) as pool:
        mirroring = pool.submit(job.run, 0.2)
        try:
            eventually(lambda: mirroring.done() or copied(world, topic) == 300, what="the newer job's copy")
            code, said, log = run(earlier, mirror_command(earlier, world))
            world.produce(topic, 100, 3, seed=2)
            if goes_back(earlier):
                assert (code, "records=0" in said) == (0, True), log
                assert isinstance(mirroring.exception(DEADLINE_S), FencedError)
            else:
                assert code != 0
                assert re.search(REFUSES, log), log
                eventually(lambda: mirroring.done() or copied(world, topic) == 400, what="the newer job's next copy")
                assert not mirroring.done(), "it is not fenced by a job that refuses to start"
        finally:
            job.stop()
    world.mirror()
    assert world.assert_equal(topic) == 400
    world.assert_nothing_open()


def test_tables_and_groups_go_forwards_and_back(earlier: Path, older_ledger: World, tmp_path: Path) -> None:
    world = older_ledger
    topic = world.topic(partitions=1)
    remote = world.remote(topic)

    def moves(upstream: int) -> str:
        """Commits the offset of the group's next record on the source."""
        return world.commit("readers", {(topic, 0): upstream})

    def place() -> int:
        """Returns the offset on the source of the record at which the group continues on the target."""
        offset = world.committed(group)[remote, 0][0]
        return [at for at, _ in world.target_records(topic)[0]].index(offset)

    world.produce(topic, 100, 1)
    group = moves(40)
    code, _, log = run(earlier, jobs_command(earlier, world, "mirror", "checkpoint"))
    assert (code, place()) == (0, 40), log

    # The tables are refused, then upgraded. The earlier version's jobs go on with them until this one has mirrored; the
    # earliest ones go on without a ledger.
    if lacking(world):
        with pytest.raises(LedgerError, match="upgrade = true"):
            world.ledger.ensure_tables()
        world.ledger.ensure_tables(upgrade=True)
        assert not lacking(world)
    world.ledger.ensure_tables()
    world.produce(topic, 50, 1, seed=2)
    moves(120)
    code, _, log = run(earlier, jobs_command(earlier, world, "mirror", "checkpoint"))
    if writes_upgraded_tables(earlier):
        assert (code, place()) == (0, 120), log
    else:
        assert code != 0
        assert "the ledger can't be brought up to date" in log, log
        assert copied(world, topic) == 150, "what is on the target stays there"

    # A checkpoint job of the earlier version runs on while this one mirrors, and moves groups beside this one.
    said = tmp_path / "older.log"
    with running(earlier, jobs_command(earlier, world, "checkpointing"), said) as older:
        eventually(lambda: older.poll() is not None or "checkpointing begins" in said.read_text())
        moves(130)
        eventually(lambda: older.poll() is not None or place() == 130, what="the older job's move")
        assert older.poll() is None, said.read_text()[-3_000:]
        world.produce(topic, 50, 1, seed=3)
        assert world.mirror().records == 50
        with world.checkpointing():
            for upstream in (160, 170, 180):
                moves(upstream)
                eventually(lambda upstream=upstream: place() == upstream, what=f"the move to {upstream}")
            if goes_back(earlier):
                assert older.poll() is None, said.read_text()[-3_000:]
                older.terminate()
                assert older.wait(DEADLINE_S) == 0, said.read_text()[-3_000:]
            else:
                assert older.wait(DEADLINE_S) != 0
                assert re.search(REFUSES, said.read_text()), said.read_text()[-3_000:]
            moves(190)
            eventually(lambda: place() == 190, what="the move by this version alone")
    assert world.assert_equal(topic) == 200, "the table offset_syncs has every run, once"

    # Back.
    world.produce(topic, 20, 1, seed=4)
    moves(210)
    code, _, log = run(earlier, jobs_command(earlier, world, "mirror", "checkpoint"))
    if goes_back(earlier):
        assert (code, place()) == (0, 210), log
    else:
        assert (code != 0, place()) == (True, 190)
        assert re.search(REFUSES, log), log
        assert world.mirror().records == 20
        world.checkpoint()
        assert place() == 210
    assert world.assert_equal(topic) == 220
    newest: dict[str, Any] = max(world.rows("checkpoints"), key=lambda row: row["created_at"])
    assert (newest["upstream_offset"], newest["status"]) == (210, "exact")


def lacking(world: World) -> list[str]:
    """Returns the columns that tables of the earlier version lack; tables that are missing lack none."""
    found = []
    for name in TABLES:
        directory = Path(world.warehouse) / Path(world.warehouse).name / name
        if directory.is_dir():
            there = {field.name for field in DeltaTable(directory).schema().fields}
            columns = [column.split()[0] for column in column_definitions(name)]
            found += [f"{name}.{column}" for column in columns if column not in there]
    return found
