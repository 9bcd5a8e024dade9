"""The exit codes of all commands: who has to act."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from mirrorlake.errors import (
    ConfigurationError,
    FencedError,
    GateError,
    LedgerError,
    SourceError,
    TargetError,
)


class ExitCode(IntEnum):
    """The exit codes; `MEANINGS` explains each of them."""

    OK = 0
    DEFECT = 1
    CONFIGURATION = 2
    SOURCE = 3
    TARGET = 4
    FENCED = 5
    GATE = 6
    LEDGER = 7
    FINDINGS = 8
    PAUSED = 9
    INTERRUPTED = 130
    CUT_OFF = 141
    TERMINATED = 143


MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.OK: "done; a long job was stopped by a signal between two micro-batches, or its time was up",
    ExitCode.DEFECT: "unexpected error: a defect, or an error of no other kind; repeat with --debug and report it",
    ExitCode.CONFIGURATION: "wrong option, parameter or property; nothing was created or written",
    ExitCode.SOURCE: "the source can't be read, or its log is not the expected one",
    ExitCode.TARGET: "the target can't be written, or its log is not the expected one",
    ExitCode.FENCED: "a newer job of the same flow has taken over; this one has stopped",
    ExitCode.GATE: "expectations failed, records differ, or a failover is a no-go; what was refused is not visible, "
    "and no group was moved",
    ExitCode.LEDGER: "the Delta tables can't be read or written, or a disk is full",
    ExitCode.FINDINGS: "the command has worked and found a problem (doctor, assess, status, lag, plan, failback, demo)",
    ExitCode.PAUSED: "the flow is paused: a run with availableNow has not copied what there was, or has moved no group",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C before the end; nothing is on standard output",
    ExitCode.CUT_OFF: "the reader of standard output has gone, such as head",
    ExitCode.TERMINATED: "ended by SIGTERM before the end; nothing is on standard output",
}

KINDS: tuple[tuple[type[Exception], ExitCode], ...] = (  # subclasses first
    (FencedError, ExitCode.FENCED),
    (ConfigurationError, ExitCode.CONFIGURATION),
    (SourceError, ExitCode.SOURCE),
    (TargetError, ExitCode.TARGET),
    (GateError, ExitCode.GATE),
    (LedgerError, ExitCode.LEDGER),
)


def of(error: Exception) -> ExitCode:
    """Returns the exit code for an error."""
    return next((code for kind, code in KINDS if isinstance(error, kind)), ExitCode.DEFECT)
