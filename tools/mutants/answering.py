"""Mutants of what verifications, plans and names say where a cluster is not as expected."""

from __future__ import annotations

from mutants.mutant import Mutant

VERIFIED, FAILOVERS = "tests/kafka/test_verify.py", "tests/kafka/test_failover.py"
CLOSED = (f"{VERIFIED}::test_what_others_write_after_a_failover_is_not_held_against_the_flow",)
CORRUPT = (
    "tests/kafka/test_losses.py::test_logs_in_the_old_message_formats_are_mirrored_and_corrupt_entries_are_noticed",
)
REPORTED = "tests/spark/test_report.py"
STANDS = (f"{REPORTED}::test_a_verification_counts_as_failed_while_what_it_has_found_stands",)
RIGHTS = "tests/unit/test_topic_changes.py"
PASSED = (
    "tests/kafka/test_failover.py::test_a_group_whose_record_retention_has_deleted_on_the_target_continues_at_the_"
    "first_one_that_is_left"
)
EMPTIED = (
    "tests/kafka/test_failover.py::test_a_group_at_the_end_of_logs_that_retention_has_emptied_goes_on_at_the_first_"
    "offset_that_is_left"
)
ROUND = (
    "tests/unit/test_configuration.py::test_names_go_round_neither_between_two_separators_nor_where_one_flow_keeps_them",
)

FAILS_ONCE = (
    "tests/kafka/test_checkpoint.py::test_a_write_of_the_ledger_that_fails_once_ends_no_checkpoint_job_and_loses_no_outcome",
)

ANSWERING = (
    Mutant(
        "a failover looks at all groups before it moves the first",
        "jobs/failover/job.py",
        "range(0, len(names), COMMITTED_AT_ONCE)",
        "range(0, len(names), max(1, len(names)))",
        (f"{FAILOVERS}::test_a_group_that_works_and_stops_again_between_plan_and_commit_is_not_moved_by_the_old_plan",),
    ),
    Mutant(
        "a position in a topic of the flow back keeps its first offset",
        "jobs/checkpoint/cycle_rows.py",
        "PositionReason.OF_FLOW_BACK if is_back else PositionReason.NOT_OF_FLOW",
        "PositionReason.NOT_OF_FLOW",
        (f"{FAILOVERS}::test_with_the_alias_in_front_positions_go_home_by_the_map_of_either_direction",),
    ),
    Mutant(
        "a partition of a dead source that has never had a record has no place",
        "jobs/failover/snapshot.py",
        "else partitions_seen(ledger, flow)",
        "else set()",
        (f"{FAILOVERS}::test_with_source_and_ledger_lost_the_target_alone_tells_where_every_group_goes_on",),
    ),
    Mutant(
        "a position that is rebuilt where topics are merged is that of the first one",
        "jobs/checkpoint/rebuild.py",
        "position, is_merged = places[0], len(places) > 1",
        "position, is_merged = places[0], False",
        ("tests/unit/test_rebuild.py",),
    ),
    Mutant(
        "a broker that does not tell of its groups is not in the plan",
        "jobs/failover/planner.py",
        "if self._tells_all else",
        "if True else",
        (f"{FAILOVERS}::test_a_group_whose_coordinator_is_away_is_named_by_the_plan_and_not_left_behind_in_silence",),
    ),
    Mutant(
        "a corrupt batch that the flow has passed over ends each verification",
        "jobs/verification/job.py",
        "                if not broken:\n                    raise\n",
        "                raise\n",
        CORRUPT,
    ),
    Mutant(
        "a corrupt batch that the flow has passed over ends each counting",
        "jobs/verification/counting.py",
        "                if not broken:\n",
        "                if broken is not None:\n",
        CORRUPT,
    ),
    Mutant(
        "what others write after a failover counts as wrong",
        "jobs/verification/job.py",
        "if self.flow.topics_shared or logs.is_closed():",
        "if self.flow.topics_shared:",
        CLOSED,
    ),
    Mutant(
        "what others write after a failover counts as in excess",
        "jobs/verification/counting.py",
        "            if is_closed:\n",
        "            if is_closed and flow.topics_shared:\n",
        CLOSED,
    ),
    Mutant(
        "a flow of which nothing can be compared fails",
        "jobs/verification/job.py",
        "is_neutral = is_exempt(partitions) or (",
        "is_neutral = (",
        (f"{VERIFIED}::test_a_flow_of_which_nothing_can_be_compared_neither_passes_nor_fails",),
    ),
    Mutant(
        "a verification of some topics counts as one of the flow",
        "ledger/store.py",
        'F.col("mode").isin("full", "incremental") & F.col("topics").isNull()',
        'F.col("mode").isin("full", "incremental")',
        (
            "tests/spark/test_store.py::test_a_flow_counts_as_verified_by_verifications_that_have_passed_and_by_no_others",
        ),
    ),
    Mutant(
        "the report forgets a difference that stands",
        "notebook/report.py",
        "self._named(standing_differences(rows))",
        "self._named(standing_differences(rows).filter('false'))",
        STANDS,
    ),
    Mutant(
        "a flow that once had nothing to compare has failed for ever",
        "notebook/report.py",
        '(F.col("finished_at") == F.col("last"))',
        '(F.col("finished_at") <= F.col("last"))',
        STANDS,
    ),
    Mutant(
        "a topic with a transform keeps its flow unverified",
        "notebook/report.py",
        'keys, "left_anti")',
        'keys, "left")',
        (f"{REPORTED}::test_a_topic_that_can_never_be_compared_does_not_keep_its_flow_from_being_verified",),
    ),
    Mutant(
        "a place that retention has passed ends a rehearsal",
        "jobs/failover/rehearsal.py",
        "        if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:\n            raise\n",
        "        raise error\n",
        (f"{FAILOVERS}::test_every_block_is_seen_and_stops_a_run_unless_it_is_accepted",),
    ),
    Mutant(
        "a source partition without a leader ends a plan",
        "jobs/failover/snapshot.py",
        "keys = [key for key in every if key not in unread]",
        "keys = every",
        (f"{FAILOVERS}::test_a_group_whose_coordinator_is_away_is_named_by_the_plan_and_not_left_behind_in_silence",),
    ),
    Mutant(
        "a group that skips records before a late start of the flow home has no block",
        "jobs/failover/planner.py",
        'row["is_complete"], row["own_start"]))',
        'row["is_complete"], 0))',
        (
            "tests/kafka/test_failback.py::test_records_before_the_start_of_the_flow_home_are_told_though_the_flow_away_has_written_before_them",
        ),
    ),
    Mutant(
        "a start of a log that is not told now is 0",
        "translation/log_starts.py",
        "            self._asked, self.unread, self._due = set(), set(), self._clock() + LOOK_S\n",
        "            self._asked, self.unread, self._starts, self._due = set(), set(), {}, self._clock() + LOOK_S\n",
        (
            "tests/unit/test_log_starts.py::test_a_start_that_is_not_told_now_is_the_last_one_and_one_that_was_never_told_is_not_guessed",
        ),
    ),
    Mutant(
        "a group gets an offset in a merged partition for each of its topics",
        "jobs/failover/planner.py",
        "if not line.has_place or chosen[_group_place(line)] is line else",
        "if not line.has_place or chosen[_group_place(line)] else",
        (
            "tests/unit/test_failover_plan.py::test_a_group_of_several_topics_that_are_merged_gets_the_offset_that_skips_nothing",
        ),
    ),
    Mutant(
        "an ACL with a name that no topic has is kept in step",
        "protocol/acls.py",
        'yield from ((name, "LITERAL") for name in names if is_topic_name(name))',
        'yield from ((name, "LITERAL") for name in names)',
        (f"{RIGHTS}::test_an_access_right_that_covers_no_topic_stops_no_other_one",),
    ),
    Mutant(
        "an ACL of a topic that is held gives access to another one",
        "protocol/acls.py",
        "flow.policy.keeps_topics_apart or topic in topics",
        "bool(flow.policy) or topic in topics",
        (f"{RIGHTS}::test_who_may_read_a_topic_that_is_held_may_read_no_other_one_of_the_same_remote_name",),
    ),
    Mutant(
        "a new topic has none of its source's properties under intersection",
        "protocol/topic_changes.py",
        " or name in known or not known)",
        ")",
        (f"{RIGHTS}::test_a_new_topic_has_from_the_beginning_what_both_clusters_know",),
    ),
    Mutant(
        "a prefix of one cluster's topics covers those of another one",
        "protocol/acls.py",
        " and not _reaches_others(flow, remote)",
        "",
        (f"{RIGHTS}::test_a_prefix_that_also_covers_topics_of_another_cluster_becomes_rights_on_single_topics",),
    ),
    Mutant(
        "a target before Kafka 3.6 refuses each topic before it was described",
        "jobs/mirror/topics/change_maker.py",
        "if names_bounds(error)",
        "if False",
        (f"{RIGHTS}::test_a_target_before_kafka_3_6_of_which_nothing_is_known_yet_gets_topics_that_it_understands",),
    ),
    Mutant(
        "a hand-back writes to an offsets topic that no worker reads",
        "config/properties.py",
        'keys = (name, f"{self.target}.{name}", f"{self.flow}.{name}")',
        'keys = (f"{self.flow}.{name}", f"{self.target}.{name}", name)',
        ("tests/unit/test_configuration.py::test_the_offsets_topic_of_mirrormaker_2_is_the_one_that_its_workers_take",),
    ),
    Mutant(
        "slots that are throttled side by side count one after the other",
        "jobs/mirror/observation/progress_keeper.py",
        "max((report.throttled_ms.get(side, 0) for report in reports), default=0)",
        "sum(report.throttled_ms.get(side, 0) for report in reports)",
        ("tests/unit/test_progress_keeper.py::test_a_micro_batch_is_told_as_a_row_as_metrics_and_in_the_result",),
    ),
    Mutant(
        "the checkpoint job places a group before the start of a log that retention has emptied",
        "translation/log_starts.py",
        'return row | {"downstream_offset": start, "mirrored_end": start}',
        "return row",
        (EMPTIED,),
    ),
    Mutant(
        "the checkpoint job moves a group to an offset that retention on the target has passed",
        "jobs/checkpoint/target_groups.py",
        "current, offset = group.offsets.get(key), max(downstream_offset, log_start)",
        "current, offset = group.offsets.get(key), downstream_offset",
        (PASSED,),
    ),
    Mutant(
        "a failover moves a group to an offset that retention on the target has passed",
        "jobs/failover/plan.py",
        "return None if self.downstream_offset is None else max(self.downstream_offset, self.target_start)",
        "return self.downstream_offset",
        (PASSED,),
    ),
    Mutant(
        "the way back places groups by the map of a topic that is another one",
        "jobs/failover/snapshot.py",
        "    if former:\n",
        "    if not pieces:\n",
        ("tests/kafka/test_failback.py::test_a_map_of_the_way_back_whose_topic_was_created_anew_places_no_group",),
    ),
    Mutant(
        "an alias with the separator in it stops no cycle",
        "config/replication_policy.py",
        "if self.topic_source(topic) == target or self._has_whole_alias(topic, target):",
        "if self.topic_source(topic) == target:",
        (
            "tests/unit/test_name_filter_and_policy.py::test_a_topic_that_came_through_a_target_whose_alias_has_the_separator_is_a_cycle",
        ),
    ),
    Mutant(
        "names of the flow back are not looked at",
        "config/flow.py",
        "self.policy_back is None or not self.policy_back.is_cycle(topic, self.target)",
        "self.policy_back is None or not self.policy.is_cycle(topic, self.target)",
        ROUND,
    ),
    Mutant(
        "one failed write of the ledger ends a checkpoint job",
        "jobs/checkpoint/job.py",
        "raise LedgerError(error.message, retriable=True) from None",
        "raise LedgerError(error.message) from None",
        FAILS_ONCE,
    ),
    Mutant(
        "the cycle after a failed write moves no group, and says so",
        "jobs/checkpoint/job.py",
        "        prepare()\n",
        "        pass\n",
        FAILS_ONCE,
    ),
    Mutant(
        "a topic that is held is looked into in each plan",
        "jobs/mirror/planning/readiness.py",
        "return topic_id == self.topic_id and now_s < self.holds_until_s",
        "return topic_id == self.topic_id and now_s > self.holds_until_s",
        (
            "tests/unit/test_planner_work.py::test_a_topic_that_is_held_is_looked_into_from_time_to_time_and_at_once_if_it_is_another_one",
        ),
    ),
    Mutant(
        "a codec without memory makes a corrupt batch",
        "protocol/batches/codecs.py",
        "    if any(words in str(error) for words in STARVED):\n",
        "    if not any(STARVED):\n",
        ("tests/unit/test_codecs.py::test_a_codec_that_finds_no_memory_is_not_a_corrupt_batch",),
    ),
    Mutant(
        "what the flow back had written to a former topic counts as brought",
        "jobs/verification/logs.py",
        "        clipped(runs, gaps)\n",
        "        clipped(runs, gaps.limit(0))\n",
        (
            "tests/spark/test_brought.py::test_records_are_brought_as_long_as_the_topic_is_the_one_that_they_were_written_to",
        ),
    ),
    Mutant(
        "of ranges that overlap, a part is lost",
        "jobs/verification/compare.py",
        ".agg(F.max(end).alias(end)).select",
        ".agg(F.min(end).alias(end)).select",
        (
            "tests/spark/test_brought.py::test_ranges_that_overlap_or_adjoin_become_one_and_those_of_other_partitions_stay_apart",
        ),
    ),
    Mutant(
        "what had expired before anything compared it is nothing new",
        "jobs/verification/job.py",
        "return self.spark.sql(UNSEEN, found=found, earlier=self._earlier(scope)).isEmpty()",
        "return found is not None",
        (
            "tests/kafka/test_verify.py::test_records_that_had_expired_before_anything_compared_them_are_not_nothing_new",
        ),
    ),
    Mutant(
        "what reaches the source of a closed flow is late",
        "jobs/verification/logs.py",
        "        if is_closed(states.values()):\n",
        "        if not states:\n",
        ("tests/kafka/test_verify.py::test_what_others_write_after_a_failover_is_not_held_against_the_flow",),
    ),
    Mutant(
        "a verification that could not look at a partition is one of the whole flow",
        "ledger/store.py",
        'F.coalesce(F.col("detail").startswith(NOT_LOOKED_AT), F.lit(False))',
        "F.lit(False)",
        (
            "tests/spark/test_store.py::test_a_flow_counts_as_verified_by_verifications_that_have_passed_and_by_no_others",
        ),
    ),
    Mutant(
        "a partition without a leader ends each verification",
        "jobs/verification/logs.py",
        "        unread = self._unread(everything)\n",
        "        unread: dict[PartitionKey, str] = {}\n",
        (
            "tests/kafka/test_verify.py::test_a_partition_without_a_leader_is_not_covered_and_the_others_are_verified_counted_and_maintained",
        ),
    ),
    Mutant(
        "a topic with a partition without a leader counts as deleted",
        "jobs/verification/counting.py",
        "            if topic in silent_here or target_topic in silent_there:\n",
        "            if False:\n",
        (
            "tests/kafka/test_verify.py::test_a_partition_without_a_leader_is_not_covered_and_the_others_are_verified_counted_and_maintained",
        ),
    ),
    Mutant(
        "any number of records may have expired while they were compared",
        "jobs/verification/summarize.py",
        "explained = vanished if is_compacted else min(vanished, gone)",
        "explained = vanished if is_compacted or gone else 0",
        ("tests/unit/test_vanished.py::test_no_more_records_have_expired_meanwhile_than_a_log_has_lost_offsets",),
    ),
    Mutant(
        "a sample of a log that has lost its end waits for the leader",
        "jobs/verification/run_digests.py",
        "if found.last_stable_offset > at and not",
        "if not",
        (
            "tests/unit/test_run_digests.py::test_a_log_that_ends_at_or_in_a_run_has_not_its_digest_and_is_compared_by_its_records",
        ),
    ),
    Mutant(
        "a difference of which nothing is left stands for ever",
        "ledger/store.py",
        "p.passed OR p.status = 'not_comparable'",
        "p.passed",
        (
            "tests/spark/test_standing_differences.py::test_a_difference_stands_until_a_later_verification_has_passed_over_it",
        ),
    ),
    Mutant(
        "a time is that of the first run that is kept",
        "ledger/sql/translate_time.sql",
        "coalesce(max(e.to_offset) <= min(r.upstream_start), false) AS is_expired",
        "false AS is_expired",
        (
            "tests/spark/test_views.py::test_a_time_at_or_before_the_first_run_has_no_offset_once_the_map_before_it_has_expired",
        ),
    ),
    Mutant(
        "a time without the source is at the first run that is kept",
        "translation/translator.py",
        "start - 1 if is_before else start",
        "start",
        (
            "tests/spark/test_translator.py::test_a_time_is_before_the_mirror_if_the_map_before_the_first_run_that_holds_it_has_expired",
        ),
    ),
)
