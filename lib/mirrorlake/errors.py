"""The kinds of errors. Every message names the flow, topic, partition and offsets concerned, and a remedy.

Callers decide by properties, not by names. `retriable` is true if the same step may succeed later, and a retry loses
nothing. `lone` is true if such an error is about one topic alone, so that the others go on meanwhile. `contested` is
true if a job that begins may have ended the transaction of the step. `out_of_step` is true if the configuration of a
remote topic has to follow that of the source first. The class shows who has to act: the author of the
configuration, the operator of one of the clusters, or no one.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mirrorlake.printable import printable

LONGEST_CAUSE = 500
DATA_STATES = ("22", "P0")  # classes of SQLSTATE: data exceptions, errors that a query raises
DATA_EXCEPTIONS = frozenset(("NumberFormatException", "DateTimeException", "DateTimeParseException"))  # of Java
LONGEST_MESSAGE = 10_000


class MirrorlakeError(Exception):
    """Root of every error that mirrorlake raises on purpose.

    `anomaly` holds the fields for the table anomalies that are known: kind, topic, partition, from_offset, to_offset.
    """

    retriable = False

    def __init__(
        self,
        message: str,
        *,
        retriable: bool | None = None,
        lone: bool = False,
        contested: bool = False,
        out_of_step: bool = False,
        anomaly: Mapping[str, object] | None = None,
    ) -> None:
        self.message = printable(message, LONGEST_MESSAGE, keep="\n")  # names of others may hold anything
        super().__init__(self.message)
        self.anomaly = dict(anomaly or {})
        self.lone, self.contested, self.out_of_step = lone, contested, out_of_step
        if retriable is not None:
            self.retriable = retriable


class ConfigurationError(MirrorlakeError):
    """Raised when a property, parameter or suite is missing, contradictory or malformed.

    Nothing has been created or written.
    """


class SourceError(MirrorlakeError):
    """Raised when the source cluster can't be read, or its log differs from the expected one."""


class TargetError(MirrorlakeError):
    """Raised when the target cluster can't be written, or its log differs from the expected one."""


class FencedError(TargetError):
    """Raised when a newer job has taken over the same flow; this job has stopped and left nothing open."""


class GateError(MirrorlakeError):
    """Raised when expectations failed or were not all evaluated.

    The transaction was aborted, and nothing became visible.
    """


class LedgerError(MirrorlakeError):
    """Raised when the Delta tables can't be read or written.

    Transactions that are committed on the target stay committed and correct.
    """


KINDS: dict[str, type[MirrorlakeError]] = {
    kind.__name__: kind
    for kind in (MirrorlakeError, ConfigurationError, SourceError, TargetError, FencedError, GateError, LedgerError)
}


def unexpected(what: str, error: Exception) -> MirrorlakeError:
    """Wraps a defect of this program, so that it can cross to the driver; the message has operation and line.

    It has no contents of records, which messages of errors about values may quote.
    """
    frame = traceback.extract_tb(error.__traceback__)[-1]
    kind, why = type(error).__name__, without_contents(error)
    return MirrorlakeError(
        f"{what}: unexpected {kind if why == kind else f'{kind}: {why}'} ({Path(frame.filename).name}, line "
        f"{frame.lineno})"
    )


def to_json(error: MirrorlakeError) -> dict[str, Any]:
    """Returns the error as plain values, to cross from a Spark worker to the driver; see `from_json`."""
    return {
        "kind": type(error).__name__,
        "message": error.message,
        "retriable": error.retriable,
        "contested": error.contested,
        "out_of_step": error.out_of_step,
        "anomaly": error.anomaly,
    }


def from_json(value: Mapping[str, Any]) -> MirrorlakeError:
    """Restores the error from the values that `to_json` returned."""
    return KINDS[str(value["kind"])](
        str(value["message"]),
        retriable=bool(value["retriable"]),
        contested=bool(value.get("contested")),
        out_of_step=bool(value.get("out_of_step")),
        anomaly=value["anomaly"],
    )


def root_cause(error: Any) -> str:
    """Returns the first line of the innermost cause of a Spark error."""
    text = str(error)
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        text, cause = cause.getMessage() or text, cause.getCause()
    return (text.strip().splitlines() or [type(error).__name__])[0][:LONGEST_CAUSE]


def without_contents(error: Any) -> str:
    """Returns the first line of the cause of an error; without contents of records, which it may quote.

    Of a Spark error about data, that is its condition, such as CAST_INVALID_INPUT; of a Python error about a value, its
    class.
    """
    if getattr(error, "java_exception", None) or getattr(error, "_origin", None):
        name, is_about_data = condition(error)
        return name if is_about_data else root_cause(error)
    is_about_value = isinstance(error, ValueError | LookupError)
    return type(error).__name__ if is_about_value else first_line(error)[:LONGEST_CAUSE]


def condition(error: Any) -> tuple[str, bool]:
    """Returns the condition of a Spark error, else the class of its innermost cause; and whether it is about data.

    Conditions are about data if their SQLSTATE is of the class of data exceptions, or of errors that a query raises
    itself.
    """
    name, state = "", ""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    kind = type(error).__name__
    while cause is not None:
        kind = str(cause.getClass().getSimpleName())
        with suppress(Exception):  # only Spark's own exceptions have these methods
            name, state = cause.getCondition() or name, cause.getSqlState() or state
        cause = cause.getCause()
    is_about_data = state.startswith(DATA_STATES) or kind in DATA_EXCEPTIONS
    return name or kind, is_about_data


def first_line(error: object) -> str:
    """Returns the first line of an error's message; messages of Spark have many lines."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
