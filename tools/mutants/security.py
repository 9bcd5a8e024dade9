"""Mutants of what keeps names data, contents of records in their topics, and secrets where they are."""

from __future__ import annotations

from mutants.mutant import Mutant

NAMES_IN_SQL = "tests/spark/test_names_are_data.py"
LITERALS = (f"{NAMES_IN_SQL}::test_a_literal_is_the_value_and_an_identifier_the_name",)
REPORT = ("tests/unit/test_report.py::test_names_are_text_in_the_report",)
MISSING_RIGHTS = (
    "tests/kafka/test_refusals.py::test_missing_permissions_are_named_one_after_the_other_and_with_all_of_them_it_works",
)
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

SECRETS = (
    Mutant(
        "secrets are values in the options of Spark's Kafka source",
        "config/connection.py",
        "secret_reference.left_to_kafka(self._java_with_references(), values)",
        "values",
        ("tests/unit/test_secrets.py::test_options_of_spark_have_references_that_kafka_resolves",),
    ),
    Mutant(
        "Kafka's client may read any file",
        "config/secret_reference.py",
        '"allowed.paths"),',
        '"other.paths"),',
        ("tests/unit/test_secrets.py::test_options_of_spark_have_references_that_kafka_resolves",),
    ),
    Mutant(
        "a password with a quote is left to Kafka, which cuts it",
        "config/secret_reference.py",
        "and not _ends_text(name, value, references)",
        "",
        ("tests/unit/test_secrets.py::test_a_value_that_kafka_would_read_differently_is_resolved_here",),
    ),
    Mutant(
        "the address of a registry shows its user",
        "config/registry.py",
        '(f"{scheme}{divider}{host}{slash}{path}", unquote(user_info)) if at else (url, "")',
        "(url, unquote(user_info))",
        ("tests/unit/test_secrets.py::test_the_user_in_the_address_of_a_registry_is_taken_out",),
    ),
    Mutant(
        "others may read a new log",
        "log.py",
        "flags, 0o600)",
        "flags, 0o644)",
        ("tests/unit/test_log.py::test_a_file_gets_every_line_in_the_chosen_format_and_again_after_it_was_moved",),
    ),
    Mutant(
        "nobody is told that others may read a key store",
        "config/secret_reference.py",
        "mode & 0o066 else 0",
        "mode & 0o022 else 0",
        ("tests/unit/test_secrets.py::test_files_with_secrets_that_others_may_read_are_named",),
    ),
    Mutant(
        "a secret of a scope is asked of the environment only",
        "config/secret_reference.py",
        "    PROVIDERS[name] = found\n",
        "    PROVIDERS[name] = built_in\n",
        ("tests/unit/test_secrets.py::test_on_databricks_a_secret_comes_from_its_scope_then_from_the_environment",),
    ),
    Mutant(
        "a transform calls methods of the JVM",
        "transforms/validate.py",
        "            if name in REACHING_OUT:\n",
        '            if name == "read_files":\n',
        ("tests/spark/test_transform.py::test_an_expression_that_can_not_be_used_is_refused_with_its_property",),
    ),
    Mutant(
        "a transform reads files",
        "transforms/validate.py",
        '!= ["delta"]',
        '== ["nothing"]',
        ("tests/spark/test_transform.py::test_an_expression_that_can_not_be_used_is_refused_with_its_property",),
    ),
    Mutant(
        "a transform reads variables of Spark",
        "config/transform.py",
        '    if "${" in text:\n',
        '    if "${env:" in text:\n',
        ("tests/unit/test_transform.py",),
    ),
)

PERMISSIONS = (
    Mutant(
        "nobody is told that configurations may not be read",
        "jobs/mirror/topic_sync.py",
        "        if new := {topic for topic in denied if (cluster, topic) not in self._undescribed}:\n",
        "        if new := set[str]():\n",
        MISSING_RIGHTS,
    ),
    Mutant(
        "a heartbeat that is refused names no permission",
        "protocol/mm2_topics.py",
        '        return "not authorised: the principal needs WRITE on this TOPIC"\n',
        "        pass\n",
        MISSING_RIGHTS,
    ),
)

SECURITY = (*NAMES, *CONTENTS, *SECRETS, *PERMISSIONS)
