"""Errors that cross processes, without contents of records."""

from __future__ import annotations

import json

import pytest
from mirrorlake.errors import unexpected
from mirrorlake.ledger.delta.commits import is_conflict

CANARY = "4111-1111"


@pytest.mark.parametrize("fail", [int, {}.__getitem__, lambda text: f"{text}\udcff".encode(), json.loads])
def test_a_defect_that_a_value_has_brought_to_light_is_told_without_the_value(fail: object) -> None:
    with pytest.raises((ValueError, LookupError)) as caught:
        fail(CANARY)  # type: ignore[operator]
    said = str(unexpected("slot 3: copying", caught.value))
    assert said.startswith(f"slot 3: copying: unexpected {type(caught.value).__name__} (")
    assert CANARY not in said


def test_any_other_defect_is_told_with_its_message_and_place() -> None:
    try:
        raise RuntimeError("no more file handles")
    except RuntimeError as error:
        said = str(unexpected("slot 3: copying", error))
    assert said.startswith("slot 3: copying: unexpected RuntimeError: no more file handles (test_errors.py, line ")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("DELTA_CONCURRENT_APPEND.WITHOUT_HINT", True),
        ("DELTA_METADATA_CHANGED", True),
        ("DELTA_TABLE_NOT_FOUND", False),
    ],
)
def test_a_conflict_of_two_writers_is_known_by_its_condition_also_on_spark_connect(name: str, is_one: bool) -> None:
    class ConnectError(Exception):
        def getCondition(self) -> str:  # noqa: N802 (PySpark's name)
            return name

    assert is_conflict(ConnectError()) is is_one
    assert not is_conflict(ValueError("DELTA_CONCURRENT_APPEND"))
