"""Fixtures for all layers: a Spark session for tests that need one, clusters for tests that need brokers.

MIRRORLAKE_TEST_SOURCE and MIRRORLAKE_TEST_TARGET (bootstrap servers) make the tests use existing brokers. Tests that
stop or reconfigure brokers always start their own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

# By default, brokers clean every 15 s and check retention every 5 minutes.
CLEANER = {
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
}
# By default, what a client has sent in the last ten seconds counts, so that only a long backlog is throttled.
QUOTAS = {"quota.window.num": "5"}
SOURCE, TARGET = {**CLEANER, **QUOTAS}, QUOTAS  # properties of the brokers that tests share
ROOT = Path(__file__).resolve().parents[1]
# `make test` gives a worker one file after the other. A long file that came last would run while the others idle. Files
# that mostly wait (for quotas, restarts, silent peers) are among those that compute. Tests without clusters and Spark
# are last: they fill what remains.
LONGEST_FIRST = (
    "notebooks/test_notebooks.py",
    "kafka/test_losses.py",
    "kafka/test_faults.py",
    "kafka/test_exactly_once.py",
    "kafka/test_failover.py",
    "kafka/test_throttling.py",
    "kafka/test_verify.py",
    "kafka/test_network.py",
    "kafka/test_takeover.py",
    "kafka/test_checkpoint.py",
    "kafka/test_held_partitions.py",
    "kafka/test_failback.py",
    "kafka/test_proxy_requests.py",
    "kafka/test_logins.py",
    "kafka/test_topic_sync.py",
    "spark/test_connect.py",
    "spark/test_maintenance.py",
    "bundle/test_wheel.py",
    "unit/test_protocol.py",
)
sys.path[:0] = [str(ROOT / "lib"), str(ROOT)]


def pytest_configure() -> None:
    """Lets SIGTERM end the tests as an interrupt does, so that no broker and no JVM stays behind."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first, and the unit tests last; within a file, and between others, the order stays."""
    turns = {ROOT / "tests" / name: turn for turn, name in enumerate(LONGEST_FIRST)}
    assert all(map(Path.is_file, turns)), "LONGEST_FIRST names a file that is gone"
    items.sort(key=lambda item: turns.get(item.path, len(turns) + item.path.is_relative_to(ROOT / "tests/unit")))


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(autouse=True)
def _undisturbed_log() -> None:
    from tests import log_lines

    log_lines.undisturbed()


@pytest.fixture(scope="session")
def spark(root: Path) -> Iterator[object]:
    """Starts one session for all tests of a layer."""
    from mirrorlake.local.session import local_session

    session = local_session(root, "tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def secured_clusters(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[object, object]]:
    """Returns a source and a target cluster, shared by the tests of a layer. They can be reached in clear, and over TLS
    with a password."""
    from mirrorlake.local.cluster import running
    from mirrorlake.log import quiet_kafka

    from tests.secured_cluster import SecuredCluster

    quiet_kafka()
    base, jars = tmp_path_factory.mktemp("clusters"), root / ".local/jars/kafka"
    # the log cleaner wakes up every 15 s otherwise
    with (
        running(SecuredCluster("source", base / "source", jars, properties=SOURCE)) as source,
        running(SecuredCluster("target", base / "target", jars, properties=TARGET)) as target,
    ):
        yield source, target
        for cluster in (source, target):  # nobody reads their directories any more
            cluster.stop_broker(1, kill=True)


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Returns the bootstrap servers of a source and a target cluster, shared by the tests of a layer."""
    given = os.environ.get("MIRRORLAKE_TEST_SOURCE"), os.environ.get("MIRRORLAKE_TEST_TARGET")
    if all(given):
        return given
    source, target = request.getfixturevalue("secured_clusters")
    return source.bootstrap_servers, target.bootstrap_servers
