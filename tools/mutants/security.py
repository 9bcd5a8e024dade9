"""Mutants of what keeps names data, contents of records in their topics, and secrets where they are."""

from __future__ import annotations

from mutants.mutant import Mutant

NAMES_IN_SQL = "tests/spark/test_names_are_data.py"
LITERALS = (f"{NAMES_IN_SQL}::test_a_literal_is_the_value_and_an_identifier_the_name",)
REPORT = ("tests/unit/test_report.py::test_names_are_text_in_the_report",)
MISSING_RIGHTS = (
    "tests/kafka/test_permissions.py::test_missing_permissions_are_named_one_after_the_other_and_with_all_of_them_it_works",
)
SECRET_TESTS, CONNECTION = "tests/unit/test_secrets.py", "tests/unit/test_connection.py"
LINES = ("tests/unit/test_log.py::test_a_long_value_is_shortened_in_a_line_and_in_an_error",)

NAMES = (
    Mutant("a quote ends a literal", "ledger/sql_text.py", '"\'": "\\\\\'", ', "", LITERALS),
    Mutant(
        "Spark fills in variables, and PySpark frames, that a name refers to",
        "ledger/sql_text.py",
        '"{": "\\\\u007b", ',
        "",
        LITERALS,
    ),
    Mutant("a backtick ends an identifier", "ledger/sql_text.py", "part.replace('`', '``')", "part", LITERALS),
    Mutant(
        "a parameter of an audit is text of its query",
        "notebook/audit.py",
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
        "config/security/config_provider.py",
        'FileConfigProvider", "allowed.paths"),',
        'FileConfigProvider", "other.paths"),',
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
        "nobody is told of a registry's password in a file that others may read",
        "config/properties.py",
        " or plain in (REGISTRY_USER, OTLP_HEADERS)",
        "",
        ("tests/unit/test_secrets.py::test_files_with_secrets_that_others_may_read_are_named",),
    ),
    Mutant(
        "a secret of a scope is asked of the environment only",
        "config/security/config_provider.py",
        "    PROVIDERS[name] = found\n",
        "    PROVIDERS[name] = built_in\n",
        ("tests/unit/test_secrets.py::test_on_databricks_a_secret_comes_from_its_scope_then_from_the_environment",),
    ),
    Mutant(
        "what looks like a reference in a value is resolved by Kafka",
        "config/secret_reference.py",
        "        return dict(resolved)\n    if read:",
        "        pass\n    if read:",
        (f"{SECRET_TESTS}::test_a_value_that_looks_like_a_reference_is_not_resolved_by_kafka",),
    ),
    Mutant(
        "a reference reads files outside of its directory",
        "config/security/config_provider.py",
        'None if "/" in key else ',
        "",
        (f"{SECRET_TESTS}::test_a_directory_gives_its_own_files_only",),
    ),
    Mutant(
        "the own name of a provider is not known",
        "config/properties.py",
        "secret_reference.by_built_in_names(javaproperties.loads(text))",
        "dict(javaproperties.loads(text))",
        (f"{SECRET_TESTS}::test_providers_may_have_names_of_their_own_as_in_mirrormaker_2",),
    ),
    Mutant(
        "a malformed file of a reference is shown",
        "config/secret_reference.py",
        "        except ValueError:  # its",
        "        except ZeroDivisionError:  # its",
        (f"{SECRET_TESTS}::test_files_of_secrets_are_utf_8_and_what_is_not_is_not_shown",),
    ),
    Mutant(
        "a password in the address of a registry that is not encoded is shown",
        "config/registry.py",
        "if MAY_BE_SECRET.search(url)",
        "if False",
        (f"{SECRET_TESTS}::test_the_user_in_the_address_of_a_registry_is_taken_out",),
    ),
    Mutant(
        "a client secret reaches a proxy unencrypted",
        "protocol/clients/oauth_tokens.py",
        'not login.token_url.startswith("http://")',
        "True",
        (f"{CONNECTION}::test_a_client_secret_does_not_reach_a_proxy_unencrypted",),
    ),
    Mutant(
        "nobody is told of a password that crosses the network unencrypted",
        "config/flow.py",
        "*(one.warning for one in registries or () if one.warning),",
        "",
        (f"{SECRET_TESTS}::test_a_password_that_crosses_the_network_unencrypted_to_a_registry_is_told",),
    ),
    Mutant(
        "a client key is in a file as it is",
        "protocol/clients/settings.py",
        "pem.encrypted(alias, tls.key, password)",
        "tls.key",
        (f"{CONNECTION}::test_a_key_is_never_in_a_file_as_it_is",),
    ),
    Mutant(
        "an alias of a key store is an option of the JVM",
        "config/security/key_store.py",
        '    if aliases[0].startswith("-"):',
        "    if False:",
        (f"{CONNECTION}::test_a_key_store_says_nothing_to_the_jvm_that_reads_it",),
    ),
    Mutant(
        "a path of a key store is an option of the JVM",
        "config/security/key_store.py",
        "return str(Path(store.path).absolute())",
        "return store.path",
        (f"{CONNECTION}::test_a_path_of_a_key_store_is_no_option_of_the_jvm",),
    ),
    Mutant(
        "the property file makes a module run",
        "config/replication_policy.py",
        "    if is_allowed:\n        try:",
        "    if True:\n        try:",
        (
            "tests/unit/test_name_filter_and_policy.py::"
            "test_an_own_policy_is_a_python_class_that_the_environment_allows",
        ),
    ),
    Mutant(
        "a transform calls methods of the JVM",
        "transforms/validate.py",
        "            if name in REACHING_OUT or name.startswith(AI):\n",
        '            if name == "read_files":\n',
        ("tests/spark/test_transform.py::test_an_expression_that_can_not_be_used_is_refused_with_its_property",),
    ),
    Mutant(
        "a transform reads files that a subquery hides",
        "transforms/validate.py",
        'kind.getSimpleName() != "PlanExpression"',
        'kind.getSimpleName() not in ("ScalarSubquery", "ListQuery", "Exists")',
        ("tests/spark/test_transform.py::test_an_expression_that_can_not_be_used_is_refused_with_its_property",),
    ),
    Mutant(
        "a transform reads files",
        "transforms/validate.py",
        "if len(names) != 2 or",
        "if True or",
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
        "a transaction that hangs is told without the right that its name needs",
        "jobs/mirror/planning/uncommitted.py",
        '        else:\n            who += " (its transactional.id',
        '        elif not who:\n            who += " (its transactional.id',
        MISSING_RIGHTS,
    ),
    Mutant(
        "dead letters that may not be written stop a task",
        "jobs/mirror/topics/own_topics.py",
        "if found is not None and not found.allows(WRITE):",
        "if False:",
        MISSING_RIGHTS,
    ),
    Mutant(
        "a right that is revoked on the source is a defect",
        "protocol/cluster.py",
        "        except (ResponseError, WireError) as error:  # none that may pass",
        "        except ZeroDivisionError as error:  # none that may pass",
        (
            "tests/unit/test_cluster.py::"
            "test_offsets_that_this_principal_may_not_see_any_more_are_an_error_of_their_cluster",
        ),
    ),
    Mutant(
        "quotas of a source without ACLs are nobody's",
        "jobs/failover/access.py",
        "principals_of(flow, bindings, topics) if bindings else None",
        "principals_of(flow, bindings, topics) if bindings is not None else None",
        (
            "tests/kafka/test_permissions.py::"
            "test_access_that_a_failover_can_not_read_or_give_is_said_and_the_rest_goes_on",
        ),
    ),
    Mutant(
        "a failover that leaves topics read-only ends well",
        "jobs/failover/job.py",
        "        if left:\n            raise TargetError(\n",
        "        if False:\n            raise TargetError(\n",
        (
            "tests/kafka/test_topic_sync.py::test_remote_topics_are_read_only_for_others_until_they_are_promoted_and_"
            "a_promotion_says_which_it_cannot_open",
        ),
    ),
    Mutant(
        "nobody is told beforehand that a failover will leave topics read-only",
        "protocol/admin.py",
        "            return AclOperation.ALTER in self._operations()\n",
        "            return True\n",
        (
            "tests/kafka/test_permissions.py::"
            "test_access_that_a_failover_can_not_read_or_give_is_said_and_the_rest_goes_on",
        ),
    ),
    Mutant(
        "SCRAM users that are not listed count as none",
        "protocol/users.py",
        '        check(response.error_code, response.error_message or "")\n        return response\n\n'
        '    found = cluster.call("listing',
        '        pass\n        return response\n\n    found = cluster.call("listing',
        (
            "tests/kafka/test_permissions.py::"
            "test_access_that_a_failover_can_not_read_or_give_is_said_and_the_rest_goes_on",
        ),
    ),
    Mutant(
        "nobody is told that configurations may not be read",
        "jobs/mirror/topics/topology.py",
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

# Found by reading: what belongs to others, and what a peer says or does not.
FOREIGN = (
    Mutant(
        "a topic that holds records of others is configured",
        "jobs/mirror/planning/readiness.py",
        "        return frozenset(self._foreign)\n",
        "        return frozenset()\n",
        ("tests/kafka/test_policies.py::test_records_of_others_in_a_remote_topic_are_not_taken_for_mirrored_ones",),
    ),
    Mutant(
        "a topic that holds records of others waits for partitions",
        "jobs/mirror/planning/readiness.py",
        "min(topics[topic].partitions, remote.partitions), remote.name",
        "0 if remote.partitions < topics[topic].partitions else remote.partitions, remote.name",
        (
            "tests/unit/test_planner_work.py::test_a_remote_topic_with_too_few_partitions_and_records_of_others_"
            "is_not_said_to_wait_for_partitions[True]",
        ),
    ),
    Mutant(
        "a log of the target that can't be read ends the planning of all topics",
        "jobs/mirror/planning/readiness.py",
        "                if error.retriable:\n                    unread",
        "                if error.retriable:\n                    raise\n                    unread",
        ("tests/unit/test_planner_work.py::test_a_log_on_the_target_that_can_not_be_read_holds_up_its_own_topic",),
    ),
    Mutant(
        "a right that the flow back gave is passed on",
        "jobs/mirror/topics/topology.py",
        "[acl for acl in source if acl not in theirs]",
        "source",
        (
            "tests/kafka/test_topic_sync.py::"
            "test_a_right_that_is_revoked_is_not_given_again_by_the_flow_back_under_the_same_names",
        ),
    ),
    Mutant(
        "a reader is placed at the start of what the flow begins later",
        "translation/translator.py",
        "        positions = {key: one for key, one in merge_positions(states.values()).items() if key in logs}\n",
        "        positions = {}\n",
        (
            "tests/kafka/test_spark_checkpoint.py::"
            "test_a_reader_is_not_placed_where_the_flow_has_begun_nothing_or_only_later_records",
        ),
    ),
    Mutant(
        "a reader is placed by a position whose records the ledger lacks",
        "translation/translator.py",
        "        return PositionReason.LEDGER_BEHIND if is_before and",
        "        return PositionReason.LEDGER_BEHIND if not is_before and",
        (
            "tests/kafka/test_spark_checkpoint.py::"
            "test_a_reader_is_not_placed_where_the_flow_has_begun_nothing_or_only_later_records",
        ),
    ),
    Mutant(
        "each of two flows revokes what both have given",
        "jobs/mirror/topics/topology.py",
        "            given=given - theirs,",
        "            given=given,",
        ("tests/unit/test_topology.py::test_a_right_that_both_flows_have_given_stays_and_is_said",),
    ),
    Mutant(
        "a topic of others keeps the readers that it got before",
        "jobs/mirror/topics/topology.py",
        "if one.kind is ChangeKind.DELETE_ACL or one.target_topic not in foreign]",
        "if one.target_topic not in foreign]",
        ("tests/unit/test_topology.py::test_a_topic_of_others_gets_no_reader_and_loses_those_that_it_got_before",),
    ),
    Mutant(
        "each log of a leader that fails to read one is looked at",
        "jobs/mirror/planning/readiness.py",
        "            if leader in failing:",
        "            if False:",
        ("tests/unit/test_planner_work.py::test_a_log_on_the_target_that_can_not_be_read_holds_up_its_own_topic",),
    ),
    Mutant(
        "a topic without enough partitions is looked into by each plan",
        "jobs/mirror/planning/readiness.py",
        "topic.name in self.waiting and remote.partitions >= topic.partitions",
        "topic.name in self.waiting",
        (
            "tests/unit/test_planner_work.py::test_a_remote_topic_with_too_few_partitions_and_records_of_others_"
            "is_not_said_to_wait_for_partitions[False]",
        ),
    ),
    Mutant(
        "a repetition that a comma has cut in two is text",
        "config/name_filter.py",
        "if any(map(_has_unfinished_repetition, patterns)):",
        "if False:",
        ("tests/unit/test_name_filter_and_policy.py::test_a_comma_always_separates",),
    ),
    Mutant(
        "the question for a group that is not used ends a take-over",
        "protocol/connect_offsets.py",
        "error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:",
        "error.code() == KafkaError._ALL_BROKERS_DOWN:",
        (
            "tests/kafka/test_permissions.py::"
            "test_offsets_of_mirrormaker_are_read_with_the_right_to_read_their_topic_and_none_on_groups",
        ),
    ),
    Mutant(
        "a name with a comma can't log in with SCRAM",
        "protocol/clients/settings.py",
        '.replace(",", "=2C")',
        "",
        (
            "tests/kafka/test_logins.py::"
            "test_secrets_behind_references_reach_all_three_clients_and_are_not_in_the_options_of_spark[SCRAM]",
        ),
    ),
    Mutant(
        "bootstrap servers are drawn at random",
        "protocol/network/frames.py",
        "strict=True) if count == min(failures)]",
        "strict=True)]",
        ("tests/unit/test_frames.py::test_a_bootstrap_server_that_failed_is_not_asked_again_before_all_the_others",),
    ),
)

SECURITY = (*NAMES, *CONTENTS, *SECRETS, *PERMISSIONS, *FOREIGN)
