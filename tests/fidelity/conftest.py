from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns one warehouse for all cases, because creating tables takes seconds."""
    return str(tmp_path_factory.mktemp("warehouse"))
