from __future__ import annotations

from pathlib import Path

import pytest

from tests.world import World


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One warehouse for all tests: flows have names of their own, and creating tables takes seconds."""
    return str(tmp_path_factory.mktemp("warehouse"))


@pytest.fixture
def world(servers: tuple[str, str], spark: object, warehouse: str, tmp_path: Path) -> World:
    """A flow of this test's own between the shared clusters, with a ledger in Delta; mirrored without Spark."""
    return World(*servers, tmp_path, spark, warehouse)


@pytest.fixture
def spark_world(servers: tuple[str, str], spark: object, warehouse: str, tmp_path: Path) -> World:
    """The same, mirrored by Spark."""
    return World(*servers, tmp_path, spark, warehouse, runs_on_spark=True)


@pytest.fixture
def plain_world(servers: tuple[str, str], tmp_path: Path) -> World:
    """A flow of this test's own without Spark and Delta; its map is read from the offset-syncs topic."""
    return World(*servers, tmp_path)
