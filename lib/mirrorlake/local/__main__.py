"""`python -m mirrorlake.local start|stop`: the two clusters a and b that examples and notebooks are tried on;
`archive`: see `class_archive`."""

from __future__ import annotations

import sys
from pathlib import Path

from mirrorlake.local.cluster import LocalCluster

ROOT = Path(__file__).resolve().parents[3]
PORTS = {"a": 19092, "b": 29092}

PROPERTIES = """\
# Two local clusters, as `make clusters` has started them.
clusters = a, b
a.bootstrap.servers = {a}
b.bootstrap.servers = {b}

a->b.enabled = true
a->b.topics = .*
sync.group.offsets.enabled = true
emit.checkpoints.interval.seconds = 5
refresh.topics.interval.seconds = 5
refresh.groups.interval.seconds = 5

# one broker each
replication.factor = 1
offset-syncs.topic.replication.factor = 1
"""


def local_clusters(root: Path = ROOT) -> dict[str, LocalCluster]:
    """The clusters a and b of this checkout."""
    return {
        name: LocalCluster(name, root / ".local/clusters" / name, root / ".local/jars/kafka", port=port)
        for name, port in PORTS.items()
    }


def main(command: str) -> None:
    clusters = local_clusters()
    if command == "start":
        servers = {name: cluster.start().bootstrap_servers for name, cluster in clusters.items()}
        config = ROOT / ".local/mirrorlake.properties"
        config.write_text(PROPERTIES.format(**servers))
        for name, address in servers.items():
            print(f"cluster {name} runs on {address} (logs and data: {clusters[name].directory})")
        print(f"properties for the flow a->b: {config}")
    elif command == "stop":
        for name, cluster in clusters.items():
            cluster.stop()
            print(f"cluster {name} is stopped")
    elif command == "archive":
        from mirrorlake.local.class_archive import make_archives

        made = make_archives(ROOT)
        print(f"  {', '.join(archive.name for archive in made) or 'none: this Java makes no archives'}")
    else:
        sys.exit("usage: python -m mirrorlake.local start|stop|archive")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
