"""Log lines of events: an event's name, then its fields as `key=value`, or as JSON.

A module logs to `logging.getLogger(__name__)`, each event as one line: `log.info(event("topic_changed", flow=flow.name,
topic=topic))`. Whatever a value is, it stays on its line, and a long one is shortened. Entry points (notebooks,
commands, benchmarks) call `configure` once, and Spark's worker processes call `quiet_kafka`. Connection properties and
stack traces are never logged.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from typing import Any

from mirrorlake.errors import ConfigurationError, first_line
from mirrorlake.printable import shortened

ROOT = "mirrorlake"
LOGFMT, JSON = "logfmt", "json"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
FORMAT_VARIABLE, LEVEL_VARIABLE, FILE_VARIABLE = (f"MIRRORLAKE_LOG_{name}" for name in ("FORMAT", "LEVEL", "FILE"))
DELIMITERS = frozenset(' "=\\')  # of logfmt


@dataclass(frozen=True)
class Event:
    """An event, as the message of a log record.

    Attributes:
        name: the name of the event, in snake case; the same for all events of its kind.
        fields: the fields of the event, in the order in which operators read them.
    """

    name: str
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{name}={_logfmt(value)}" for name, value in self.fields.items())])


def event(name: str, /, **fields: Any) -> Event:
    """Makes the message of a log record; leaves out fields that are None.

    Of an exception, only the first line is logged, because the others may hold anything.
    """
    return Event(name, {key: _said(value) for key, value in fields.items() if value is not None})


@contextmanager
def ending(log: logging.Logger, job: str, **fields: Any) -> Iterator[None]:
    """Logs an error that leaves the block as the end of a job, and raises it again."""
    try:
        yield
    except Exception as error:
        log.error(event(f"{job}_failed", **fields, error=error, kind=type(error).__name__))
        raise


class TextFormatter(logging.Formatter):
    """Formats records for operators: time, level and event.

    Args:
        is_brief: True for a page that is read while the job runs: the time of day only, and no level for INFO.
    """

    def __init__(self, *, is_brief: bool = False) -> None:
        super().__init__()
        self._is_brief = is_brief

    def format(self, record: logging.LogRecord) -> str:
        at, said = datetime.fromtimestamp(record.created, UTC), str(message(record))
        if not self._is_brief:
            return f"{_iso(at)} {record.levelname} {said}"
        level = "" if record.levelno == logging.INFO else f"{record.levelname} "
        return f"{at:%H:%M:%S} {level}{said}"


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, event, and the fields with their types."""

    def format(self, record: logging.LogRecord) -> str:
        said, at = message(record), datetime.fromtimestamp(record.created, UTC)
        fields = {name: _json(value) for name, value in said.fields.items()}
        about = {"time": _iso(at), "level": record.levelname, "logger": record.name, "event": said.name}
        return json.dumps({**about, **{name: fields[name] for name in fields if name not in about}})


def message(record: logging.LogRecord) -> Event:
    """Returns the event of a record; one whose message is plain text becomes the event `message`."""
    found = record.msg if isinstance(record.msg, Event) else event("message", text=record.getMessage())
    error = record.exc_info[1] if record.exc_info else None
    return Event(found.name, {**found.fields, "error": _said(error)}) if error else found


def configure(
    handler: logging.Handler | None = None, environment: Mapping[str, str] = os.environ, *, level: str = "INFO"
) -> None:
    """Sets up the log handlers of this process; replaces earlier ones.

    MIRRORLAKE_LOG_LEVEL is the lowest level that is logged (DEBUG, INFO, WARNING or ERROR). MIRRORLAKE_LOG_FILE names a
    file to which every line is appended as well. MIRRORLAKE_LOG_FORMAT is the format of that file and of standard
    error: `logfmt` or `json`.

    Args:
        handler: a handler in place of the one for standard error; it keeps its own format.
        environment: the environment variables.
        level: the level if MIRRORLAKE_LOG_LEVEL is not set.

    Raises:
        ConfigurationError: a variable has a value that is not allowed, or the file can't be written.
    """
    formatter = _formatter(_allowed(environment, FORMAT_VARIABLE, LOGFMT, (LOGFMT, JSON)))
    least = _allowed(environment, LEVEL_VARIABLE, level, LEVELS)
    if handler is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter)
    handlers = [handler]
    if path := environment.get(FILE_VARIABLE, ""):
        handlers.append(_file(path, formatter))
    logger = logging.getLogger(ROOT)
    for old in [known for known in logger.handlers if known.name == ROOT]:
        logger.removeHandler(old)
        old.close()
    for new in handlers:
        new.name = ROOT
        logger.addHandler(new)
    logger.setLevel(least)
    logger.propagate = False  # handlers of the notebook's platform would print every line again
    quiet_kafka()


def quiet_kafka() -> None:
    """Keeps kafka-python from logging.

    At DEBUG it prints payloads and credentials. Its errors are raised by mirrorlake with their cause.
    """
    logger = logging.getLogger("kafka")
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())  # without one, Python prints errors on standard error


def _formatter(name: str) -> logging.Formatter:
    return JsonFormatter() if name == JSON else TextFormatter()


def private(path: str, flags: int) -> int:
    """Opens a file, as an opener of `open`: a new one can be read and written by its owner alone."""
    return os.open(path, flags, 0o600)


class PrivateFileHandler(WatchedFileHandler):
    """Appends to a file that its owner alone can read, unless it exists already with another mode."""

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding=self.encoding, errors=self.errors, opener=private)

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line. A file that was moved away and can't be opened again ends no job."""
        try:
            super().emit(record)
        except Exception:  # it opens the file outside of logging's own handling of errors
            self.handleError(record)


def _file(path: str, formatter: logging.Formatter) -> logging.Handler:
    try:
        handler = PrivateFileHandler(path, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{FILE_VARIABLE}={path} can't be written: {error.strerror}") from None
    handler.setFormatter(formatter)
    return handler


def _allowed(environment: Mapping[str, str], variable: str, default: str, allowed: tuple[str, ...]) -> str:
    given = environment.get(variable) or default
    for value in allowed:
        if value.lower() == given.lower():
            return value
    raise ConfigurationError(f"{variable} is '{given}'; allowed is {', '.join(allowed[:-1])} or {allowed[-1]}")


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _said(value: Any) -> Any:
    return first_line(value) if isinstance(value, BaseException) else value


def _logfmt(value: Any) -> str:
    """Formats a value of one word as it is, and any other one in quotes and on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    text = shortened(str(value))
    if text and text.isprintable() and DELIMITERS.isdisjoint(text):
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in quoted)


def _json(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return shortened(str(value))
