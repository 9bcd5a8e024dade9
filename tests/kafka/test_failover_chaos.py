"""A seed of `make chaos-failover` on real brokers: clients at work, a source that is killed, and their journals."""

from __future__ import annotations

from pathlib import Path

from mirrorlake.local.cluster import LocalCluster, running

from chaos.failover.run import SOURCE, FailoverRun, Ground
from chaos.failover.story import small

SEED = 9


def test_groups_at_work_when_the_source_is_killed_skip_nothing_and_read_again_only_what_no_cycle_had_seen(
    servers: tuple[str, str], spark: object, warehouse: str, tmp_path: Path, root: Path
) -> None:
    with running(LocalCluster("mortal", tmp_path / "mortal", root / ".local/jars/kafka", properties=SOURCE)) as source:
        run = FailoverRun(small(SEED), Ground(source, servers[1], spark, warehouse, tmp_path / "run"))
        verdict = run.run()
    assert verdict.findings == []
    assert verdict.moved >= 2
    assert verdict.read > 500
