"""Jobs of an earlier version and of this one, on one flow: one after the other, at the same time, and back.

`make test-upgrade FROM=REVISION` takes the earlier version from the history. It needs a full clone, so that `make test`
does not include it; tests/kafka/test_older_states.py has what earlier versions have left.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.world import DEADLINE_S, ROOT, World, eventually

FROM = os.environ.get("MIRRORLAKE_TEST_UPGRADE_FROM", "")
pytestmark = pytest.mark.skipif(not FROM, reason="needs an earlier version: make test-upgrade FROM=REVISION")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the code of the earlier version."""
    folder = tmp_path_factory.mktemp("earlier")
    paths = ["lib", "expectations", "tests/kafka/run_mirror.py"]
    archive = subprocess.run(["git", "archive", FROM, *paths], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "x"], cwd=folder, input=archive, check=True)
    return folder


def command(earlier: Path, world: World, *times: str) -> list[str]:
    return [sys.executable, str(earlier / "tests/kafka/run_mirror.py"), world.config, world.flow_name, "", "", *times]


def mirror_with(earlier: Path, world: World) -> subprocess.CompletedProcess[str]:
    """Runs a mirror job of the earlier version, until all existing records are mirrored."""
    return subprocess.run(
        command(earlier, world),
        env=environment(earlier),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def environment(earlier: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(earlier / "lib")}


def format_of(folder: Path) -> str:
    text = (folder / "lib/mirrorlake/model/slot.py").read_text()
    return re.findall(r"^VERSION, READ_VERSIONS = (\d+)", text, re.MULTILINE)[0]


def copied(world: World, topic: str) -> int:
    return sum(map(len, world.target_records(topic).values()))


def test_forwards_and_back_nothing_is_lost_or_copied_twice(earlier: Path, plain_world: World) -> None:
    world = plain_world
    topic = world.topic(partitions=3)
    world.produce(topic, 200, 3)
    done = mirror_with(earlier, world)
    assert (done.returncode, "records=200" in done.stdout) == (0, True), done.stderr[-2_000:]
    world.produce(topic, 100, 3, seed=2)
    assert world.mirror().records == 100, "forwards: it goes on where the other one has stopped"
    assert world.assert_equal(topic) == 300

    world.produce(topic, 50, 3, seed=3)
    back = mirror_with(earlier, world)
    if format_of(earlier) == format_of(ROOT):
        assert (back.returncode, "records=50" in back.stdout) == (0, True), back.stderr[-2_000:]
    else:
        assert back.returncode != 0
        assert re.search("has format version|Upgrade mirrorlake", back.stderr), back.stderr[-2_000:]
        assert world.mirror().records == 50, "back is refused before anything is copied, and forwards is open"
    assert world.assert_equal(topic) == 350
    world.assert_nothing_open()


def test_at_the_same_time_the_one_that_started_last_goes_on_and_nothing_is_copied_twice(
    earlier: Path, plain_world: World
) -> None:
    world = plain_world
    topic = world.topic(partitions=3)
    world.produce(topic, 300, 3)
    old = subprocess.Popen(
        command(earlier, world, "0.2", "120"),
        env=environment(earlier),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        eventually(lambda: old.poll() is not None or copied(world, topic) == 300, what="the older job's copy")
        assert old.poll() is None, old.communicate()[0][-2_000:]
        with world.mirroring():
            world.produce(topic, 100, 3, seed=2)
            said, _ = old.communicate(timeout=DEADLINE_S)
            eventually(lambda: copied(world, topic) == 400, what="the newer job's copy")
    finally:
        old.kill()
    assert old.returncode != 0
    assert re.search("has been taken over|newer|FencedError|Upgrade mirrorlake", said), said[-2_000:]
    assert world.assert_equal(topic) == 400
    world.assert_nothing_open()
