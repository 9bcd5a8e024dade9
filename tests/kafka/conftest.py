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
    """A flow of this test's own between the shared clusters."""
    return World(*servers, tmp_path, spark, warehouse)
