"""Every expectation fails for a violation; an incomplete suite is refused."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from mirrorlake.errors import ConfigurationError, GateError
from mirrorlake.gate import Gate, require
from mirrorlake.jobs.checkpoint.gate_frame import gate_frame
from mirrorlake.jobs.migration.finding import LogFinding, map_frame
from mirrorlake.jobs.mirror.gate_frame import frame as runs_frame
from mirrorlake.jobs.verification.completeness import TopicCount
from mirrorlake.jobs.verification.completeness import gate_frame as gate_frame_of_counts
from mirrorlake.jobs.verification.result import PartitionVerification
from mirrorlake.jobs.verification.result import gate_frame as gate_frame_of_verification
from mirrorlake.metrics import Metrics
from mirrorlake.model.run import Run
from mirrorlake.state.slot_report import SlotReport

ROOT = Path(__file__).resolve().parents[2]


def run(upstream: int, downstream: int, records: int) -> dict[str, int]:
    return {
        "target_partition": 0,
        "upstream_start": upstream,
        "upstream_end": upstream + records,
        "downstream_start": downstream,
        "downstream_end": downstream + records,
        "records": records,
    }


def gap(start: int, end: int, kind: str) -> dict[str, object]:
    return {"from_offset": start, "to_offset": end, "kind": kind}


def stretch(topic: str, **changes: object) -> dict[str, object]:
    return {
        "topic": topic,
        "partition": 0,
        "target_topic": f"a.{topic}",
        "upstream_from": 10,
        "upstream_next": 35,
        "downstream_from": 7,
        "skipped": 5,
        "gaps": [gap(20, 23, "marker"), gap(33, 35, "aborted")],
        "digest_read": 5,
        "digest_written": 5,
        "runs": [run(10, 8, 10), run(23, 18, 10)],
        **changes,
    }


def runs() -> pd.DataFrame:
    only_markers = stretch(
        "markers", upstream_next=12, skipped=2, gaps=[gap(10, 12, "marker")], runs=[], digest_read=0, digest_written=0
    )
    return runs_frame(
        [SlotReport(0, "id", 1, 1, True, [stretch("orders"), only_markers], [])], passes_over_losses=False
    )


def groups() -> pd.DataFrame:
    columns = [
        "group_id",
        "topic",
        "partition",
        "upstream_offset",
        "metadata",
        "target_topic",
        "target_partition",
        "downstream_offset",
        "status",
        "reason",
        "source_lag",
        "run_upstream_start",
        "run_downstream_start",
        "mirrored_end",
    ]
    rows = [
        ("g", "t", 0, 15, "", "a.t", 0, 25, "exact", None, 5, 10, 20, 40),
        ("h", "t", 0, 99, "", "a.t", 0, 40, "clamped", None, 0, None, None, 40),
    ]
    return gate_frame([dict(zip(columns, row, strict=True)) for row in rows], {})


def inferred() -> pd.DataFrame:
    runs = (
        Run("t", 0, "a.t", 0, 10, 20, 3, 13, 10, 100, 0, 0, 0),
        Run("t", 0, "a.t", 0, 25, 30, 15, 20, 5, 50, 0, 0, 0),
    )
    found = LogFinding("t", 0, "a.t", 30, None, 15, 3, 0, 2, 40, 20, 0, (), runs)
    return map_frame([found], {("a.t", 0): 22}, {("a.t", 0): 22})


def verified() -> pd.DataFrame:
    whole = PartitionVerification("t", 0, records=90, not_comparable=10, mapped=100, accounted=100)
    expired = PartitionVerification("t", 1, not_comparable=50, mapped=50, accounted=50)
    return gate_frame_of_verification([whole, expired, PartitionVerification("u", 0, is_covered=False)])


def put(column: str, value: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.assign(**{column: [value, *frame[column][1:]]})


def twice(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame.iloc[:1]], ignore_index=True)


def empty(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.iloc[:0]


def counted() -> pd.DataFrame:
    topics = [TopicCount(name, f"a.{name}", 3, 100, 90, 10, 0, 0) for name in ("t", "u")]
    return gate_frame_of_counts([*topics, TopicCount("v", "a.v", 0, 5, 9, 0, 0, 0, "compacted")])


VIOLATIONS = {
    "offset_syncs": {
        0: empty,
        1: put("topic", None),
        2: put("partition", None),
        3: put("downstream_start", -1),
        4: twice,
        5: twice,
        6: put("gap", 1),
        7: put("gap_reasons", "mislaid"),
        8: put("lost", 3),
        9: put("downstream_advance", -1),
        10: put("upstream_length", 11),
        11: put("downstream_length", 9),
        12: put("accounted", 24),
        13: put("digest_written", 6),
    },
    "checkpoints": {
        0: empty,
        1: put("group_id", None),
        2: put("topic", None),
        3: put("downstream_offset", None),
        4: twice,
        5: put("status", "maybe"),
        6: put("upstream_offset", -1),
        7: put("recomputed", 26),
        8: put("mirrored_end", 24),
        9: put("regression", 3),
        10: put("source_lag", -1),
    },
    "takeover": {
        0: empty,
        1: put("topic", None),
        2: put("partition", None),
        3: put("target_topic", None),
        4: put("records", -1),
        5: put("upstream_length", 9),
        6: put("downstream_length", 11),
        7: put("upstream_step", -1),
        8: put("downstream_step", -1),
        9: put("upstream_next", 19),
        10: put("downstream_end", 23),
        11: put("log_end_now", 23),
        12: put("accounted", 19),
        13: put("doubtful", 1),
    },
    "verification": {
        0: empty,
        1: put("topic", None),
        2: put("partition", None),
        3: twice,
        4: put("records", 0),
        5: put("missing", 1),
        6: put("duplicated", 1),
        7: put("out_of_order", 1),
        8: put("different", 1),
        9: put("unexpected", 1),
        10: put("unmirrored", 1),
        11: put("accounted", 99),
    },
    "counts": {
        0: empty,
        1: put("topic", None),
        2: twice,
        3: put("missing", 1),
        4: put("surplus", 1),
    },
}
FRAMES = {
    "offset_syncs": runs,
    "checkpoints": groups,
    "takeover": inferred,
    "verification": verified,
    "counts": counted,
}
CASES = [(suite, number) for suite, violations in VIOLATIONS.items() for number in violations]


@pytest.fixture(scope="module")
def gates() -> dict[str, Gate]:
    return {name: Gate(ROOT / f"expectations/{name}.json") for name in VIOLATIONS}


def test_merged_partitions_that_have_nothing_to_copy_yet_pass(gates: dict[str, Gate]) -> None:
    idle = {
        "upstream_from": 5,
        "upstream_next": 5,
        "downstream_from": 0,
        "skipped": 0,
        "gaps": [],
        "runs": [],
        "digest_read": 0,
        "digest_written": 0,
        "target_topic": "all",
    }
    frame = runs_frame(
        [SlotReport(0, "id", 1, 1, True, [stretch("x", **idle), stretch("y", **idle)], [])], passes_over_losses=False
    )
    assert all(result.success for result in gates["offset_syncs"].evaluate(frame, "s->t", "cycle"))


@pytest.mark.parametrize("passes_over_losses", [True, False])
def test_losses_pass_only_where_the_flow_goes_on_with_them(gates: dict[str, Gate], passes_over_losses: bool) -> None:
    lost = stretch("orders", gaps=[gap(20, 23, "retention"), gap(33, 35, "aborted")])
    frame = runs_frame([SlotReport(0, "id", 1, 1, True, [lost], [])], passes_over_losses=passes_over_losses)
    failed = [
        result.expectation for result in gates["offset_syncs"].evaluate(frame, "s->t", "cycle") if not result.success
    ]
    assert all("lost" in expectation for expectation in failed)
    assert bool(failed) is not passes_over_losses


@pytest.mark.parametrize("suite", VIOLATIONS)
def test_what_is_right_passes(gates: dict[str, Gate], suite: str) -> None:
    results = gates[suite].evaluate(FRAMES[suite](), "a->b", "c1")
    require(results, "flow a->b", "stopped")
    assert len(results) == gates[suite].expectations


@pytest.mark.parametrize("suite", VIOLATIONS)
def test_a_compiled_suite_finds_what_great_expectations_own_run_finds(gates: dict[str, Gate], suite: str) -> None:
    gate, frame = gates[suite], FRAMES[suite]()
    compiled, validated = (
        sorted((one.expectation, one.success, one.observed, one.unexpected) for one in found(frame, "a->b", "c1"))
        for found in (gate._found_clean, gate._found_by_validation)
    )
    assert compiled == validated
    violated = VIOLATIONS[suite][max(VIOLATIONS[suite])](frame)
    assert not gate._found_clean(violated, "a->b", "c1"), "of this frame, not of the one before"
    assert gate._found_clean(frame, "a->b", "c1")


def test_a_suite_that_someone_has_edited_is_evaluated_whole(tmp_path: Path) -> None:
    """Some expectations can't be compiled, and some pass though single rows fail."""
    mostly, at = {"column": "x", "min_value": 2, "mostly": 0.5}, "2026-11-24"
    expectations = [
        {"type": "expect_column_values_to_be_between", "kwargs": mostly},
        {"type": "expect_column_max_to_be_between", "kwargs": {"column": "x", "max_value": 9}},
        {"type": "expect_column_distinct_values_to_contain_set", "kwargs": {"column": "at", "value_set": [at]}},
    ]
    tolerated = '{"element_count": 3, "unexpected_count": 1}', "[1]"
    for more in ({}, {"min_value": {"$PARAMETER": "1 + 1"}}):
        expectations[1]["kwargs"].update(more)
        (tmp_path / "suite.json").write_text(json.dumps({"name": "edited", "expectations": expectations}))
        gate = Gate(tmp_path / "suite.json")
        assert (gate._compiled is None) is bool(more)
        passed, failed = (gate.evaluate(pd.DataFrame({"x": [1, 2, top], "at": at}), "a->b", "c1") for top in (9, 10))
        assert [one.success for one in passed] == [True, True, True]
        assert (passed[0].observed, passed[0].unexpected) == tolerated
        assert sorted(one.success for one in failed) == [False, True, True]
        clean = gate.evaluate(pd.DataFrame({"x": [3], "at": at}), "a->b", "c1")
        assert sorted(one.observed for one in clean) == sorted(
            one.observed for one in gate._found_by_validation(pd.DataFrame({"x": [3], "at": at}), "a->b", "c1")
        )


@pytest.mark.parametrize("suite", VIOLATIONS)
def test_every_expectation_has_a_violation_here(suite: str) -> None:
    assert sorted(VIOLATIONS[suite]) == list(
        range(len(json.loads((ROOT / f"expectations/{suite}.json").read_text())["expectations"]))
    )


@pytest.mark.parametrize(("suite", "number"), CASES)
def test_each_expectation_fails_when_it_is_violated(gates: dict[str, Gate], suite: str, number: int) -> None:
    wanted = json.loads((ROOT / f"expectations/{suite}.json").read_text())["expectations"][number]
    results = gates[suite].evaluate(VIOLATIONS[suite][number](FRAMES[suite]()), "a->b", "c1")
    failed = [result.expectation for result in results if not result.success]
    assert any(
        expectation.startswith(wanted["type"])
        and all(json.dumps(value) in expectation for value in wanted["kwargs"].values())
        for expectation in failed
    ), failed
    with pytest.raises(GateError, match="expectations failed; stopped"):
        require(results, "flow a->b", "stopped")


def test_a_gate_without_results_does_not_pass() -> None:
    with pytest.raises(GateError):
        require([], "flow a->b", "stopped")


def test_a_column_that_is_missing_fails_and_says_so(gates: dict[str, Gate]) -> None:
    results = gates["offset_syncs"].evaluate(runs().drop(columns=["gap"]), "a->b", "c1")
    assert [result for result in results if not result.success and "gap" in result.expectation]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "are not JSON"),
        ('{"name": "x", "expectations": []}', "are empty"),
        ('{"expectations": [1]}', "are not a suite"),
        ('{"name": "x", "expectations": [{"type": "expect_magic", "kwargs": {}}]}', "does not know expect_magic"),
        (
            '{"name": "x", "expectations": [{"type": "expect_table_row_count_to_equal", "kwargs": {"value": 1}}, '
            '{"type": "expect_magic", "kwargs": {}}]}',
            "does not know expect_magic",
        ),
    ],
)
def test_a_suite_that_is_not_whole_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "suite.json").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        Gate(tmp_path / "suite.json")


def test_a_missing_suite_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"gone\.json can't be read"):
        Gate(tmp_path / "gone.json")


def test_half_evaluated_is_not_evaluated(gates: dict[str, Gate], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates["checkpoints"], "expectations", 12)
    with pytest.raises(GateError, match="11 of the 12 expectations of suite checkpoints were evaluated"):
        gates["checkpoints"].evaluate(groups(), "a->b", "c1")


def test_evaluations_are_counted_and_those_that_did_not_pass(tmp_path: Path) -> None:
    expectation = {"type": "expect_table_row_count_to_equal", "kwargs": {"value": 1}}
    (tmp_path / "suite.json").write_text(json.dumps({"name": "small", "expectations": [expectation]}))
    metrics = Metrics()
    gate = Gate(tmp_path / "suite.json", metrics)
    gate.evaluate(pd.DataFrame({"x": [1]}), "a->b", "c1")
    gate.evaluate(pd.DataFrame({"x": [1, 2]}), "a->b", "c2")
    gate.expectations = 2
    with pytest.raises(GateError, match="1 of the 2"):
        gate.evaluate(pd.DataFrame({"x": [1]}), "a->b", "c3")
    counted = {
        name: metrics.registry.get_sample_value(f"mirrorlake_gate_{name}_total", {"flow": "a->b", "suite": "small"})
        for name in ("evaluations", "failures")
    }
    assert counted == {"evaluations": 3, "failures": 2}


def test_evaluations_leave_nothing_in_memory() -> None:
    gate = Gate(ROOT / "expectations/offset_syncs.json")
    report = SlotReport(0, "id", 1, 1, True, [stretch("long" * 50_000)], [])
    frame = twice(runs_frame([report], passes_over_losses=False))

    def evaluate(times: int) -> int:
        for _ in range(times):
            assert any("long" in str(result) for result in gate.evaluate(frame, "a->b", "cycle"))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    evaluate(1)
    tracemalloc.start()
    try:
        before = evaluate(1)
        assert evaluate(3) - before < 3 * 300_000, "a result that stays keeps the long name of the topic"
    finally:
        tracemalloc.stop()
