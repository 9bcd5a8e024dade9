"""Mutants of what keeps names data, contents of records in their topics, and secrets where they are."""

from __future__ import annotations

from mutants.mutant import Mutant

NAMES_IN_SQL = "tests/spark/test_names_are_data.py"
LITERALS = (f"{NAMES_IN_SQL}::test_a_literal_is_the_value_and_an_identifier_the_name",)
REPORT = ("tests/unit/test_report.py::test_names_are_text_in_the_report",)
LINES = ("tests/unit/test_log.py::test_a_long_value_is_shortened_in_a_line_and_in_an_error",)

NAMES = (
    Mutant("a quote ends a literal", "ledger/sql_text.py", '"\'": "\\\\\'", ', "", LITERALS),
    Mutant("Spark fills in variables that a name refers to", "ledger/sql_text.py", '"$": "\\\\u0024", ', "", LITERALS),
    Mutant("PySpark formats braces in a name", "ledger/sql_text.py", '"{": "\\\\u007b", ', "", LITERALS),
    Mutant("a backtick ends an identifier", "ledger/sql_text.py", "part.replace('`', '``')", "part", LITERALS),
    Mutant(
        "a parameter of an audit is text of its query",
        "ledger/audit.py",
        "return literal(value) if isinstance(value, str) else str(value)",
        "return f\"'{value}'\" if isinstance(value, str) else str(value)",
        (f"{NAMES_IN_SQL}::test_a_question_about_the_newest_group_is_answered_whatever_its_name_is",),
    ),
    Mutant(
        "a name is markup in the report",
        "notebook/report_figures.py",
        "    return html.escape(printable(text))\n",
        "    return printable(text)\n",
        REPORT,
    ),
    Mutant(
        "a name is a formula in a figure",
        "notebook/figures.py",
        'LONGEST_NAME).replace("$", r"\\$")',
        "LONGEST_NAME)",
        REPORT,
    ),
    Mutant(
        "a long value fills the log", "log.py", "    text = shortened(str(value))\n", "    text = str(value)\n", LINES
    ),
    Mutant(
        "an error writes to the terminal",
        "errors.py",
        'printable(message, LONGEST_MESSAGE, keep="\\n")',
        "message",
        LINES,
    ),
)

CONTENTS = (
    Mutant(
        "the error about a record quotes it",
        "transforms/evaluate.py",
        "return said if quotes_contents else own or condition(error)[0]",
        "return said",
        ("tests/spark/test_transform.py::test_an_expression_that_raises_fails_one_record_only_and_leaves_it_as_it_is",),
    ),
    Mutant(
        "a defect is told with the value",
        "errors.py",
        "isinstance(error, ValueError | LookupError)",
        "False",
        ("tests/unit/test_errors.py::test_a_defect_that_a_value_has_brought_to_light_is_told_without_the_value",),
    ),
)

SECURITY = (*NAMES, *CONTENTS)
