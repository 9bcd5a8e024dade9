"""A finding of the doctor: what was checked, how it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Check(StrEnum):
    """The checks of the doctor; `ABOUT` explains each of them."""

    CONFIGURATION = "configuration"
    REACHABILITY = "reachability"
    VERSION = "version"
    CLUSTER_ID = "cluster_id"
    PERMISSION = "permission"
    TOPICS = "topics"
    REPLICATION = "replication"
    STATE = "state"
    CLOCK = "clock"
    SPACE = "space"
    JAVA = "java"
    SPARK = "spark"


ABOUT: Mapping[Check, str] = {
    Check.CONFIGURATION: "the property file can be read, and no property is unknown or not supported",
    Check.REACHABILITY: "each cluster answers, and accepts the login",
    Check.VERSION: "brokers are recent enough, and have transactions",
    Check.CLUSTER_ID: "source and target differ, no cluster has two aliases, and the flow's states are of this source",
    Check.PERMISSION: "the principals may read, write, create and commit what the flow needs",
    Check.TOPICS: "the flow has topics, and each can have its remote name",
    Check.REPLICATION: "the target has as many brokers as the replication factors ask for",
    Check.STATE: "the offset-syncs topic has the flow's own states; the flow is neither closed nor paused",
    Check.CLOCK: "no topic of the source has records from the future, by the clock of this machine",
    Check.SPACE: "the disks of the target's brokers and of this machine have room",
    Check.JAVA: "Java 17 to 23 runs on this machine",
    Check.SPARK: "Spark, Delta and their jars are installed",
}


class Level(StrEnum):
    """How a check has ended, the worst first."""

    PROBLEM = "problem"
    UNKNOWN = "unknown"
    WARNING = "warning"
    OK = "ok"


ORDER = {level: number for number, level in enumerate(Level)}


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One finding.

    Attributes:
        check: the check.
        subject: the cluster, flow or machine that was looked at.
        level: `problem` keeps the flow from working, `unknown` could not be checked.
        detail: what was found.
        remedy: what to do; empty if there is nothing to do.
    """

    check: Check
    subject: str
    level: Level
    detail: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        return {name: str(value) for name, value in asdict(self).items()}


def worst_first(findings: Iterable[DoctorFinding]) -> list[DoctorFinding]:
    """Sorts findings by level, and keeps their order within a level."""
    return sorted(findings, key=lambda finding: ORDER[finding.level])


def ok(check: Check, subject: str, detail: str) -> DoctorFinding:
    return DoctorFinding(check, subject, Level.OK, detail)


def problem(check: Check, subject: str, detail: str, remedy: str) -> DoctorFinding:
    return DoctorFinding(check, subject, Level.PROBLEM, detail, remedy)


def warning(check: Check, subject: str, detail: str, remedy: str) -> DoctorFinding:
    return DoctorFinding(check, subject, Level.WARNING, detail, remedy)


def unknown(check: Check, subject: str, detail: str, remedy: str) -> DoctorFinding:
    return DoctorFinding(check, subject, Level.UNKNOWN, detail, remedy)
