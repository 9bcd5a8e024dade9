from __future__ import annotations

from typing import Any

import pytest
from mirrorlake.ledger.store import Ledger
from mirrorlake.ledger.views import ensure_views

from tests.empty_ledger import ledger_in
from tests.example_ledger import fill


@pytest.fixture(scope="session")
def example(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Fills the ledger of docs/sql.md, with its views; flows that tests add have other names.

    The name of its directory has a quote.
    """
    made = fill(ledger_in(spark, "example", tmp_path_factory.mktemp("o'example")))
    ensure_views(made)
    return made
