from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One warehouse for all cases: creating tables takes seconds."""
    return str(tmp_path_factory.mktemp("warehouse"))
