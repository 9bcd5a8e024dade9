"""Local clusters, as developers and tests start them."""

import json
from pathlib import Path

import pytest
from mirrorlake.errors import ConfigurationError
from mirrorlake.local import cluster as clusters
from mirrorlake.local.cluster import LocalCluster


def test_a_broker_that_ends_while_it_starts_says_why_also_where_a_start_was_interrupted(
    root: Path, tmp_path: Path
) -> None:
    home = tmp_path / "b\u00fcro \u20ac"  # Java reads property files as Latin-1
    (home / "broker-1/data").mkdir(parents=True)
    cluster = LocalCluster("a", home, root / ".local/jars/kafka", properties={"metric.reporters": "none.such"})
    with pytest.raises(ConfigurationError, match=r"broker 1 has died:(.|\n)*ClassNotFoundException.* none\.such"):
        cluster.start()
    assert not cluster.is_running(1)


def test_the_cluster_of_somebody_else_is_never_taken_for_ones_own(
    servers: tuple[str, str], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(servers[0].rpartition(":")[2])
    broker = {"node_id": 1, "port": port}
    (tmp_path / "cluster.json").write_text(json.dumps({"cluster_id": "x", "controller_port": 1, "brokers": [broker]}))
    cluster = LocalCluster("a", tmp_path, root / ".local/jars/kafka")
    with pytest.raises(ConfigurationError, match=f"port {port} of its broker 1 is in use by another program"):
        cluster.start()
    monkeypatch.setattr(clusters, "_is_alive", lambda _: True)  # its own broker has just begun
    with pytest.raises(ConfigurationError, match=r"another Kafka cluster \(id \S+\) answers at 127\.0\.0\.1"):
        cluster.start()
