"""Positions outside Kafka as text and as files: the accepted forms, and the refused ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mirrorlake.errors import ConfigurationError, TargetError
from mirrorlake.translation.inputs import ExternalPositions
from mirrorlake.translation.positions import Translated, Translation, listed, parse, time_ms
from mirrorlake.translation.spark_checkpoint import SparkCheckpoint

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'


@pytest.mark.parametrize(
    "text", ['{"t": {"0": 12, "1": -2}}', '{"t": {"0": "12", "1": "-2"}}', '{\n "t": {"1": -2, "0": 12}\n}']
)
def test_partitions_and_offsets_are_numbers_or_text(text: str) -> None:
    assert parse(text) == {"t": {0: 12, 1: -2}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "t:0:12",
        "[]",
        "{}",
        '{"t": {}}',
        '{"t": 12}',
        '{"t": [12]}',
        '{"t": {"0": 1.5}}',
        '{"t": {"0": null}}',
        '{"t": {"0": true}}',
        '{"t": {"0": -3}}',
        '{"t": {"-1": 3}}',
    ],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="positions"):
        parse(text)


def test_a_time_is_utc_unless_it_says_otherwise() -> None:
    assert time_ms("2026-11-01 08:00:00") == time_ms("2026-11-01T09:00:00+01:00") == 1_793_520_000_000
    with pytest.raises(ConfigurationError, match="parameter at is 'noon'"):
        time_ms("noon")


def translated(status: str, label: str = "") -> Translated:
    return Translated(label, "t", 0, 12, "a.t", 0, 10, status, "past what is mirrored")


def test_a_position_that_is_not_exact_is_refused_unless_that_is_allowed_or_it_does_not_count() -> None:
    found = Translation("a->b", (translated("exact"), translated("clamped", "here")))
    with pytest.raises(
        TargetError,
        match=r"flow a->b, topic t, partition 0, offset 12 \(here\): the position is clamped \(past what is mirrored\)",
    ):
        found.require()
    assert found.require(["clamped"]) is found.require(labels=[""]) is found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of the parameters"),
        ({"positions": "{}", "at": "2026-11-01"}, "exactly one of the parameters"),
        ({"at": "2026-11-01", "allow": "clamped, all"}, "parameter allow names all"),
        ({"at": "2026-11-01", "sources": "first"}, "parameter sources is 'first'"),
        ({"at": "2026-11-01", "output": "/"}, "output / exists already"),
    ],
)
def test_parameters_that_say_nothing_clear_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ExternalPositions(**given)


# -- checkpoint directories -------------------------------------------------------------------------


def write(
    directory: Path,
    offsets: dict[int, list[Any]],
    commits: int,
    initial: dict[int, Any] | None = None,
    version: str = "v1",
) -> Path:
    """Writes a checkpoint directory as Spark leaves it, with `commits` finished batches."""
    for batch, lines in offsets.items():
        text = "\n".join([version, METADATA, *(line if isinstance(line, str) else json.dumps(line) for line in lines)])
        for name, content in ((f"{batch}", text), (f".{batch}.crc", "checksum")):
            _file(directory / "offsets" / name).write_text(content)
    for batch in range(commits):
        _file(directory / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    for number, value in (initial or {}).items():
        _file(directory / f"sources/{number}/0").write_bytes(b"\0v1\n" + json.dumps(value).encode())
        _file(directory / f"sources/{number}/.0.crc").write_text("checksum")
    _file(directory / "metadata").write_text('{"id":"x"}')
    _file(directory / "state/0/0/1.delta").write_bytes(b"state")
    return directory


def _file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def doubled(checkpoint: SparkCheckpoint, status: str = "exact") -> Translation:
    """Translates a checkpoint: every topic t becomes a.t, and every offset is doubled."""
    rows = [
        Translated(
            p.label,
            p.topic,
            p.partition,
            p.upstream_offset,
            f"a.{p.topic}",
            p.partition,
            2 * p.upstream_offset,
            status,
            None,
        )
        for p in checkpoint.positions
    ]
    return Translation("a->b", tuple(rows))


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_copy_has_the_last_two_plans_translated_and_the_rest_as_it_was(tmp_path: Path) -> None:
    kafka = {batch: {"t": {"0": 10 * batch, "1": 5}} for batch in range(5)}
    source = write(
        tmp_path / "query",
        {batch: [kafka[batch], '{"logOffset":3}', "-"] for batch in range(1, 5)},
        4,
        {0: {"t": {"0": 0}}},
    )
    before = files(source)
    checkpoint = SparkCheckpoint.read(source)
    assert (checkpoint.plan.batch, checkpoint.is_committed, checkpoint.needed) == (
        4,
        False,
        {"offsets/4, source 0", "offsets/3, source 0"},
    )
    output = checkpoint.write(doubled(checkpoint), tmp_path / "copy")
    assert files(source) == before
    assert files(output) == {
        "metadata": before["metadata"],
        "state/0/0/1.delta": b"state",
        "commits/3": before["commits/3"],
        "offsets/3": f'v1\n{METADATA}\n{{"a.t":{{"0":60,"1":10}}}}\n{{"logOffset":3}}\n-'.encode(),
        "offsets/4": f'v1\n{METADATA}\n{{"a.t":{{"0":80,"1":10}}}}\n{{"logOffset":3}}\n-'.encode(),
        "sources/0/0": b'\0v1\n{"a.t":{"0":0}}',
    }
    assert {path.name for path in tmp_path.iterdir()} == {"query", "copy"}


def test_of_a_finished_batch_only_its_end_counts_and_of_the_first_one_its_beginning_too(tmp_path: Path) -> None:
    plans = {batch: [{"t": {"0": batch}}] for batch in range(3)}
    assert SparkCheckpoint.read(write(tmp_path / "finished", plans, 3)).needed == {"offsets/2, source 0"}
    first = SparkCheckpoint.read(write(tmp_path / "first", {0: plans[0]}, 0, {0: {"t": {"0": 0}}}))
    assert first.needed == {"offsets/0, source 0", "sources/0/0"}


def test_of_a_source_that_had_nothing_yet_the_beginning_counts(tmp_path: Path) -> None:
    source = write(
        tmp_path / "query",
        {0: [{"t": {"0": 1}}, "-"], 1: [{"t": {"0": 2}}, "-"]},
        2,
        {0: {"t": {"0": 0}}, 1: {"u": {"0": 7}}},
    )
    checkpoint = SparkCheckpoint.read(source)
    assert checkpoint.needed == {"offsets/1, source 0", "sources/1/0"}
    assert files(checkpoint.write(doubled(checkpoint), tmp_path / "copy"))["sources/1/0"] == b'\0v1\n{"a.u":{"0":14}}'


def test_a_position_that_counts_and_is_not_exact_leaves_nothing_behind(tmp_path: Path) -> None:
    checkpoint = SparkCheckpoint.read(write(tmp_path / "query", {0: [{"t": {"0": 9}}]}, 1))
    with pytest.raises(TargetError, match=r"offset 9 \(offsets/0, source 0\): the position is clamped"):
        checkpoint.write(doubled(checkpoint, "clamped"), tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["query"]


def test_a_query_that_goes_on_meanwhile_is_noticed(tmp_path: Path) -> None:
    checkpoint = SparkCheckpoint.read(write(tmp_path / "query", {0: [{"t": {"0": 9}}]}, 0))
    write(tmp_path / "query", {}, 1)
    with pytest.raises(ConfigurationError, match="has run during the copy"):
        checkpoint.write(doubled(checkpoint), tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["query"]


def test_only_the_sources_that_are_named_are_translated(tmp_path: Path) -> None:
    source = write(
        tmp_path / "query", {0: [{"t": {"0": 1}}, {"u": {"0": 2}}]}, 1, {0: {"t": {"0": 0}}, 1: {"u": {"0": 0}}}
    )
    checkpoint = SparkCheckpoint.read(source, [1])
    assert {position.topic for position in checkpoint.positions} == {"u"}
    assert files(checkpoint.write(doubled(checkpoint), tmp_path / "copy"))["offsets/0"].endswith(
        b'\n{"t": {"0": 1}}\n{"a.u":{"0":4}}'
    )
    with pytest.raises(ConfigurationError, match=r"source 2 is not a Kafka source\. The query has 2 sources"):
        SparkCheckpoint.read(source, [2])


@pytest.mark.parametrize(
    ("offsets", "commits", "version", "message"),
    [
        ({}, 0, "v1", "holds no plan of a batch"),
        ({0: [{"t": {"0": 1}}]}, 0, "v2", "has format 'v2', but mirrorlake reads v1 only"),
        ({0: ['{"logOffset":3}', "7"]}, 1, "v1", "no source is a Kafka source"),
        ({4: [{"t": {"0": 1}}]}, 3, "v1", "offsets/3, which holds its first offsets, is missing"),
    ],
)
def test_what_is_no_checkpoint_of_a_kafka_query_is_refused(
    tmp_path: Path, offsets: dict[int, list[Any]], commits: int, version: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SparkCheckpoint.read(write(tmp_path, offsets, commits, version=version))


@pytest.mark.parametrize("place", ["query", "query/offsets/copy"])
def test_a_place_that_is_taken_or_inside_is_refused(tmp_path: Path, place: str) -> None:
    checkpoint = SparkCheckpoint.read(write(tmp_path / "query", {0: [{"t": {"0": 9}}]}, 1))
    with pytest.raises(ConfigurationError, match="exists already, or is within"):
        checkpoint.write(doubled(checkpoint), tmp_path / place)


def test_offsets_are_listed_with_what_they_are_of() -> None:
    assert [(p.topic, p.partition, p.upstream_offset, p.label) for p in listed({"t": {1: 2}}, "x")] == [
        ("t", 1, 2, "x")
    ]


def test_the_format_of_commands_is_no_file_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in (("json", ""), ("there.json", "there.json")):
        monkeypatch.setenv("MIRRORLAKE_OUTPUT", value)
        assert ExternalPositions.resolve({"at": "2026-11-01"}).output == expected
