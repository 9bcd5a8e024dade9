import os, sys, pytest
from pathlib import Path
from mirrorlake.local.cluster import LocalCluster, running
from mirrorlake.errors import MirrorlakeError
from mirrorlake.protocol.batches.record_batch import read_log
from tests.world import World, eventually, read_committed

ROOT = Path("/work/wt/model")


def test_x(tmp_path, servers):
    jars = ROOT / ".local/jars/kafka"
    with running(LocalCluster("target", tmp_path / "t", jars)) as target:
        w = World(servers[0], target.bootstrap_servers, tmp_path / "w")
        topic = w.topic(partitions=1)
        w.produce(topic, 100, 1)
        w.mirror()
        w.produce(topic, 100, 1, seed=1)
        w.mirror()
        print("before", len(w.target_records(topic)[0]))
        remote = w.remote(topic)
        target.stop_broker(1)
        (d,) = (tmp_path / "t").rglob(f"{remote}-0")
        (log,) = d.glob("*.log")
        data = log.read_bytes()
        at = 0
        n = 0
        for b in read_log(data):
            if b.end_offset <= 150:
                at += len(b.raw)
        print("sizes", len(data), at)
        with log.open("r+b") as f:
            f.truncate(at)
        for x in [*d.glob("*.index"), *d.glob("*.timeindex"), *d.glob("*.snapshot"), *d.glob("*.txnindex")]:
            x.unlink()
        for x in (tmp_path / "t").rglob(".kafka_cleanshutdown"):
            x.unlink()
        target.start_broker(1)
        print("after loss", len(w.target_records(topic)[0]))
        w.produce(topic, 100, 1, seed=2)
        for i in range(6):
            try:
                print("mirror", w.mirror())
            except MirrorlakeError as e:
                print("ERR", type(e).__name__, str(e)[:300])
            print("target", len(w.target_records(topic)[0]), "source", len(w.source_records(topic)[0]))
