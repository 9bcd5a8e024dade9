"""A target that has lost what was mirrored to it is noticed before anything is written behind the loss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mirrorlake.errors import TargetError
from mirrorlake.local.cluster import LocalCluster, running
from mirrorlake.protocol.batches.record_batch import read_log

from tests.world import DEADLINE_S, World, transactional_producer, write_in_transaction

# Files that a broker makes anew from the log, once it does not believe in a clean shutdown.
DERIVED = ("*.index", "*.timeindex", "*.txnindex", "*.snapshot")


@pytest.fixture
def target(root: Path, tmp_path: Path) -> Iterator[LocalCluster]:
    with running(LocalCluster("target", tmp_path / "target", root / ".local/jars/kafka")) as cluster:
        yield cluster


def cut_off(target: LocalCluster, remote: str, end: int) -> None:
    """Removes the batches from an offset on, as a broker does that starts with an older copy of its disk."""
    target.stop_broker(1)
    (directory,) = target.directory.rglob(f"{remote}-0")
    (file,) = directory.glob("*.log")
    kept = sum(len(batch.raw) for batch in read_log(file.read_bytes()) if batch.end_offset <= end)
    with file.open("r+b") as log:
        log.truncate(kept)
    for derived in [path for pattern in DERIVED for path in directory.glob(pattern)]:
        derived.unlink()
    for shutdown in target.directory.rglob(".kafka_cleanshutdown"):
        shutdown.unlink()
    target.start_broker(1)


def test_a_target_that_has_lost_mirrored_records_is_refused_before_and_after_others_fill_their_offsets(
    servers: tuple[str, str], target: LocalCluster, tmp_path: Path
) -> None:
    world = World(servers[0], target.bootstrap_servers, tmp_path / "world")
    topic = world.topic(partitions=1)
    for seed in (0, 1):
        world.produce(topic, 100, 1, seed=seed)
        world.mirror()
    before = world.target_records(topic)[0]
    assert len(before) == 200

    cut_off(target, world.remote(topic), 101)  # the first 100 records, and their marker
    kept = world.target_records(topic)[0]
    assert kept == before[:100]
    world.produce(topic, 10, 1, seed=2)
    said = rf"has lost records that were mirrored\. .* offset {before[-1][0]} of {world.remote(topic)}-0"
    for _ in range(2):
        with pytest.raises(TargetError, match=said):
            world.mirror()
    assert world.target_records(topic)[0] == kept

    producer = transactional_producer(target.bootstrap_servers, f"{topic}-other")
    write_in_transaction(producer, world.remote(topic), records=250)
    producer.abort_transaction(DEADLINE_S)
    with pytest.raises(TargetError, match=said):
        world.mirror()
    assert world.target_records(topic)[0] == kept
    world.assert_nothing_open()
