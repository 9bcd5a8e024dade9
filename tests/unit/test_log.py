"""Log lines: one event is one line, for any content."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, TargetError
from mirrorlake.jobs.checkpoint.offset_source import GroupOffsetsReader, Groups, KafkaGroupOffsets
from mirrorlake.jobs.mirror.copy.task import copy_task
from mirrorlake.jobs.verification.run_digests import digest_task
from mirrorlake.log import JsonFormatter, TextFormatter, configure, ending, event

LOG = logging.getLogger("mirrorlake.tests.log")
NAMES = ("mirrorlake", "kafka")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restores the configuration of logging; pytest attaches and detaches its own handlers itself."""
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(logger.level, logger.propagate, own_handlers(logger)) for logger in loggers]
    yield
    for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
        pytests = [handler for handler in logger.handlers if handler not in own_handlers(logger)]
        logger.setLevel(level)
        logger.propagate, logger.handlers = propagate, handlers + pytests


def own_handlers(logger: logging.Logger) -> list[logging.Handler]:
    """Returns the handlers of a logger that are not pytest's."""
    return [handler for handler in logger.handlers if not type(handler).__module__.startswith("_pytest")]


def record(message: object, level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord("mirrorlake.jobs", level, __file__, 1, message, None, None)
    made.created = 1795388712.25
    return made


def written(environment: dict[str, str] | None = None, **settings: Any) -> io.StringIO:
    """Returns the lines logged from now on, in the format that an operator has chosen."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter(is_brief=True))
    configure(handler, environment or {}, **settings)
    return stream


def test_an_event_is_a_line_of_fields_in_the_order_given() -> None:
    made = event("micro_batch_committed", flow="a->b", generation=3, records=120_000, seconds=0.81, lag=0, slot=None)
    assert str(made) == "micro_batch_committed flow=a->b generation=3 records=120000 seconds=0.81 lag=0"
    assert TextFormatter().format(record(made)) == f"2026-11-22T23:05:12.250Z INFO {made}"
    assert TextFormatter(is_brief=True).format(record(made)) == f"23:05:12 {made}"
    assert TextFormatter(is_brief=True).format(record(made, logging.WARNING)) == f"23:05:12 WARNING {made}"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("two words", '"two words"'),
        ("", '""'),
        ('say "a=b"', '"say \\"a=b\\""'),
        ("back\\slash", '"back\\\\slash"'),
        (True, "true"),
        (-1, "-1"),
        ("größe", "größe"),
    ],
)
def test_values_that_are_not_one_word_are_quoted(value: object, shown: str) -> None:
    assert str(event("seen", value=value)) == f"seen value={shown}"


def test_a_name_with_line_ends_cannot_forge_a_line() -> None:
    name = "orders\n2026-11-22T23:05:12.250Z ERROR mirror_failed flow=a->b\r\u2028\u0085\x1b[31m\u202eevil"
    for formatter in (TextFormatter(), TextFormatter(is_brief=True), JsonFormatter()):
        for said in (event("topic_held", topic=name), f"topic {name} is held"):
            line = formatter.format(record(said))
            assert line.splitlines() == [line]
            assert line.isprintable()
    held = TextFormatter(is_brief=True).format(record(event("topic_held", topic="a topic=b")))
    assert held == '23:05:12 topic_held topic="a topic=b"', "no value looks like another field"


@settings(deadline=None)
@given(st.text())
def test_any_text_stays_on_its_line_and_can_be_read_back(text: str) -> None:
    line = str(event("seen", value=text))
    assert line.isprintable()
    value = line.removeprefix("seen value=")
    assert (json.loads(value) if value.startswith('"') else value) == text
    assert json.loads(JsonFormatter().format(record(event("seen", value=text))))["value"] == text


def test_a_long_value_is_shortened_in_a_line_and_in_an_error() -> None:
    huge = "\x1b" * 200_000
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(record(event("seen", group=huge, error=TargetError(f"group {huge} is away"))))
        assert "(200,000 characters)" in line
        assert len(line) < 100_000
    error = TargetError(f"group \u202eevil\x1b[31m{huge}\nis away")
    assert str(error).startswith("group \\u202eevil\\x1b[31m\\x1b")
    assert error.message == str(error)
    assert len(str(error)) < 50_000
    assert str(TargetError("one line\nand another")) == "one line\nand another"


def test_json_keeps_types_and_says_where_a_line_is_from() -> None:
    made = event("seen", flow="a->b", records=7, seconds=0.5, passed=False, path=Path("/tmp/x"), rate=float("inf"))
    assert json.loads(JsonFormatter().format(record(made, logging.WARNING))) == {
        "time": "2026-11-22T23:05:12.250Z",
        "level": "WARNING",
        "logger": "mirrorlake.jobs",
        "event": "seen",
        "flow": "a->b",
        "records": 7,
        "seconds": 0.5,
        "passed": False,
        "path": "/tmp/x",
        "rate": "inf",
    }


def test_a_field_cannot_pose_as_the_level_of_a_json_line() -> None:
    forged = json.loads(JsonFormatter().format(record(event("seen", level="ERROR", time="never"))))
    assert (forged["level"], forged["time"]) == ("INFO", "2026-11-22T23:05:12.250Z")


def test_an_exception_is_logged_by_its_first_line_only() -> None:
    out = written()
    try:
        raise ValueError("the first line\njaas.password=hunter2")
    except ValueError:
        LOG.exception(event("odd", flow="a->b"))
    with pytest.raises(TargetError), ending(LOG, "mirror", flow="a->b"):
        raise TargetError("a broker is away\nsasl.password=hunter2")
    LOG.warning(event("retried", error=OSError("no route\njaas.password=hunter2")))
    odd, failed, retried = out.getvalue().splitlines()
    assert retried.endswith('WARNING retried error="no route"')
    assert odd.endswith('ERROR odd flow=a->b error="the first line"')
    assert failed.endswith('ERROR mirror_failed flow=a->b error="a broker is away" kind=TargetError')


def test_the_level_comes_from_the_environment_then_the_entry_point() -> None:
    for environment, chosen, expected in (
        ({}, {}, 2),
        ({}, {"level": "WARNING"}, 1),
        ({"MIRRORLAKE_LOG_LEVEL": "debug"}, {"level": "WARNING"}, 3),
        ({"MIRRORLAKE_LOG_LEVEL": "ERROR"}, {}, 0),
    ):
        out = written(environment, **chosen)
        LOG.debug(event("fine"))
        LOG.info(event("usual"))
        LOG.warning(event("odd"))
        assert len(out.getvalue().splitlines()) == expected


def test_a_file_gets_every_line_in_the_chosen_format_and_again_after_it_was_moved(tmp_path: Path) -> None:
    file = tmp_path / "mirror.log"
    out = written({"MIRRORLAKE_LOG_FILE": str(file), "MIRRORLAKE_LOG_FORMAT": "json"})
    LOG.info(event("first", flow="a->b"))
    file.rename(tmp_path / "mirror.log.1")
    LOG.info(event("second", flow="a->b"))
    first, second = (json.loads((tmp_path / name).read_text())["event"] for name in ("mirror.log.1", "mirror.log"))
    assert (first, second) == ("first", "second")
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("mirror.log.1", "mirror.log")} == {0o600}
    assert out.getvalue().splitlines()[1].endswith("second flow=a->b")


def test_a_file_whose_folder_has_gone_ends_no_job_and_gets_lines_again_once_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    out = written({"MIRRORLAKE_LOG_FILE": str(folder / "mirror.log")})
    LOG.info(event("first", flow="a->b"))
    folder.rename(tmp_path / "moved")
    for _ in range(2):
        LOG.info(event("second", flow="a->b"))
    folder.mkdir()
    LOG.info(event("third", flow="a->b"))
    assert len(out.getvalue().splitlines()) == 4, "standard error has all"
    assert (folder / "mirror.log").read_text().endswith("third flow=a->b\n")


def test_configuring_twice_replaces_the_first_and_leaves_the_handlers_of_others_alone() -> None:
    of_others = logging.NullHandler()
    logging.getLogger("mirrorlake").addHandler(of_others)
    first, second = written(), written()
    LOG.info(event("seen"))
    assert (first.getvalue(), len(second.getvalue().splitlines())) == ("", 1)
    assert of_others in logging.getLogger("mirrorlake").handlers


@pytest.mark.parametrize(
    ("variable", "value"), [("FORMAT", "xml"), ("LEVEL", "loud"), ("FILE", "/nowhere/at/all/mirror.log")]
)
def test_a_wrong_variable_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"MIRRORLAKE_LOG_{variable}.*{value}"):
        configure(logging.NullHandler(), {f"MIRRORLAKE_LOG_{variable}": value})


def test_standard_error_gets_the_chosen_format(capsys: pytest.CaptureFixture[str]) -> None:
    configure(None, {"MIRRORLAKE_LOG_FORMAT": "JSON"})
    LOG.info(event("seen", records=1))
    assert json.loads(capsys.readouterr().err)["records"] == 1


@pytest.mark.parametrize("was_quiet", [False, True])
def test_kafka_python_prints_neither_payloads_nor_credentials(
    capsys: pytest.CaptureFixture[str], *, was_quiet: bool
) -> None:
    logging.getLogger("kafka").propagate = not was_quiet
    heard = io.StringIO()
    root, handler = logging.getLogger(), logging.StreamHandler(heard)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        out = written({"MIRRORLAKE_LOG_LEVEL": "DEBUG"})
        client = logging.getLogger("kafka.net.connection")
        for severity in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            client.log(severity, "SaslAuthenticateRequest(auth_bytes=hunter2)")
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    assert "hunter2" not in out.getvalue() + "".join(capsys.readouterr()) + heard.getvalue()


def test_spark_workers_keep_kafka_python_quiet_before_they_speak_to_kafka(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mirrorlake.properties"
    config.write_text("clusters = a, b\na.bootstrap.servers = a:1\nb.bootstrap.servers = b:1\na->b.enabled = true\n")
    flow, options = Flow.load(config, "a->b"), {"config": str(config), "flow": "a->b"}
    client = logging.getLogger("kafka")
    entries: dict[str, Callable[[], object]] = {
        "copy": lambda: [*copy_task(flow, 1, 1, 1.0, "")(iter(()))],
        "digests": lambda: [*digest_task(flow)(())],
        "groups": lambda: KafkaGroupOffsets(options).streamReader(None),
        "offsets": lambda: [*GroupOffsetsReader(flow).read(Groups(None, error="a broker is away"))],
    }
    for name, enter in entries.items():
        client.setLevel(logging.DEBUG)
        client.propagate, client.handlers = True, []
        enter()
        assert (client.level, client.propagate) == (logging.ERROR, False), name
        client.error("SaslAuthenticateRequest(auth_bytes=hunter2)")
    assert "hunter2" not in "".join(capsys.readouterr())
