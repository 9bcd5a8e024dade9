"""What can go wrong, in few kinds. Every message names the flow, topic, partition and offsets it is about, and what to
do.

Callers branch on two flags, not on names: `retriable` (the same step may succeed later, with nothing lost by trying
again) and the class itself (who has to act: the author of the configuration, the operator of one of the clusters, or
nobody).
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class MirrorlakeError(Exception):
    """Root of every error that mirrorlake raises on purpose.

    `anomaly` says what the table anomalies should keep of it, as far as that is known: kind, topic, partition,
    from_offset, to_offset.
    """

    retriable = False

    def __init__(
        self, message: str, *, retriable: bool | None = None, anomaly: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.anomaly = dict(anomaly or {})
        if retriable is not None:
            self.retriable = retriable


class ConfigurationError(MirrorlakeError):
    """Raised when a property, parameter or suite is missing, contradictory or malformed; nothing has been created or
    written."""


class SourceError(MirrorlakeError):
    """Raised when the source cluster can't be read, or its log isn't what was expected."""


class TargetError(MirrorlakeError):
    """Raised when the target cluster can't be written, or its log isn't what was expected."""


class FencedError(TargetError):
    """Raised when a newer job has taken over the same flow; this one has stopped and left nothing behind."""


class GateError(MirrorlakeError):
    """Raised when expectations failed or were not all evaluated; the transaction was aborted and nothing became
    visible."""


class LedgerError(MirrorlakeError):
    """Raised when the Delta tables can't be read or written. What is committed on the target stays committed and
    correct."""


KINDS: dict[str, type[MirrorlakeError]] = {
    kind.__name__: kind
    for kind in (MirrorlakeError, ConfigurationError, SourceError, TargetError, FencedError, GateError, LedgerError)
}


def unexpected(what: str, error: Exception) -> MirrorlakeError:
    """A defect of this program, wrapped so that it can cross to the driver: what was being done, and where the code
    was."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return MirrorlakeError(
        f"{what}: unexpected {type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"
    )


def to_json(error: MirrorlakeError) -> dict[str, Any]:
    """The error as plain values, to cross from a Spark worker to the driver. See `from_json`."""
    return {
        "kind": type(error).__name__,
        "message": error.message,
        "retriable": error.retriable,
        "anomaly": error.anomaly,
    }


def from_json(value: Mapping[str, Any]) -> MirrorlakeError:
    """The error that `to_json` was given."""
    return KINDS[str(value["kind"])](
        str(value["message"]), retriable=bool(value["retriable"]), anomaly=value["anomaly"]
    )


def first_line(error: object) -> str:
    """The first line of what an error says: Spark's go on for pages."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
