"""The checker of chaos runs: shown to notice each kind of damage, and to share no code with what it judges."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from mirrorlake.errors import ConfigurationError
from mirrorlake.local.cluster import Broker, LocalCluster

from chaos.cells import CELLS, SILENT
from chaos.checker import Evidence, GroupPosition, Piece, Record, findings
from chaos.coverage import Coverage
from chaos.history import History
from chaos.run import Verdict
from chaos.scenario import FAULTS_S, OLDER_EACH, SILENT_CELLS, SILENT_FROM_S, Disturbance, scenario

PARTITION = ("orders", 0)
MARKER = 3  # the source's offset of a marker between the records


def log(*offsets: int) -> list[Record]:
    """Returns records of these offsets with the contents 0, 1, 2 ..."""
    return [record(offset, number) for number, offset in enumerate(offsets)]


def record(offset: int, number: int) -> Record:
    return Record(offset, None, str(number).encode(), (("n", None),), (1, number))


def good() -> Evidence:
    """Returns the evidence of a run in which all is well."""
    target = log(0, 1, 2, 4, 5)
    return Evidence(
        source={PARTITION: log(0, 1, 2, 4, 5)},
        target={PARTITION: target},
        live={PARTITION: target},
        pieces={PARTITION: [Piece(0, 3, 0, 3), Piece(MARKER, MARKER + 1), Piece(4, 6, 4, 6)]},
        groups=[GroupPosition("g", PARTITION, 3, 3), GroupPosition("at the end", PARTITION, 6, 6)],
    )


def with_target(change: Callable[[list[Record]], list[Record]]) -> Evidence:
    """Returns evidence whose target, also as seen by the live consumer, was changed."""
    evidence = good()
    target = {PARTITION: change(list(evidence.target[PARTITION]))}
    return replace(evidence, target=target, live=target)


def with_pieces(*pieces: Piece) -> Evidence:
    return replace(good(), pieces={PARTITION: pieces})


def with_group(target_offset: int | None) -> Evidence:
    return replace(good(), groups=[GroupPosition("g", PARTITION, 3, target_offset)])


def with_live(change: Callable[[list[Record]], list[Record]]) -> Evidence:
    return replace(good(), live={PARTITION: change(list(good().target[PARTITION]))})


DAMAGES: dict[str, tuple[Evidence, str]] = {
    "lost": (with_target(lambda log: log[:2] + log[3:]), "is lost"),
    "lost at the end": (with_target(lambda log: log[:-1]), "is lost"),
    "doubled": (with_target(lambda log: [*log, log[4]._replace(offset=7)]), "1 times on the source and 2 times there"),
    "foreign": (with_target(lambda log: [*log, record(7, 99)]), "0 times on the source"),
    "swapped": (
        with_target(lambda log: [log[0], log[2]._replace(offset=1), log[1]._replace(offset=2), *log[3:]]),
        "another order",
    ),
    "another value": (with_target(lambda log: [log[0]._replace(value=b"x"), *log[1:]]), "is lost"),
    "another header": (with_target(lambda log: [log[0]._replace(headers=()), *log[1:]]), "is lost"),
    "another time": (with_target(lambda log: [log[0]._replace(timestamp=(1, 9)), *log[1:]]), "is lost"),
    "a partition is missing": (replace(good(), target={}, live={}), "5 records on the source, 0"),
    "a false pair": (
        with_pieces(Piece(0, 3, 0, 3), Piece(3, 4), Piece(4, 6, 5, 7)),
        "the map says 5 for source offset 4, the logs say 4",
    ),
    "an unmapped record": (with_pieces(Piece(0, 3, 0, 3), Piece(3, 6)), "the map says None for source offset 4"),
    "a hole in the map": (with_pieces(Piece(0, 3, 0, 3), Piece(4, 6, 4, 6)), "in no piece"),
    "a run that is there twice": (
        with_pieces(Piece(0, 3, 0, 3), Piece(0, 3, 0, 3), Piece(3, 4), Piece(4, 6, 4, 6)),
        "in two pieces",
    ),
    "a run of another length": (with_pieces(Piece(0, 3, 0, 3), Piece(3, 4), Piece(4, 6, 4, 7)), "another length"),
    "a pair without a record": (with_pieces(Piece(0, 3, 0, 3), Piece(3, 6, 3, 6)), "without a record"),
    "a group too early": (with_group(2), "offset 3 on the source is 2 on the target"),
    "a group too late": (with_group(5), "offset 3 on the source is 5 on the target"),
    "a group without an offset": (with_group(None), "no offset on the target"),
    "seen twice": (with_live(lambda log: [*log[:2], log[1], *log[2:]]), "has seen offset 1 after 1"),
    "seen in another order": (with_live(lambda log: [log[1], log[0], *log[2:]]), "has seen offset 0 after 1"),
    "seen and gone": (with_live(lambda log: [*log, record(9, 9)]), "1 records that are not there in the end"),
    "never seen": (with_live(lambda log: log[:-1]), "has not seen 1 that are"),
    "open": (replace(good(), open_partitions=["orders-0"]), "a transaction is open"),
    "not caught up": (replace(good(), recovered_s=None), "not caught up"),
    "a job that has stopped": (replace(good(), stopped=["the mirror job has ended"]), "has ended"),
    "nothing": (Evidence({}, {}, {}, {}), "nothing was compared"),
}


def test_a_run_in_which_all_is_well_has_no_findings() -> None:
    assert findings(good()) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_is_found(damage: str) -> None:
    evidence, words = DAMAGES[damage]
    assert [text for text in findings(evidence) if words in text], findings(evidence)


def test_the_checker_and_what_reads_for_it_share_no_code_with_mirrorlake(root: Path) -> None:
    code = "import chaos.checker, chaos.evidence, sys; print([name for name in sys.modules if 'mirrorlake' in name])"
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_seed_gives_the_same_scenario_and_seeds_deal_out_every_cell(tmp_path: Path) -> None:
    assert scenario(7) == scenario(7) != scenario(8)
    seeds = range(1, Coverage(tmp_path / "coverage.json").full_run + 1)
    dealt = {
        (side, rule.api, rule.fault) for seed in seeds for side, rules in scenario(seed).rules.items() for rule in rules
    }
    assert {(cell.side, cell.api, cell.fault) for cell in CELLS} == dealt
    assert {scenario(seed).is_older for seed in seeds if seed % OLDER_EACH == 0} == {True}


def test_cells_that_were_never_made_come_first_and_few_seeds_have_them_all(tmp_path: Path) -> None:
    coverage = Coverage(tmp_path / "coverage.json")
    for seed in range(1, 61):
        cells = coverage.deal(seed)
        assert sum(cell.fault in SILENT for cell in cells) <= (0 if seed % 4 else SILENT_CELLS)
        assert len(cells) == len(set(cells))
        plan = scenario(seed, cells)
        assert plan == scenario(seed, cells)
        coverage.add({(cell.side, cell.api, str(cell.fault)): 1 for cell in cells})
    assert coverage.empty() == []
    assert Coverage(tmp_path / "coverage.json").empty() == [], "another run goes on"


def test_a_cell_has_what_causes_its_request() -> None:
    cells = [cell for cell in CELLS if cell.api == "CreatePartitions"]
    events = {event.what: event.at_s for event in scenario(1, cells[:1]).events}
    assert Disturbance.NEW_PARTITIONS in events
    silent = [cell for cell in cells if cell.fault in SILENT]
    at = [event.at_s for event in scenario(1, silent).events if event.what is Disturbance.NEW_PARTITIONS]
    assert any(SILENT_FROM_S < one < FAULTS_S for one in at)


def test_a_cell_that_was_never_made_is_named(tmp_path: Path) -> None:
    coverage = Coverage(tmp_path / "coverage.json")
    coverage.add({(cell.side, cell.api, str(cell.fault)): 2 for cell in CELLS[1:]})
    assert coverage.empty() == [f"{CELLS[0].side} {CELLS[0].api} {CELLS[0].fault}"]
    table = coverage.table().splitlines()
    assert len({len(line) for line in table}) == 1
    assert " 0" in next(line for line in table if line.startswith(f"{CELLS[0].side} {CELLS[0].api} "))


def test_the_history_counts_the_runs_of_one_revision_and_the_last_of_a_seed_decides(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    for revision, seed, found in (("old", 1, []), ("new", 2, ["lost"]), ("new", 3, ["lost"]), ("new", 3, [])):
        History(file, revision).add(Verdict(seed, found, 20, faults_s=1800, records=500, recovered_s=2.0 * seed))
    history = History(file, "new")
    assert history.seeds == {2, 3}
    assert history.summary() == (
        "with revision new: 2 seeds, 3 runs, 1,500 records, 0 faults of requests in 1.50 hours of faults; recovered "
        "after 6.0 s in the middle, 6.0 s at most; found something the last time: [2]"
    )


def test_a_broker_that_is_down_is_not_frozen_in_place_of_everything_here(tmp_path: Path) -> None:
    """To kill(2), process id 0 stands for all processes of the caller's group."""
    cluster = LocalCluster("down", tmp_path / "down", tmp_path)
    cluster.brokers.append(Broker(1, 1))
    for change in (cluster.freeze_broker, cluster.thaw_broker):
        with pytest.raises(ConfigurationError, match="broker 1 does not run"):
            change(1)
