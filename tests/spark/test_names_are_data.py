"""Names and texts made to hurt, in SQL: they stay what they are."""

from __future__ import annotations

from typing import Any

import pytest
from mirrorlake.errors import ConfigurationError
from mirrorlake.ledger.sql_text import identifier, literal
from mirrorlake.ledger.store import Ledger
from mirrorlake.notebook.audit import Question

from tests.example_ledger import checkpoint, run
from tests.nasty_names import EVERYTHING, NASTY


def test_a_literal_is_the_value_and_an_identifier_the_name(spark: Any) -> None:
    frame, values = spark.range(1), ", ".join(map(literal, NASTY.values()))
    for (row,) in (
        spark.sql(f"SELECT {values}").collect(),
        spark.sql(f"SELECT {values} FROM {{t}}", t=frame).collect(),
    ):
        assert dict(zip(NASTY, row, strict=True)) == NASTY
    names = ["a-b", "it`s", "x`; DROP TABLE y; `"]
    assert spark.sql(f"SELECT {', '.join(f'1 AS {identifier(name)}' for name in names)}").columns == names
    assert Ledger(spark, "my-catalog", "it`s").table("t") == "`my-catalog`.`it``s`.`t`"


@pytest.mark.parametrize("name", ["a.b", "a/b", "a b", "", "a\nb", "..", "x" * 256])
def test_a_schema_that_no_catalog_can_have_is_refused(spark: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a name"):
        Ledger(spark, "main", name)


def test_a_question_about_the_newest_group_is_answered_whatever_its_name_is(example: Ledger, spark: Any) -> None:
    flow = {"source": "nasty", "target": "east"}
    spark.sql(f"USE {example.full_schema}")
    given = {**flow, "metadata": EVERYTHING, "reason": EVERYTHING}
    example.append("checkpoints", [{**checkpoint(EVERYTHING, EVERYTHING, 0, (5, 5), "00:00:01"), **given}])
    example.append("offset_syncs", [{**run(1, EVERYTHING, 0, (0, 100), 0, "00:00:00"), **flow}])
    question = Question.resolve(example, "nasty->east", {"upstream_offset": "42"})
    assert (question.group_id, question.topic) == (EVERYTHING, EVERYTHING)
    (row,) = question.ask(
        example,
        "SELECT h.group_id, h.topic, h.reason, {group_id}, t.downstream_offset FROM group_history h, "
        "LATERAL translate({source}, {target}, {topic}, {partition}, {upstream_offset}) t "
        "WHERE h.source = {source} AND h.group_id = {group_id} AND h.valid_from <= TIMESTAMP {at}",
    ).collect()
    assert tuple(row) == (*[EVERYTHING] * 4, 42)
    with pytest.raises(ConfigurationError, match=r"names \{nonsense\}"):
        question.ask(example, "SELECT {nonsense}")
