"""A few seeds of chaos, on a source and a target of one broker each. `make chaos` runs many, on more brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.clusters import Clusters, clusters
from chaos.jobs import warm_up
from chaos.run import run
from chaos.scenario import scenario


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    warm_up()
    with clusters(tmp_path_factory.mktemp("chaos"), small=True) as found:
        yield found


@pytest.mark.parametrize("seed", [35, 103])
def test_whatever_a_seed_does_the_target_is_equal_and_groups_are_at_their_places(
    made: Clusters, tmp_path: Path, seed: int
) -> None:
    verdict = run(scenario(seed, small=True), made, tmp_path / f"seed-{seed}")
    assert verdict.findings == []
    assert verdict.records > 100
    assert verdict.made, "no request had its fault"
