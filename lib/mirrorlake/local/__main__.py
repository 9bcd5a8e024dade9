"""`python -m mirrorlake.local COMMAND`: manages the clusters a and b, on which examples and notebooks are tried.

- `start` does all set-up, then starts both clusters; `stop` stops them.
- `setup` fetches jars and makes class archives if they are missing.
- `jars` and `archive` do one of the two, even if nothing is missing.

"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from mirrorlake import resources
from mirrorlake.errors import MirrorlakeError
from mirrorlake.local.cluster import LocalCluster
from mirrorlake.local.jars import alone, fetch_jars, have_jars
from mirrorlake.log import configure

PORTS = {"a": 19092, "b": 29092}

PROPERTIES = """\
# Two local clusters, as `python -m mirrorlake.local start` (in a checkout: `make clusters`) has started them.
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


def local_clusters(root: Path) -> dict[str, LocalCluster]:
    """Returns the clusters a and b below a directory."""
    return {
        name: LocalCluster(name, root / ".local/clusters" / name, root / ".local/jars/kafka", port=port)
        for name, port in PORTS.items()
    }


def start(root: Path) -> dict[str, str]:
    """Starts both clusters after all set-up, and writes the property file of the flow between them.

    Returns:
        the bootstrap servers of each cluster.
    """
    set_up(root)
    clusters = local_clusters(root)
    servers = {name: cluster.start().bootstrap_servers for name, cluster in clusters.items()}
    config = root / ".local/mirrorlake.properties"
    config.write_text(PROPERTIES.format(**servers))
    for name, address in servers.items():
        print(f"cluster {name} runs on {address} (logs and data: {clusters[name].directory})")
    print(f"properties for the flow a->b: {config}")
    return servers


def stop(root: Path) -> dict[str, str]:
    """Stops both clusters; their data stays.

    Returns:
        the bootstrap servers of each cluster that runs now: none.
    """
    for name, cluster in local_clusters(root).items():
        if not cluster.directory.exists():
            print(f"no cluster {name} here ({cluster.directory})")
            continue
        cluster.stop()
        print(f"cluster {name} is stopped")
    return {}


def set_up(root: Path) -> None:
    """Fetches jars and makes class archives if they are missing."""
    if not have_jars(root, resources.pom()):
        jars(root)
    with alone(root):
        is_archived = (root / ".local/jars/.archived").exists()
    if not is_archived:
        archive(root)


def jars(root: Path) -> None:
    """Fetches the jars of Spark and Kafka, unless they are there."""
    with alone(root):
        if have_jars(root, resources.pom()):
            (root / ".local/jars/.ready").touch()  # for make: pom.xml may be newer, and the same
            return
        print(f"setting up: jars for Spark and Kafka into {root / '.local/jars'} (a minute)", flush=True)
        fetch_jars(root, resources.pom())


def archive(root: Path) -> None:
    """Makes class archives if Spark is installed."""
    if find_spec("pyspark") is None:
        print("no class archives: pyspark is not installed (pip install 'mirrorlake[spark]')")
        return
    from mirrorlake.local.class_archive import make_archives

    print("setting up: class archives, so that Spark and Kafka start faster (half a minute)", flush=True)
    with alone(root):
        made = make_archives(root)
        print(f"  {', '.join(path.name for path in made) or 'none: this Java makes no archives'}")
        (root / ".local/jars/.archived").touch()


COMMANDS: dict[str, Callable[[Path], object]] = {
    "setup": set_up,
    "start": start,
    "stop": stop,
    "jars": jars,
    "archive": archive,
}


def main(arguments: list[str]) -> None:
    if len(arguments) != 1 or arguments[0] not in COMMANDS:
        sys.exit(f"usage: python -m mirrorlake.local {'|'.join(COMMANDS)}")
    try:
        configure()
        COMMANDS[arguments[0]](resources.home())
    except MirrorlakeError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
