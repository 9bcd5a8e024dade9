"""Positions outside Kafka, translated by the ledger alone; the sources of these flows don't exist."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, TargetError
from mirrorlake.ledger.store import Ledger
from mirrorlake.translation.inputs import ExternalPositions
from mirrorlake.translation.positions import listed, parse
from mirrorlake.translation.translator import Translator

from tests.example_ledger import DAY, at, run, write_flow


def flow(directory: Path, **more: str) -> Flow:
    return Flow.load(write_flow(directory, **more), "west->east")


@pytest.fixture
def translator(example: Ledger, tmp_path: Path) -> Translator:
    return Translator(flow(tmp_path), example, ask_source=False)


def test_offsets_come_back_in_target_names_with_a_status_each(translator: Translator) -> None:
    asked = parse('{"orders": {"0": 510, "1": "9999"}, "payments": {"0": 260}, "new": {"0": 0}, "other": {"0": 7}}')
    found = translator.translate(listed(asked))
    assert {(p.topic, p.partition): (p.target_topic, p.downstream_offset, p.status) for p in found.positions} == {
        ("orders", 0): ("west.orders", 501, "exact"),
        ("orders", 1): ("west.orders", 531, "clamped"),
        ("payments", 0): ("west.payments", 311, "exact"),
        ("new", 0): ("west.new", 0, "exact"),
        ("other", 0): (None, None, "not_mirrored"),
    }
    assert found.offsets() == {"west.orders": {0: 501, 1: 531}, "west.payments": {0: 311}, "west.new": {0: 0}}
    assert found.statuses == {"exact": 3, "clamped": 1, "not_mirrored": 1}


def test_earliest_is_the_first_mirrored_record_and_latest_the_end_of_what_is_mirrored(translator: Translator) -> None:
    found = translator.translate(listed(parse('{"orders": {"0": -1, "1": -2}, "new": {"0": -1, "1": -2}}')))
    assert [(p.upstream_offset, p.downstream_offset, p.status) for p in found.positions] == [
        (901, 881, "exact"),
        (120, 0, "exact"),
        (0, 0, "exact"),
        (0, 0, "exact"),
    ]


def test_one_partition_can_stand_at_several_places(translator: Translator) -> None:
    found = translator.translate([*listed({"orders": {0: 10}}, "start"), *listed({"orders": {0: 520}}, "end")])
    assert (found.offsets("start"), found.offsets("end")) == ({"west.orders": {0: 10}}, {"west.orders": {0: 501}})


def test_a_time_is_the_first_run_that_holds_it(translator: Translator) -> None:
    found = translator.translate(translator.at(1_795_182_690_000))  # 2026-11-20 13:51:30
    assert {(p.topic, p.partition): (p.upstream_offset, p.downstream_offset) for p in found.positions} == {
        ("orders", 0): (520, 501),
        ("orders", 1): (450, 281),
        ("payments", 0): (250, 301),
    }
    assert found.statuses == {"exact": 3}
    assert translator.translate(translator.at(1_795_262_400_000)).offsets() == {
        "west.orders": {0: 881, 1: 531},
        "west.payments": {0: 451},
    }  # later than all


def test_a_time_is_before_the_mirror_if_the_map_before_the_first_run_that_holds_it_has_expired(
    example: Ledger, tmp_path: Path
) -> None:
    spans = [(100, 200), (200, 300)]
    rows = [run(1, "t", 0, span, span[0], f"12:{10 * n}:00", source="olden") for n, span in enumerate(spans, 1)]
    example.append("offset_syncs", rows)
    expired = {"source": "olden", "target": "east", "topic": "t", "partition": 0, "incarnation": 0, "expired_at": DAY}
    example.append("expired_ranges", [{**expired, "to_offset": 100}])
    # Of a map that was read anew from the offset-syncs topic, the rows are there again.
    example.append("offset_syncs", [run(3, "t", 1, (0, 200), 0, "12:10:00", source="olden")])
    example.append("expired_ranges", [{**expired, "partition": 1, "to_offset": 100}])
    values = {"clusters": "olden, east", "olden.bootstrap.servers": "localhost:1", "olden->east.enabled": "true"}
    olden = Flow.load(write_flow(tmp_path, **values), "olden->east")
    translator = Translator(olden, example, ask_source=False)

    def found(time: str) -> list[tuple[int | None, str]]:
        positions = translator.at(round((at(time) - datetime(1970, 1, 1)).total_seconds() * 1000))
        return [(one.downstream_offset, one.status) for one in translator.translate(positions).positions]

    assert found("11:00:00") == [(100, "before_mirror"), (0, "exact")]
    assert found("12:15:00") == [(200, "exact"), (200, "exact")]
    assert found("13:00:00") == [(300, "exact"), (200, "exact")]


def test_what_is_handed_over_as_json_or_in_a_file_is_written_where_it_is_asked_for(
    translator: Translator, tmp_path: Path
) -> None:
    text, output = '{"orders": {"0": 510}}', tmp_path / "out.json"
    given = tmp_path / "given.json"
    given.write_text(text)
    ExternalPositions(positions=str(given), output=str(output)).translate(translator)
    assert json.loads(output.read_text()) == {"west.orders": {"0": 501}}
    with pytest.raises(TargetError, match="offset 9999: the position is clamped"):
        ExternalPositions(positions='{"orders": {"1": 9999}}', output=str(tmp_path / "clamped.json")).translate(
            translator
        )
    ExternalPositions(
        positions='{"orders": {"1": 9999}}', output=str(tmp_path / "allowed.json"), allow="clamped"
    ).translate(translator)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["allowed.json", "given.json", "out.json"]
    with pytest.raises(ConfigurationError, match="neither JSON nor a file or directory: /nowhere"):
        ExternalPositions(positions="/nowhere").translate(translator)


def test_a_topic_whose_transform_decides_about_partitions_is_not_covered(example: Ledger, tmp_path: Path) -> None:
    prefix = "mirrorlake.transform.spread"
    spread = flow(
        tmp_path, **{"mirrorlake.transforms": "spread", f"{prefix}.topics": "orders", f"{prefix}.partition": "0"}
    )
    found = Translator(spread, example, ask_source=False).translate(listed({"orders": {0: 10}, "payments": {0: 10}}))
    assert [(p.status, p.downstream_offset) for p in found.positions] == [("not_covered", None), ("exact", 10)]


def test_where_others_write_to_the_remote_topics_nothing_is_translated(example: Ledger, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="other programs write to the remote topics"):
        Translator(flow(tmp_path, **{"mirrorlake.topics.shared": "true"}), example)
