"""Rows of the table anomalies, from findings and from errors that have crossed from a worker."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from mirrorlake.errors import SourceError, from_json, to_json
from mirrorlake.ledger.anomaly import Anomaly
from mirrorlake.ledger.tables import column_definitions
from mirrorlake.model.anomaly import AnomalyAction, AnomalyKind, about
from mirrorlake.model.gap import GapKind

FLOW: Any = SimpleNamespace(source="a", target="b")


def test_a_row_has_the_columns_of_the_table() -> None:
    row = Anomaly.of_flow(FLOW, AnomalyKind.HELD, AnomalyAction.OTHERS_GO_ON, "no WRITE", topic="t")
    assert asdict(row).keys() == {definition.split()[0] for definition in column_definitions("anomalies")}
    assert (row.source, row.target, row.topic, row.partition, row.records) == ("a", "b", "t", None, None)


def test_an_error_becomes_a_row_after_its_journey() -> None:
    found = about(GapKind.RETENTION, ("t", 3), 5, 9, records=4)
    error = from_json(to_json(SourceError("gone", anomaly=found)))
    row = Anomaly.of_error(FLOW, error)
    assert (row.kind, row.topic, row.partition, row.from_offset, row.to_offset, row.records) == (
        GapKind.RETENTION,
        "t",
        3,
        5,
        9,
        4,
    )
    assert (row.action, row.detail) == (AnomalyAction.STOP, "gone")


@pytest.mark.parametrize("anomaly", [{}, {"topic": "t"}, {"kind": "unheard of"}])
def test_an_error_of_no_known_kind_has_stopped_the_flow(anomaly: dict[str, object]) -> None:
    assert Anomaly.of_error(FLOW, SourceError("broken", anomaly=anomaly)).kind is AnomalyKind.STOPPED


def test_what_only_the_driver_needs_is_no_column() -> None:
    error = SourceError("not a number", anomaly=about(AnomalyKind.TRANSFORM, ("t", 0), 1, 2, reason="cast"))
    assert Anomaly.of_error(FLOW, error).kind is AnomalyKind.TRANSFORM
