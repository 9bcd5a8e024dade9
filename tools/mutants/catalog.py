"""The mutants: which promise each breaks, where, and which tests are to notice.

A promise that is kept at two places (SQL and memory, plan and task) has a mutant for each. Where it is possible, a
change is made so that the gate does not notice it: then only a comparison of both sides can.
"""

from __future__ import annotations

from mutants.answering import ANSWERING
from mutants.commands import COMMANDS
from mutants.databricks import DATABRICKS
from mutants.holding import HOLDING
from mutants.monitoring import MONITORING
from mutants.mutant import Mutant
from mutants.security import SECURITY

COPY, MIRROR, FAILOVER = "jobs/mirror/copy", "jobs/mirror", "jobs/failover"
EXACTLY_ONCE, MIRRORING, LOSSES = (f"tests/kafka/test_{name}.py" for name in ("exactly_once", "mirror", "losses"))
CHECKPOINTS, TAKEOVERS, POLICIES = (f"tests/kafka/test_{name}.py" for name in ("checkpoint", "takeover", "policies"))
RECENT, PLANS, BATCHES = (f"tests/unit/test_{name}.py" for name in ("recent_runs", "copy_plan", "record_batch"))
TRANSLATION, LEDGER = (f"tests/spark/test_{name}.py" for name in ("sql_join", "store"))
FOLDED = f"{LEDGER}::test_what_a_state_has_of_a_partition_is_one_row_and_unfolds_to_a_row_for_each_run_and_gap"

CHANGES_READ = (
    "tests/unit/test_cluster.py::test_changes_are_read_once_and_again_from_their_snapshot_on_after_an_election"
)
CHANGES_WHOLE = "tests/unit/test_changes.py"
TOPIC_LOSES = (
    "tests/unit/test_topic_changes.py::test_states_are_not_written_as_changes_to_a_topic_that_loses_their_snapshots"
)
NO_CONTROLLER = (
    "tests/kafka/test_proxy_requests.py::test_topics_are_mirrored_while_no_other_can_be_created_as_the_controller_is_"
    "away_also_by_a_job_that_starts"
)
ONLY_TOPIC = (
    "tests/kafka/test_held_partitions.py::test_a_job_whose_only_topic_has_a_remote_partition_without_a_leader_tries_"
    "again_until_it_has_one"
)
CONTROLLER_BACK = (
    "tests/kafka/test_proxy_requests.py::test_a_controller_that_loses_requests_costs_one_time_out_and_a_topic_is_made_"
    "soon_after_it_answers_again"
)
MERGED = "tests/unit/test_merging.py::test_merged_batches_are_what_opening_and_packing_them_one_by_one_makes"
SMALL = "tests/unit/test_small_batches.py"
ANY_LOG = f"{SMALL}::test_any_log_is_read_as_it_is_batch_by_batch"

EVERY_BLOCK = ("tests/kafka/test_failover.py::test_every_block_is_seen_and_stops_a_run_unless_it_is_accepted",)
PLAN_SAYS = (
    "tests/kafka/test_failover.py::test_a_plan_says_exactly_what_would_be_read_again_skipped_and_lost_and_changes_nothing",
)
FAR_WRITES = (
    "tests/unit/test_target_writer.py::test_over_a_long_line_bytes_bound_what_is_in_flight_and_a_partition_stays_on_its_"
    "connection"
)
TWO_RUNS = (f"{MIRRORING}::test_a_second_run_copies_only_what_is_new",)
TRANSACTIONS = (f"{EXACTLY_ONCE}::test_partitions_that_change_slots_keep_their_positions",)
LATE_PLAN = (f"{EXACTLY_ONCE}::test_a_task_whose_plan_is_late_finds_its_work_done",)
OTHER_STATE = (
    f"{EXACTLY_ONCE}::test_a_task_copies_nothing_for_an_older_job_or_where_the_state_of_its_slot_is_behind_its_plan",
)
COMPILED_SUITE = ("tests/unit/test_gate.py::test_a_compiled_suite_finds_what_great_expectations_own_run_finds",)
VIOLATED_GATE = (
    f"{EXACTLY_ONCE}::test_a_violated_gate_aborts_everything_and_the_job_carries_on_once_the_cause_is_gone",
)
TIMED_OUT = (f"{EXACTLY_ONCE}::test_a_transaction_that_timed_out_before_the_commit_is_copied_again",)

PROMOTION = "tests/kafka/test_promotion.py::test_a_topic_is_promoted_by_itself_and_the_rest_of_the_flow_goes_on"
ACCESS = (
    "tests/kafka/test_topic_sync.py::test_access_that_principals_have_on_the_source_only_is_listed_with_its_command_and_"
    "given_at_a_failover"
)
COUNTS = "tests/kafka/test_counts.py::test_each_record_is_counted_once_and_is_missed_when_it_is_due"
NEW_TOPIC = f"{LOSSES}::test_a_topic_created_anew_is_mirrored_from_its_first_record_where_the_flow_says_so"

REQUESTS = "tests/kafka/test_proxy_requests.py"
DAMAGED = (f"{REQUESTS}::test_records_that_a_line_has_damaged_are_fetched_again_and_are_no_loss",)

CONTACTS = (f"{REQUESTS}::test_a_first_contact_repeats_requests_that_get_no_answer",)
STARTS = (f"{REQUESTS}::test_a_job_that_starts_repeats_what_fails_and_may_pass",)
RETRIES = (
    "tests/unit/test_retries.py::test_a_final_error_and_a_job_that_is_being_stopped_end_a_step_at_once",
    "tests/unit/test_retries.py::test_a_step_that_goes_on_failing_ends_with_its_error_when_its_time_is_up",
)

EXPIRY = (
    "tests/kafka/test_maintenance.py::test_what_no_group_wants_and_the_source_no_longer_has_expires_does_not_come_back_"
    "and_is_called_expired"
)

TARGET_ENDS = (
    "tests/kafka/test_target_ends.py::test_a_target_that_has_lost_mirrored_records_is_refused_before_and_after_others_"
    "fill_their_offsets",
)
SHARED_ENDS = (
    "tests/kafka/test_target_writer.py::test_on_shared_topics_open_transactions_of_others_hold_back_no_job_and_a_marker_"
    "may_stand_at_the_position",
)
WRONG_BIT = (f"{SMALL}::test_a_first_offset_with_a_wrong_bit_is_no_hole_and_the_batch_is_fetched_again",)
EACH_LEADER = ("tests/unit/test_log_reader.py::test_all_leaders_are_asked_at_once_for_a_bounded_number_of_partitions",)
BROUGHT = (
    "tests/kafka/test_lost_ends.py::test_what_the_flow_back_had_brought_and_is_lost_as_well_comes_home_again_once_the_"
    "loss_is_accepted",
)
OPEN_BEFORE = (
    "tests/kafka/test_target_writer.py::test_an_open_transaction_of_an_earlier_attempt_is_waited_for_and_one_of_others_"
    "is_not",
)

COPYING = (
    Mutant(
        "nobody looks whether the target has lost mirrored records",
        f"{COPY}/slot_copy.py",
        "        require_ends(self.flow, self.target, stretches, self.generation)\n",
        "",
        TARGET_ENDS,
    ),
    Mutant(
        "an aborted record counts as the last mirrored one",
        f"{COPY}/target_ends.py",
        "return first.batch.base_offset > offset or not first.is_aborted",
        "return True",
        TARGET_ENDS,
    ),
    Mutant(
        "a marker at the position counts as a loss on the target",
        f"{COPY}/target_ends.py",
        "or not first.is_aborted",
        "or not (first.is_aborted or first.batch.is_control)",
        SHARED_ENDS,
    ),
    Mutant(
        "others' open transactions on a shared topic hold back a job that starts",
        f"{COPY}/target_ends.py",
        "    if flow.topics_shared:\n        return\n",
        "",
        SHARED_ENDS,
    ),
    Mutant(
        "a batch behind the last stable offset is believed",
        "protocol/batches/record_batch.py",
        "        if 0 <= self.stable_end < end:\n            return False\n",
        "",
        WRONG_BIT,
    ),
    Mutant(
        "a batch of an epoch behind that of the leader is believed",
        "protocol/batches/record_batch.py",
        "        return 0 <= self.leader_epoch < batch.leader_epoch\n",
        "        return False\n",
        (f"{SMALL}::test_a_batch_with_an_epoch_behind_that_of_the_leader_is_fetched_again",),
    ),
    Mutant(
        "what is behind the end of a plan is passed where it is damaged",
        f"{COPY}/source_reader.py",
        "if self._is_full(stretch):  # what follows",
        "if not log:  # what follows",
        (f"{SMALL}::test_nothing_behind_the_end_of_a_plan_is_taken_passed_or_lost_whatever_it_looks_like",),
    ),
    Mutant(
        "a batch that reaches into the next one is believed",
        "protocol/batches/record_batch.py",
        "        return not offset <= following.base_offset < end\n",
        "        return True\n",
        WRONG_BIT,
    ),
    Mutant(
        "a batch that seems to be before the position is left out",
        "protocol/batches/record_batch.py",
        "            return following.magic < 2 or following.base_offset <= offset\n",
        "            return True\n",
        WRONG_BIT,
    ),
    Mutant(
        "a hole in front of the last batch of a response is believed",
        "protocol/batches/damage.py",
        '    return "it is behind a hole, and nothing is behind it" if is_last else ""\n',
        '    return ""\n',
        WRONG_BIT,
    ),
    Mutant(
        "a batch that begins before the position is believed at once",
        "protocol/batches/damage.py",
        '        return "it begins before the position"\n',
        '        return ""\n',
        WRONG_BIT,
    ),
    Mutant(
        "the ends of remote partitions are read leader by leader",
        "protocol/log_reader.py",
        "            for node, keys in by_leader.items()\n",
        "            for node, keys in list(by_leader.items())[:1]\n",
        EACH_LEADER,
    ),
    Mutant(
        "the flow back goes on behind what it had brought and the source has lost",
        f"{FAILOVER}/failback.py",
        "            self._set_back(lost, action, here, there)\n",
        "            pass\n",
        BROUGHT,
    ),
    Mutant(
        "an earlier attempt's open transaction counts as that of another program",
        f"{COPY}/target_writer.py",
        "if not batch.is_control and batch.producer_id not in {*known_producers, self.producer.producer_id}:",
        "if not batch.is_control:",
        OPEN_BEFORE,
    ),
    Mutant(
        "a batch is dropped",
        f"{COPY}/partition_copy.py",
        "        self.waiting.append((target_partition, batch))\n",
        "        if len(self.waiting) != 1:\n            self.waiting.append((target_partition, batch))\n",
        TWO_RUNS,
    ),
    Mutant(
        "a batch is dropped, and the digests hide it",
        f"{COPY}/partition_copy.py",
        "        self.waiting.append((target_partition, batch))\n",
        "        if len(self.waiting) == 1:\n            return\n"
        "        self.waiting.append((target_partition, batch))\n",
        TWO_RUNS,
    ),
    Mutant(
        "a batch is dropped, and passed off as a marker",
        f"{COPY}/source_reader.py",
        "        if batch.is_control:\n            return GapKind.MARKER\n",
        "        if batch.is_control or batch.base_offset > 50:\n            return GapKind.MARKER\n",
        TWO_RUNS,
    ),
    Mutant(
        "a batch is written twice",
        f"{COPY}/partition_copy.py",
        "        self.waiting.append((target_partition, batch))\n",
        "        self.waiting.extend([(target_partition, batch)] * 2)\n",
        TWO_RUNS,
    ),
    Mutant(
        "a batch is written twice, and the digests hide it",
        f"{COPY}/partition_copy.py",
        "        self.waiting.append((target_partition, batch))\n",
        "        self.waiting.extend([(target_partition, batch)] * 2)\n"
        "        self.digests_read[target_partition] = batch.count_into(self.digests_read.get(target_partition, 0))\n",
        TWO_RUNS,
    ),
    Mutant(
        "two batches change places, and the digests hide it",
        f"{COPY}/partition_copy.py",
        "        self.waiting.append((target_partition, batch))\n",
        "        self.waiting.append((target_partition, batch))\n"
        "        if len(self.waiting) == 2:\n            self.waiting.reverse()\n",
        TWO_RUNS,
    ),
    Mutant(
        "the map is shifted by one record",
        f"{COPY}/partition_copy.py",
        "ranges, downstream = batch.ranges, base_offset\n",
        "ranges, downstream = batch.ranges, base_offset + 1\n",
        TWO_RUNS,
    ),
    Mutant(
        "each micro-batch begins one record late",
        f"{COPY}/continuation.py",
        "    start = position.upstream_next\n",
        "    start = position.upstream_next + 1\n",
        TWO_RUNS,
    ),
    Mutant(
        "a copy goes on where it was planned, not where its slot is",
        f"{COPY}/continuation.py",
        "    start = position.upstream_next\n",
        "    start = planned.start\n",
        LATE_PLAN,
    ),
    Mutant(
        "a task of an older job goes on",
        f"{COPY}/continuation.py",
        "    if state.generation > generation:\n",
        "    if state.generation > generation + 100:\n",
        OTHER_STATE,
    ),
    Mutant(
        "a target that has lost the state of a slot is written on",
        f"{COPY}/continuation.py",
        "    if start < planned.start and not planned.is_new:",
        "    if start < 0:",
        OTHER_STATE,
    ),
    Mutant(
        "partitions that rest are left out of the state of their slot",
        f"{COPY}/slot_copy.py",
        "        positions = before.owned()\n",
        "        positions = {}\n",
        (f"{EXACTLY_ONCE}::test_a_partition_that_rests_keeps_its_position_while_others_of_its_slot_go_on",),
    ),
    Mutant(
        "gaps are left out of the state",
        f"{COPY}/slot_copy.py",
        "            gaps=tuple(gap for stretch in self._stretches.values() for gap in stretch.explained()),\n",
        "",
        TRANSACTIONS,
    ),
    Mutant(
        "records of aborted transactions are copied",
        f"{COPY}/source_reader.py",
        "        if is_aborted:\n            return GapKind.ABORTED\n",
        "",
        TRANSACTIONS,
    ),
    Mutant(
        "a transaction counts as aborted beyond its marker",
        "protocol/batches/record_batch.py",
        "        if batch.is_abort_marker:\n",
        "        if batch.is_abort_marker and not self._aborting:\n",
        (f"{BATCHES}::test_data_of_aborted_transactions_is_dropped_up_to_the_abort_marker_and_no_further",),
    ),
    Mutant(
        "a corrupt batch passes",
        "protocol/batches/record_batch.py",
        "        return self.is_whole and self.crc == (",
        "        return self.magic == 2 or self.crc == (",
        (f"{BATCHES}::test_a_flipped_byte_is_noticed_anywhere_behind_the_crc",),
    ),
    Mutant(
        "a merge shifts each offset by one",
        "protocol/batches/merging.py",
        '        offsets=np.repeat(rows["base_offset"].astype(np.int64), counts) + within,\n',
        '        offsets=np.repeat(rows["base_offset"].astype(np.int64), counts) + within + 1,\n',
        (MERGED,),
    ),
    Mutant(
        "a merge forgets the base of timestamps",
        "protocol/batches/merging.py",
        "        timestamps=np.repeat(base, counts) + time_deltas,\n",
        "        timestamps=base[0] + time_deltas,\n",
        (MERGED,),
    ),
    Mutant(
        "a merge keeps the producer's time where the broker has stamped the records",
        "protocol/batches/merging.py",
        "    time_deltas[np.repeat(is_stamped, counts)] = 0\n",
        "",
        (MERGED,),
    ),
    Mutant(
        "a gap between merged batches is passed over in the map",
        "protocol/batches/merging.py",
        "        breaks = np.flatnonzero(np.diff(offsets) != 1) + 1\n",
        "        breaks = np.flatnonzero(np.diff(offsets) > 2) + 1\n",
        (MERGED,),
    ),
    Mutant(
        "merged batches lose their codec",
        "protocol/batches/merging.py",
        "            self.codec,\n",
        "            0,\n",
        (f"{SMALL}::test_small_batches_of_one_stretch_become_one",),
    ),
    Mutant(
        "batches of two codecs are merged",
        f"{COPY}/small_batches.py",
        "    return np.flatnonzero(np.append(True, ~(follows & has_codec)))\n",
        "    return np.flatnonzero(np.append(True, ~(follows | ~has_codec)))\n",
        (f"{SMALL}::test_batches_that_were_not_compressed_are_merged_with_those_that_were",),
    ),
    Mutant(
        "a corrupt batch is merged",
        f"{COPY}/small_batches.py",
        "        return range(at, min(end, self._checked))\n",
        "        return range(at, end)\n",
        (f"{SMALL}::test_a_corrupt_batch_among_small_ones_stops_the_flow_with_its_offsets",),
    ),
    Mutant(
        "a verification takes merged batches of any size",
        "jobs/verification/run_digests.py",
        "        yield some[0] if len(some) == 1 else _merged(some, records)\n",
        "        yield from some[:1] if len(some) == 1 else ()\n",
        (f"{SMALL}::test_a_run_of_merged_batches_is_recognised_on_both_sides",),
    ),
    Mutant(
        "a merge passes over a gap between batches",
        f"{COPY}/small_batches.py",
        " & (first[1:] == first[:-1] + deltas[:-1] + 1)\n",
        "\n",
        (ANY_LOG,),
    ),
    Mutant(
        "records of aborted transactions are merged",
        f"{COPY}/source_reader.py",
        "        left_out = aborted.producers | ",
        "        left_out = set() | ",
        (ANY_LOG,),
    ),
    Mutant(
        "records that a flow has brought are merged",
        f"{COPY}/source_reader.py",
        "(self.provenance.mirrored if self.provenance else set())\n",
        "set()\n",
        (ANY_LOG,),
    ),
    Mutant(
        "a merge passes the planned end",
        f"{COPY}/small_batches.py",
        "        end = at + int(np.count_nonzero(first[at:end] < end_offset))\n",
        "",
        (ANY_LOG,),
    ),
    Mutant(
        "the bytes of merged batches do not count",
        f"{COPY}/source_reader.py",
        "        self.bytes += small.bytes(numbers)\n",
        "",
        (ANY_LOG,),
    ),
    Mutant(
        "a merge forgets the leader epoch",
        f"{COPY}/source_reader.py",
        "        for epoch, offset in small.epochs(numbers):\n            stretch.see_epoch(epoch, offset)\n",
        "",
        (ANY_LOG,),
    ),
    Mutant(
        "a merged batch may be opened beyond the limit",
        "protocol/batches/codecs.py",
        "                raise OversizedBatchError(limit_bytes)\n            found.append(one)\n",
        "                pass\n            found.append(one)\n",
        ("tests/unit/test_merging.py::test_a_batch_is_merged_only_up_to_the_limit",),
    ),
    Mutant(
        "the CRC of a large batch is that of what is in memory",
        "protocol/batches/record_batch.py",
        "        if len(self.raw) < LARGE_BYTES:\n            return crc32c(",
        "        if self.raw:\n            return crc32c(",
        (f"{BATCHES}::test_what_changes_the_records_of_a_large_batch_in_memory_is_noticed_by_the_target",),
    ),
    Mutant(
        "the digest of a large batch leaves out its timestamps",
        "protocol/batches/record_batch.py",
        "^ crc32c(self.raw[STAMPS], digest)\n",
        "^ digest\n",
        (f"{BATCHES}::test_the_crc_and_the_digest_of_a_large_batch_are_made_from_its_own_crc",),
    ),
    Mutant(
        "a verification believes the CRC in a header",
        "jobs/verification/run_digests.py",
        "            found = batch.extend_digest(found)\n",
        "            found = batch.extend_digest_by_crc(found)\n",
        (f"{BATCHES}::test_a_verification_compares_the_bytes_and_not_the_crc_that_a_header_says",),
    ),
    Mutant(
        "records that were lost are passed over without leave",
        f"{COPY}/gap_recorder.py",
        '            SourceError: the flow does not continue after losses.\n        """\n'
        "        if not self._flow.passes_over_losses:\n",
        '            SourceError: the flow does not continue after losses.\n        """\n        if stretch is None:\n',
        (
            f"{LOSSES}::test_records_deleted_before_they_were_mirrored_are_passed_over_where_the_flow_says_so_and_"
            "written_down",
        ),
    ),
    Mutant(
        "a hole in a log that is not compacted is explained by compaction",
        f"{COPY}/gap_recorder.py",
        "        if await self._is_compacted(stretch):\n            self.skip(stretch, end, GapKind.COMPACTED)\n",
        "        if stretch:\n            self.skip(stretch, end, GapKind.COMPACTED)\n",
        (f"{MIRRORING}::test_a_compacted_log_with_holes_and_transactions_arrives_record_by_record",),
    ),
    Mutant(
        "a record without a key is passed over in silence",
        f"{COPY}/gap_recorder.py",
        "            self.lose(\n                stretch,\n                GapKind.NO_KEY,\n",
        "            self.skip(stretch, offset + 1, GapKind.COMPACTED)\n            return\n            self.lose(\n"
        "                stretch,\n                GapKind.NO_KEY,\n",
        (f"{LOSSES}::test_records_without_a_key_from_before_a_topic_was_compacted_stop_the_flow_or_are_left_out",),
    ),
    Mutant(
        "a remote partition without a leader fails its slot for ever",
        f"{MIRROR}/planning/planner.py",
        "        ranges = others if others or not self._until_now else ranges\n",
        "",
        ("tests/kafka/test_held_partitions.py::test_a_remote_partition_that_loses_its_leader_holds_back_only_itself",),
    ),
    Mutant(
        "a run that ends with what there is ends well without a partition that has no leader",
        f"{MIRROR}/planning/planner.py",
        "        ranges = others if others or not self._until_now else ranges\n",
        "        ranges = others\n",
        ("tests/kafka/test_held_partitions.py::test_a_remote_partition_that_loses_its_leader_holds_back_only_itself",),
    ),
    Mutant(
        "a topic is mirrored without the mask that came with it",
        "config/reload.py",
        "        if waiting := changed & (NAMING | TRANSFORMING if has_transforms else NAMING):\n",
        "        if waiting := changed & NAMING:\n",
        ("tests/unit/test_options.py::test_a_topic_waits_for_the_transform_that_was_added_with_it",),
    ),
    Mutant(
        "a topic takes over another name in a job that runs",
        "config/reload.py",
        "        if waiting := changed & (NAMING | TRANSFORMING if has_transforms else NAMING):\n",
        "        if waiting := changed & (TRANSFORMING if has_transforms else set()):\n",
        ("tests/unit/test_options.py::test_a_topic_waits_for_the_name_that_was_given_with_it",),
    ),
    Mutant(
        "a cluster called source is told to remove a property that MirrorMaker 2 obeys",
        "config/properties.py",
        ' - {f"{self.source}.consumer.{name}"}',
        "",
        (
            "tests/unit/test_configuration.py::"
            "test_a_property_of_the_consumer_of_the_target_does_not_decide_where_the_source_is_read",
        ),
    ),
    Mutant(
        "a protocol in front of an address reaches the clients",
        "config/connection.py",
        'IGNORED.sub(r"\\1", found["bootstrap.servers"])',
        'found["bootstrap.servers"]',
        ("tests/unit/test_connection.py::test_addresses_may_have_a_protocol_in_front_as_java_takes_them",),
    ),
    Mutant(
        "an interval below 0 is refused though nothing is done at it",
        "config/properties.py",
        "default if self._is_off(name, text) else text",
        "text",
        (
            "tests/unit/test_configuration.py::"
            "test_an_interval_below_0_of_what_is_switched_off_is_taken_as_mirrormaker_2_takes_it",
        ),
    ),
    Mutant(
        "a policy of any package counts as MirrorMaker 2's",
        "config/replication_policy.py",
        'package not in ("", MIRRORMAKER)',
        "package is None",
        (
            "tests/unit/test_name_filter_and_policy.py::"
            "test_a_policy_of_another_package_than_mirrormaker_2s_is_not_taken_for_its_own_without_a_word",
        ),
    ),
    Mutant(
        "a mirror job goes on with the states of another flow",
        "state/whose.py",
        "    if what := others(flow, states):\n",
        "    if not (what := others(flow, states)):\n",
        ("tests/kafka/test_refusals.py::test_states_of_another_flow_are_continued_by_no_job",),
    ),
    Mutant(
        "a private key is read as names of properties",
        "config/properties.py",
        '            if is_line or value.count(f"{PEM_LINES[0]} ") != value.count(f"{PEM_LINES[1]} "):\n',
        "            if is_line:\n",
        ("tests/unit/test_configuration.py::test_no_line_of_a_private_key_becomes_the_name_of_a_property",),
    ),
    Mutant(
        "the start of a new partition moves with the end of its log",
        "jobs/mirror/planning/planner.py",
        "        unknown = {key: spec for key, spec in specs.items() if ids[key] not in self._starts}\n",
        "        unknown = specs\n",
        (
            "tests/unit/test_planner_work.py"
            "::test_a_topic_that_appears_later_begins_where_its_end_was_when_it_was_first_seen",
        ),
    ),
    Mutant(
        "a plan that ends between two batches of a compacted log has no end",
        "jobs/mirror/copy/source_reader.py",
        "        if at < end:  # the next batch begins behind the end\n",
        "        if False:\n",
        ("tests/kafka/test_transforms.py::test_a_compacted_topic_with_a_transform_has_its_holes_explained",),
    ),
    Mutant(
        "of records that a transform makes too large, each attempt learns one",
        "jobs/mirror/copy/refused_records.py",
        "            self.limits.refused.add(stretch.record_id(record.offset))\n",
        "            pass\n",
        ("tests/kafka/test_transforms.py::test_a_record_that_a_transform_makes_too_large_goes_to_the_dead_letters",),
    ),
    Mutant(
        "each micro-batch of a transform leaves a reader in Spark",
        "spark/reader_group.py",
        "        if not self._id or ",
        "        if True or ",
        (
            "tests/kafka/test_transforms.py::test_executors_keep_one_reader_of_a_partition_however_many_micro_batches_there_are",
        ),
    ),
    Mutant(
        "a denial is taken back with its topic",
        "protocol/acls.py",
        "        if acl not in wanted and not is_still_denied(flow, acl, bindings):",
        "        if acl not in wanted:",
        ("tests/unit/test_topic_changes.py::test_what_is_denied_stays_denied_as_long_as_the_source_denies_it",),
    ),
    Mutant(
        "a broker that led a partition before is believed",
        "jobs/mirror/planning/planner.py",
        "            ends = {key: end for key, end in ends.items() if key not in silent}\n",
        "",
        (
            "tests/unit/test_planner_work.py::test_a_shorter_log_or_an_older_leader_is_believed_once_every_broker_agrees",
        ),
    ),
    Mutant(
        "another flow mirrors dead letters",
        "config/flow.py",
        "            and topic not in self.dead_letters_on_source\n",
        "",
        (
            "tests/unit/test_transform.py::test_what_could_not_be_masked_goes_to_no_third_cluster_whatever_its_topic_is_called",
        ),
    ),
    Mutant(
        "each record with an unknown schema id is asked for",
        "transforms/schema_ids.py",
        "            if self._clock() < until:\n",
        "            if not until < 1e9:\n",
        ("tests/unit/test_schema_ids.py::test_an_id_that_is_not_known_is_asked_for_once_in_a_while",),
    ),
    Mutant(
        "what the mirror before has left behind the map stops a flow that was taken over",
        f"{COPY}/slot_copy.py",
        "            lambda: outlet.require_sole_writer(alone, before.all_producer_ids, taken_over)\n",
        "            lambda: outlet.require_sole_writer(alone, before.all_producer_ids)\n",
        (f"{TAKEOVERS}::test_what_another_mirror_has_lost_repeated_or_mixed_in_is_found_and_written_down",),
    ),
    Mutant(
        "a flow back that keeps names lets a first start copy again what MirrorMaker 2 has copied",
        f"{MIRROR}/planning/first_start.py",
        "    if flow.shares_by_default and not begins_elsewhere:\n",
        "    if not flow.shares_by_default:\n",
        (f"{TAKEOVERS}::test_where_both_flows_keep_names_no_first_start_copies_again_what_mirrormaker_2_has_copied",),
    ),
    Mutant(
        "the flow back copies home what MirrorMaker 2 has brought",
        "state/offset_syncs.py",
        "        for state in (*begun, *states.values())\n",
        "        for state in states.values()\n",
        (f"{TAKEOVERS}::test_where_both_flows_keep_names_no_first_start_copies_again_what_mirrormaker_2_has_copied",),
    ),
    Mutant(
        "a map from before a hand-back lacks its end",
        "jobs/migration/takeover.py",
        "        if known is not None and found.upstream_next == known.upstream_next and known.downstream_next:\n",
        "        if known is None:\n",
        (f"{TAKEOVERS}::test_a_flow_that_was_given_back_and_taken_over_without_a_record_between_keeps_its_map",),
    ),
    Mutant(
        "a partition of which nothing was copied begins at its first record after a take-over",
        "jobs/migration/takeover.py",
        "            starts = () if known else first_positions(source, flow, self._compared_now.topics)\n",
        "            starts = ()\n",
        (f"{TAKEOVERS}::test_partitions_without_a_copy_begin_where_mirrormaker_2_would_begin",),
    ),
    Mutant(
        "a reset of a log is forgotten",
        f"{COPY}/partition_copy.py",
        "        found, runs, downstream = list(self.resets), deque(self.runs), self.downstream_from\n",
        "        found, runs, downstream = list[Gap](), deque(self.runs), self.downstream_from\n",
        (f"{LOSSES}::test_a_topic_created_anew_is_mirrored_from_its_first_record_where_the_flow_says_so",),
    ),
    Mutant(
        "a stranger in a remote topic is not noticed",
        f"{COPY}/target_writer.py",
        "            if foreign is None:\n",
        "            if foreign != -1:\n",
        (f"{LOSSES}::test_someone_else_who_writes_into_a_remote_topic_is_noticed",),
    ),
    Mutant(
        "records go round between two clusters",
        "state/provenance.py",
        "        return batch.is_transactional and batch.producer_id in self._mirrored\n",
        "        return False\n",
        (f"{POLICIES}::test_a_loop_is_seen_after_the_reverse_flow_was_restarted_with_other_producers",),
    ),
    Mutant(
        "requests in flight have no limit",
        f"{COPY}/target_writer.py",
        "                await self._make_room(where, _size(batches))\n",
        "                self._in_flight.setdefault(where, InFlight())\n",
        ("tests/unit/test_target_writer.py",),
    ),
    Mutant(
        "batches of a partition may overtake each other on a long line",
        f"{COPY}/target_writer.py",
        "        return node, self._lanes[key]\n",
        "        self._used[node] += 1\n        return node, self._used[node] % self._connections\n",
        (FAR_WRITES,),
    ),
    Mutant(
        "the first batches of partitions are sent over several connections at once",
        f"{COPY}/target_writer.py",
        "        if self._connections > 1 and not self._begun.issuperset(batches):\n",
        "        if False:\n",
        (FAR_WRITES,),
    ),
    Mutant(
        "what a task holds grows with the number of leaders",
        f"{COPY}/fetcher.py",
        "            share = min(memory_bytes // responses, left_bytes // (wanted + len(ahead)))\n",
        "            share = memory_bytes\n",
        ("tests/unit/test_fetcher.py::test_what_is_held_is_bounded_however_many_leaders_there_are",),
    ),
    Mutant(
        "leaders that are asked later have the memory of those before once more",
        f"{COPY}/fetcher.py",
        ", left_bytes // (wanted + len(ahead)))\n",
        ", memory_bytes)\n",
        ("tests/unit/test_fetcher.py::test_what_is_held_is_bounded_though_leaders_are_asked_one_after_the_other",),
    ),
    Mutant(
        "what was asked ahead is read before what comes first",
        f"{COPY}/fetcher.py",
        "fetch.offset(key) <= stretch.upstream_next < _end(log)",
        "stretch.upstream_next < _end(log)",
        ("tests/unit/test_fetcher.py::test_a_late_answer_from_ahead_is_not_read_before_what_comes_first",),
    ),
    Mutant(
        "what another leader has answered from ahead is believed",
        f"{COPY}/fetcher.py",
        "            and fetch.leader(key) == self._leaders.get(key)\n",
        "",
        ("tests/unit/test_fetcher.py::test_what_another_leader_has_answered_from_ahead_is_not_believed",),
    ),
    Mutant(
        "an error of an answer from ahead is one of the position",
        f"{COPY}/fetcher.py",
        "            has_answered\n            and not stretch.is_done\n",
        "            not stretch.is_done\n",
        ("tests/unit/test_fetcher.py::test_an_answer_from_ahead_that_is_no_log_says_nothing_and_is_asked_for_again",),
    ),
    Mutant(
        "no connection is left for what is missing before what has come",
        f"{COPY}/fetcher.py",
        " or self._freed(key, pending.get(key, ()))\n",
        "\n",
        (
            "tests/unit/test_fetcher.py::test_what_came_from_furthest_ahead_is_given_up_where_no_connection_is_left_for_what_is_missing",
        ),
    ),
    Mutant(
        "what came from far ahead keeps its connections where records have become larger",
        f"{COPY}/fetcher.py",
        "fetch.offset(key) > reach or fetch.leader(key) != leader",
        "fetch.leader(key) != leader",
        ("tests/unit/test_fetcher.py::test_what_came_from_far_ahead_is_given_up_where_records_have_become_larger",),
    ),
    Mutant(
        "what a former leader has answered from ahead holds its connections",
        f"{COPY}/fetcher.py",
        "fetch.offset(key) > reach or fetch.leader(key) != leader",
        "fetch.offset(key) > reach",
        (
            "tests/unit/test_fetcher.py::test_what_a_former_leader_has_answered_from_ahead_holds_no_connection_and_no_memory",
        ),
    ),
    Mutant(
        "an old batch with a wrong first offset is the next one",
        f"{COPY}/fetcher.py",
        "        if batch.magic < 2 or batch.base_offset < before or (",
        "        if batch.magic < 2 or (",
        (
            "tests/unit/test_fetcher.py::test_a_wrong_bit_in_the_first_offset_of_a_batch_that_was_read_before_makes_no_gap",
        ),
    ),
    Mutant(
        "a hole behind what another response had is damage",
        f"{COPY}/fetcher.py",
        "        log.passed = passed or 0\n",
        "",
        ("tests/unit/test_fetcher.py::test_a_hole_behind_what_another_response_had_is_no_damage",),
    ),
    Mutant(
        "a partition that can't be read takes what a response has of others with it",
        f"{COPY}/source_reader.py",
        "                problem = problem or error\n                self.fetcher.note_error",
        "                raise\n                self.fetcher.note_error",
        (
            "tests/unit/test_fetcher.py::test_a_partition_that_cannot_be_read_holds_up_no_other_and_is_asked_for_some_times_only",
        ),
    ),
    Mutant(
        "a batch that waits keeps the whole response",
        f"{COPY}/source_reader.py",
        "                stretch.copy_waiting(number)\n",
        "                pass\n",
        ("tests/unit/test_fetcher.py::test_a_response_of_which_little_is_to_be_written_is_let_go",),
    ),
    Mutant(
        "a log of which little is copied looks like a slow target",
        f"{COPY}/slot_copy.py",
        "return max(outlet.bytes, taken_bytes - outlet.bytes_in_flight)",
        "return outlet.bytes",
        ("tests/unit/test_pace.py::test_what_is_passed_over_counts_as_what_is_written",),
    ),
    Mutant(
        "a slow line has many responses at once",
        f"{COPY}/fetcher.py",
        "self.connections if most_bytes(1) > LEAST_FETCH_BYTES else 1",
        "self.connections",
        (
            "tests/unit/test_fetcher.py::test_over_a_line_that_carries_next_to_nothing_each_leader_has_one_request_at_once",
        ),
    ),
    Mutant(
        "a connection that was refused is tried in each attempt",
        "protocol/network/network_client.py",
        "return min(wanted, self._manager.most_lanes())",
        "return wanted",
        ("tests/kafka/test_network.py::test_a_far_cluster_that_accepts_fewer_connections_is_reached_over_those",),
    ),
    Mutant(
        "connections that are not used take their share of the memory",
        f"{COPY}/fetcher.py",
        "            if not sparse:\n",
        "            if sparse or not sparse:\n",
        (
            "tests/unit/test_fetcher.py::test_connections_that_would_have_too_little_are_not_used_and_take_nothing_from_the_others",
        ),
    ),
    Mutant(
        "an attempt waits for ever for what it asks for no more",
        f"{COPY}/fetcher.py",
        "            if not left:\n                break\n",
        "            if not left:\n                raise TimeoutError\n",
        ("tests/unit/test_fetcher.py::test_nothing_waits_for_what_is_missing_when_no_more_is_asked_for",),
    ),
    Mutant(
        "what is in flight grows with the number of nodes of the target",
        f"{COPY}/target_writer.py",
        "self.bytes_in_flight + size > self._most_bytes():\n",
        "False:\n",
        (
            "tests/unit/test_target_writer.py::test_what_is_in_flight_is_bounded_however_many_nodes_and_connections_there_are",
        ),
    ),
    Mutant(
        "a partition is asked for twice at once",
        f"{COPY}/fetcher.py",
        "if key in pending and any(fetch.offset(key) <= stretch.upstream_next for fetch in pending[key]):\n",
        "if not key:\n",
        ("tests/unit/test_fetcher.py::test_each_connection_has_one_request_under_way_with_partitions_of_its_own",),
    ),
    Mutant(
        "transformed records wait for no rate",
        f"{COPY}/slot_copy.py",
        "                has_turn or await self._throttle",
        "                True or await self._throttle",
        ("tests/unit/test_throttle.py::test_transformed_records_are_paid_for_too",),
    ),
    Mutant(
        "a commit whose answer is lost counts as one",
        f"{MIRROR}/micro_batch.py",
        "            return outcome\n        try:\n            return None if",
        "            return None\n        try:\n            return None if",
        ("tests/unit/test_micro_batch.py::test_a_slot_whose_commit_is_unknown_hides_none_that_is_committed",),
    ),
    Mutant(
        "the answers of two leaders are taken in any order",
        f"{COPY}/target_writer.py",
        "            await self.settle()  # a leader has moved",
        "            pass  # a leader has moved",
        (
            "tests/unit/test_target_writer.py::test_what_the_leader_before_has_appended_is_noted_before_what_its_successor_appends",
        ),
    ),
    Mutant(
        "the allowed rate is not paid for",
        f"{COPY}/throttle.py",
        "            self._free_at[name] = begins + size / self._rates[name]\n",
        "            self._free_at[name] = begins\n",
        (
            "tests/unit/test_throttle.py",
            "tests/kafka/test_throttling.py::test_a_rate_is_kept_and_changed_while_it_runs_"
            "and_a_backfill_gives_way_to_other_topics",
        ),
    ),
    Mutant(
        "a backfill does not give way",
        f"{COPY}/fetcher.py",
        "        return first or left\n",
        "        return left\n",
        (
            "tests/unit/test_fetcher.py::test_topics_that_give_way_are_read_last_and_nothing_is_while_the_rate_is_used_up",
        ),
    ),
    Mutant(
        "a state that an elected leader does not show yet is taken for the last one",
        "state/offset_syncs.py",
        "_records(batches[-1:], key[1]) if end == stable[key] else []\n",
        "_records(batches[-1:], key[1])\n",
        ("tests/unit/test_cluster.py::test_a_state_counts_only_if_the_leader_names_the_same_end_in_both_answers",),
    ),
    Mutant(
        "a state that was read before an election counts after it",
        "state/offset_syncs.py",
        "seen.log == logs[key] != UNKNOWN_LOG and ",
        "",
        (CHANGES_READ,),
    ),
    Mutant(
        "changes are added to what was read before an election",
        "protocol/log_reader.py",
        "    return topic.topic_id, cluster.leader_epoch(*key)\n",
        "    return topic.topic_id, 0\n",
        (CHANGES_READ,),
    ),
    Mutant(
        "changes count though one before them is missing",
        "model/changes.py",
        "        if found != expected:\n",
        "        if found > (1 << 62, 0, 0, 0):\n",
        ("tests/unit/test_changes.py::test_a_state_that_does_not_follow_is_refused",),
    ),
    Mutant(
        "positions that don't follow from runs are left out of changes",
        "model/changes.py",
        "if known.get(key) != position),\n",
        "if key not in known),\n",
        (CHANGES_WHOLE,),
    ),
    Mutant(
        "changes are written for what they can't say",
        "model/changes.py",
        "    if any(getattr(before, name) != getattr(state, name) for name in KEPT):\n",
        "    if any(getattr(before, name) is None for name in KEPT):\n",
        (CHANGES_WHOLE,),
    ),
    Mutant(
        "changes go on for ever behind a snapshot that retention may delete",
        "model/changes.py",
        "    if 0 <= before.snapshot_ms < state.created_ms - LONGEST_MS:\n",
        "    if 0 <= before.snapshot_ms < -LONGEST_MS:\n",
        (CHANGES_WHOLE,),
    ),
    Mutant(
        "an interrupt ends a task of the event loop and nothing else",
        "protocol/network/deferred_signals.py",
        "                signal.signal(one, note)\n",
        "                pass\n",
        ("tests/unit/test_event_loop.py",),
    ),
    Mutant(
        "a topic that no controller creates is asked for in each micro-batch",
        f"{MIRROR}/topics/topology.py",
        "        if not known.error.retriable or time.monotonic() < self._again_at:\n",
        "        if not known.error.retriable:\n",
        (
            "tests/kafka/test_proxy_requests.py::test_a_topic_that_needs_more_brokers_than_there_are_is_asked_for_after_a_pause",
        ),
    ),
    Mutant(
        "a change of a configuration that no controller makes holds a topic that can do without",
        f"{MIRROR}/topics/topology.py",
        " or (change.note in (NEEDED, NEEDED_SIZE) and is_away(error)):",
        " or is_away(error):",
        (NO_CONTROLLER,),
    ),
    Mutant(
        "each administrative request waits for a controller that is away",
        "protocol/admin.py",
        "        away = away or next(filter(is_away, refused.values()), None)\n",
        "",
        (
            "tests/kafka/test_proxy_requests.py::test_behind_an_administrative_request_without_an_answer_no_more_are_sent",
        ),
    ),
    Mutant(
        "the last of the topics that share a remote topic decides about it",
        f"{MIRROR}/topics/topology.py",
        "{**configs.get(sharing[0], {})",
        "{**configs.get(sharing[-1], {})",
        (
            "tests/kafka/test_topic_sync.py::test_the_first_of_the_topics_that_share_a_remote_topic_decides_about_it_also_when_another_one_is_added",
        ),
    ),
    Mutant(
        "a controller that answers again is not noticed",
        f"{MIRROR}/topics/change_maker.py",
        "            if self._target.answers(flow.offset_syncs_topic):\n",
        "            if self._target.answers(flow.offset_syncs_topic) is None:\n",
        (CONTROLLER_BACK,),
    ),
    Mutant(
        "a controller is asked beside the requests of a flow, which fail with it",
        "protocol/admin.py",
        "                client = self._new_client(self._current_settings())\n",
        "                client = self.client\n",
        (NO_CONTROLLER,),
    ),
    Mutant(
        "a job ends as its only topic waits for a leader",
        f"{MIRROR}/job.py",
        "may_pass = bool(passing & failures.keys()) or any(",
        "may_pass = any(",
        (ONLY_TOPIC,),
    ),
    Mutant(
        "changes are written by default to a topic that loses their snapshots",
        f"{MIRROR}/topics/own_topics.py",
        "        self.loses_states = True\n",
        "        self.loses_states = False\n",
        (TOPIC_LOSES,),
    ),
    Mutant(
        "a slot never writes a snapshot again",
        "model/changes.py",
        "    return changes if before.moves + _moves(changes) + MOVES_PER_STATE * changes.number <= most else state\n",
        "    return changes if most else state\n",
        (CHANGES_WHOLE,),
    ),
)

COMMITTING = (
    Mutant(
        "the gate is skipped",
        f"{MIRROR}/micro_batch.py",
        '            require(results, f"flow {flow.name}, micro-batch {cycle_id}", consequence)\n',
        "",
        VIOLATED_GATE,
    ),
    Mutant(
        "the commit comes before the gate",
        f"{MIRROR}/micro_batch.py",
        "                            if moved:\n                                self._pass_gate(",
        "                            if self._commit(moved):\n                                self._pass_gate(",
        VIOLATED_GATE,
    ),
    Mutant(
        "all transactions wait for the slowest slot",
        f"{MIRROR}/micro_batch.py",
        "self._now() >= held_since + self._held_s\n",
        "False\n",
        (
            "tests/unit/test_micro_batch.py::test_no_transaction_waits_for_a_slow_slot_or_for_slots_that_have_no_core_yet",
        ),
    ),
    Mutant(
        "a backlog takes all of the time beside slots with new records",
        f"{MIRROR}/planning/slow_slots.py",
        "bool(self._minded - self._slow) or ",
        "",
        ("tests/unit/test_slow_slots.py::test_a_slow_slot_copies_for_a_shorter_time_beside_slots_that_need_less",),
    ),
    Mutant(
        "a slot has no time left after it has waited for its rate",
        f"{MIRROR}/copy/slot_copy.py",
        "max(self._most_s, owed_s + LEAST_S)",
        "self._most_s",
        ("tests/unit/test_slow_slots.py::test_a_slot_that_owes_its_rate_has_the_time_to_pay_and_to_copy",),
    ),
    Mutant(
        "a slot copies for longer than its plan says",
        f"{MIRROR}/copy/slot_copy.py",
        "max(self._most_s, owed_s + LEAST_S)",
        "self.flow.batch_max_ms",
        (
            "tests/kafka/test_throttling.py::test_a_slot_with_a_backlog_holds_up_new_records_of_others_for_a_short_time_only",
        ),
    ),
    Mutant(
        "what other slots copy is committed after the gate has refused a part",
        f"{MIRROR}/micro_batch.py",
        "                            break  # nothing that",
        "                            continue  # nothing that",
        (
            "tests/unit/test_micro_batch.py::test_what_was_committed_before_a_later_slot_failed_is_reported_and_the_rest_is_aborted",
        ),
    ),
    Mutant(
        "a slot that waits for its lane is copied though its micro-batch is over",
        f"{MIRROR}/in_process.py",
        "                if is_over.is_set():\n",
        "                if False:\n",
        ("tests/unit/test_plan_loop.py::test_tasks_that_are_ended_before_begin_with_no_more_slots",),
    ),
    Mutant(
        "tasks run on after the gate has refused a part",
        f"{MIRROR}/spark_engine.py",
        "                        context.cancelJobsWithTag(tag)\n",
        "                        pass\n",
        (
            "tests/spark/test_early_answers.py::test_tasks_that_still_run_or_wait_end_with_a_micro_batch_that_is_given_up",
        ),
    ),
    Mutant(
        "what the gate refuses is committed",
        f"{MIRROR}/micro_batch.py",
        "producers, commit=False,",
        "producers, commit=True,",
        VIOLATED_GATE,
    ),
    Mutant(
        "a gate that was evaluated by half passes",
        "gate.py",
        "        if len(results) != self.expectations:\n",
        "        if not results:\n",
        ("tests/unit/test_gate.py::test_half_evaluated_is_not_evaluated",),
    ),
    Mutant(
        "the driver copies a topic with a transform itself",
        f"{MIRROR}/spark_engine.py",
        "            and not any(flow.transform_of(one.topic) for one in plan.ranges)\n",
        "",
        ("tests/kafka/test_transforms.py::test_keys_headers_timestamps_and_partitions_are_what_the_transform_says",),
    ),
    Mutant(
        "the driver copies plans of any size itself",
        f"{MIRROR}/spark_engine.py",
        "sum(one.end - one.start for one in plan.ranges) <= self._small_records",
        "self._small_records > 0",
        (f"{EXACTLY_ONCE}::test_a_task_on_spark_killed_at_any_step_is_done_again_by_the_same_job",),
    ),
    Mutant(
        "an idle source is asked as often as a busy one",
        f"{MIRROR}/plan_loop.py",
        "SLOWER * max(pause_s, POLL_S)",
        "max(pause_s, POLL_S)",
        ("tests/unit/test_plan_loop.py",),
    ),
    Mutant(
        "the gate keeps the frame that it has loaded first",
        "compiled_suite.py",
        "        engine.load_batch_data(FRAME, frame)\n",
        "        FRAME in engine.batch_manager.batch_data_cache or engine.load_batch_data(FRAME, frame)\n",
        COMPILED_SUITE,
    ),
    Mutant(
        "the gate looks at rows of an earlier frame",
        "compiled_suite.py",
        "            self._selected.clear()\n",
        "",
        COMPILED_SUITE,
    ),
    Mutant(
        "a compiled suite passes without a verdict",
        "compiled_suite.py",
        "    return Judgement(bool(success) and ",
        "    return Judgement(True or ",
        COMPILED_SUITE,
    ),
    Mutant(
        "the gate passes if one expectation does",
        "gate.py",
        "        if not all(judgement.is_clean for",
        "        if not any(judgement.is_clean for",
        COMPILED_SUITE,
    ),
    Mutant(
        "EndTxn is sent, and its answer is not looked at",
        f"{MIRROR}/micro_batch.py",
        "            return None if outcome is transaction.Outcome.DECIDED else self._read_outcome(report)\n",
        "            return None if outcome else self._read_outcome(report)\n",
        TIMED_OUT,
    ),
    Mutant(
        "the state of another transaction is taken for that of this one",
        "state/offset_syncs.py",
        "    return state is not None and (state.producer_id, state.producer_epoch) == (\n"
        "        producer.producer_id,\n"
        "        producer.producer_epoch,\n"
        "    )\n",
        "    return state is not None and state.producer_id == producer.producer_id\n",
        TIMED_OUT,
    ),
    Mutant(
        "a transaction is ended with the epoch of a later one",
        "protocol/transaction.py",
        "                producer_epoch=producer.producer_epoch,\n                committed=commit,\n",
        "                producer_epoch=producer.producer_epoch + 1,\n                committed=commit,\n",
        TWO_RUNS,
    ),
    Mutant(
        "a state that was aborted counts",
        "state/offset_syncs.py",
        "            if is_aborted or batch.is_control:\n",
        "            if batch.is_control:\n",
        VIOLATED_GATE,
    ),
)

TAKING_OVER = (
    Mutant(
        "a flow that is closed may begin",
        "state/generation.py",
        "    if reason and not added.closes and added.reopens != reason:\n",
        "    if not reason and added.reopens != reason:\n",
        ("tests/kafka/test_takeover.py::test_a_flow_that_was_given_back_is_not_mirrored",),
    ),
    Mutant(
        "a new generation forgets the positions",
        "state/generation.py",
        "    positions = assign({**known, **new}, slots, keep=same_slots and bool(states))\n",
        "    positions = assign(new, slots, keep=same_slots and bool(states))\n",
        TWO_RUNS,
    ),
    Mutant(
        "a group of a topic without a remote topic is given place 0",
        "translation/awaited.py",
        "        elif remote not in bounds:\n            found[key] = PositionReason.NO_REMOTE\n"
        "        elif bounds[remote][1]",
        "        elif remote in bounds and bounds[remote][1]",
        (f"{CHECKPOINTS}::test_a_group_waits_for_a_remote_topic_and_others_go_on",),
    ),
    Mutant(
        "an error that ends an attempt ends the job",
        f"{MIRROR}/copy/slot_copy.py",
        "            may_pass = is_unauthorized(error) or error.code in (*ATTEMPT_OVER, ErrorCode.INVALID_RECORD)\n",
        "            may_pass = is_unauthorized(error)\n",
        (f"{EXACTLY_ONCE}::test_an_attempt_whose_sequence_a_broker_refuses_is_aborted_and_done_again",),
    ),
    Mutant(
        "groups of a closed flow are moved",
        "jobs/checkpoint/group_sync.py",
        "        if commits:  # a failover may have moved",
        "        if False:  # a failover may have moved",
        (f"{CHECKPOINTS}::test_a_flow_that_is_failed_over_while_its_checkpoint_job_runs_moves_no_group_any_more",),
    ),
    Mutant(
        "a generation counts as open before its states can be read",
        "state/generation.py",
        "{(flow.offset_syncs_topic, slot): ends[slot] + 1 for slot in producers},",
        "{},",
        ("tests/kafka/test_held_partitions.py::test_a_generation_is_open_once_every_reader_sees_it",),
    ),
    Mutant(
        "a mirror goes on one record late after a take-over",
        "jobs/migration/log_comparison.py",
        '        "upstream_next": int(source["offset"][upstream[-1]]) + 1 if len(upstream) else 0,\n',
        '        "upstream_next": int(source["offset"][upstream[-1]]) + 2 if len(upstream) else 0,\n',
        (f"{TAKEOVERS}::test_what_another_mirror_has_lost_repeated_or_mixed_in_is_found_and_written_down",),
    ),
)

PLANNING = (
    Mutant(
        "a topic created anew is taken for the one that was mirrored",
        f"{MIRROR}/planning/planner.py",
        "if key in positions and is_recreated(positions[key], ids[key])}\n",
        "if False}\n",
        (f"{LOSSES}::test_a_topic_created_anew_is_mirrored_from_its_first_record_where_the_flow_says_so",),
    ),
    Mutant(
        "a topic whose copy nobody has a position of is copied another time",
        f"{MIRROR}/planning/readiness.py",
        "            elif topic in occupied:\n",
        "            elif topic in occupied and not partitions:\n",
        (f"{MIRRORING}::test_a_lost_state_on_the_target_stops_the_flow",),
    ),
    Mutant(
        "a slot that waits for its rate rests as if it had failed",
        f"{MIRROR}/planning/stuck.py",
        " if slot not in waited}",
        "}",
        ("tests/unit/test_stuck.py::test_a_slot_that_waits_for_its_rate_does_not_rest_while_others_advance",),
    ),
    Mutant(
        "a coordinator that gives no answer as a job starts ends it for good",
        "protocol/transaction.py",
        "        if error.retriable and (not refused or ",
        "        if error.retriable and (False and ",
        (
            "tests/kafka/test_proxy_requests.py::test_a_target_whose_transaction_log_exists_is_not_refused_for_good_"
            "while_its_coordinator_is_away",
        ),
    ),
    Mutant(
        "a new partition changes its slot before its first commit is seen",
        "model/copy_plan.py",
        "    given = {**(planned_before or {}), **given}\n",
        "",
        (f"{PLANS}::test_a_new_partition_keeps_its_slot_though_what_that_has_committed_is_not_visible_yet",),
    ),
    Mutant(
        "a slot that has lost a position keeps the one that was read before",
        "model/merged_positions.py",
        "        if before != self._owned[slot]:\n",
        "        if before < 0:\n",
        ("tests/unit/test_merged_positions.py",),
    ),
    Mutant(
        "the states of an interrupted start are followed one by one",
        "model/merged_positions.py",
        "        if len({state.generation for state in states.values()}) > 1:\n",
        "        if not states:\n",
        ("tests/unit/test_merged_positions.py",),
    ),
    Mutant(
        "a state that has gone back is followed",
        "model/merged_positions.py",
        " or position.order < known.order)",
        ")",
        ("tests/unit/test_merged_positions.py",),
    ),
    Mutant(
        "an idle partition whose remote topic was created anew is passed over",
        f"{MIRROR}/planning/planner.py",
        '            or (known.target_topic_id and known.target_topic_id != remote_ids.get(known.target_topic, ""))\n',
        "",
        ("tests/unit/test_planner_work.py",),
    ),
    Mutant(
        "an idle partition whose topic was created anew is passed over",
        f"{MIRROR}/planning/planner.py",
        "            or (known.topic_id and known.topic_id != ids[key[0]])\n",
        "",
        ("tests/unit/test_planner_work.py",),
    ),
    Mutant(
        "a new planner places a partition that a slot may have begun already",
        f"{MIRROR}/planning/planner.py",
        "        is_placing = self._is_settled or not unplaced\n",
        "        is_placing = True\n",
        (
            f"{EXACTLY_ONCE}::test_a_new_planner_places_no_partition_that_a_slot_may_have_begun_by_a_commit_that_can_"
            "not_be_read_yet",
        ),
    ),
    Mutant(
        "the flow's own records are another program's where their positions can't be read yet",
        f"{MIRROR}/planning/readiness.py",
        "        is_passing = bool(occupied) and not is_settled()\n",
        "        is_passing = False\n",
        (
            f"{EXACTLY_ONCE}::test_a_new_planner_places_no_partition_that_a_slot_may_have_begun_by_a_commit_that_can_"
            "not_be_read_yet",
        ),
    ),
    Mutant(
        "a job waits without a word while its states have gone back",
        f"{MIRROR}/job.py",
        "        if plan.generation < self._generation:  # all opening states could be read before the first plan\n",
        "        if plan.generation < self._generation:\n            return False\n        if not plan.generation:\n",
        (f"{EXACTLY_ONCE}::test_a_target_whose_states_go_back_behind_the_generation_of_a_job_is_named",),
    ),
    Mutant(
        "a first start that dies half-way forgets the start offsets of other slots",
        "state/generation.py",
        " if reopened else new.keys() & belonging\n",
        "\n",
        (f"{EXACTLY_ONCE}::test_an_interrupted_first_start_forgets_no_start_offset",),
    ),
    Mutant(
        "a take-over that dies half-way forgets the start offsets of other slots",
        "state/generation.py",
        " if reopened else new.keys() & belonging\n",
        "\n",
        ("tests/kafka/test_takeover.py::test_a_takeover_that_died_half_way_is_completed_by_the_next",),
    ),
    Mutant(
        "a job takes its own opening state for that of a newer job",
        "state/generation.py",
        "        if newest > generation and not (is_own and is_plain):\n",
        "        if newest > generation and not (is_own and not is_plain):\n",
        (
            f"{EXACTLY_ONCE}::test_a_start_between_whose_slots_an_attempt_of_an_older_job_comes_opens_the_next_generation",
        ),
    ),
    Mutant(
        "a state of a later version, with fields that this one does not know, is no known error",
        "model/slot.py",
        "        except (TypeError, LookupError, ValueError, AttributeError):\n",
        "        except (LookupError, ValueError, AttributeError):\n",
        ("tests/unit/test_older_versions.py::test_a_field_of_a_later_version_is_refused_by_name_and_not_ignored",),
    ),
    Mutant(
        "producers whose list was deleted count as local ones",
        "state/provenance.py",
        "            if any(snapshots.values()):\n",
        "            if snapshots:\n",
        ("tests/unit/test_provenance.py::test_a_list_of_producers_that_was_deleted_lets_no_batch_pass_as_a_local_one",),
    ),
    Mutant(
        "of two positions the one that is behind counts",
        "model/slot.py",
        "            if known is None or position.order >= known.order:\n",
        "            if known is None or position.order <= known.order:\n",
        (f"{PLANS}::test_merged_positions_are_the_furthest_and_owned_as_the_newest_generation_says",),
    ),
)

TRANSLATING = (
    Mutant(
        "a group is put one record too far by the ledger",
        "translation/sql_join.py",
        "greatest(0, upstream_offset - next_run.upstream_start)\n",
        "greatest(0, upstream_offset - next_run.upstream_start + 1)\n",
        (f"{TRANSLATION}::test_sql_and_definition_agree_for_every_offset_of_random_maps",),
    ),
    Mutant(
        "a group is put one record too far by the runs in memory",
        "translation/sql_join.py",
        "        else run.downstream_start + max(0, offset - run.upstream_start),\n",
        "        else run.downstream_start + max(0, offset - run.upstream_start + 1),\n",
        (f"{TRANSLATION}::test_runs_at_hand_give_the_same_rows_as_sql",),
    ),
    Mutant(
        "a group past what is mirrored counts as exact",
        "translation/sql_join.py",
        "      AND NOT (upstream_offset <= upstream_next AND",
        "      AND NOT (upstream_offset <= log_end AND",
        (f"{TRANSLATION}::test_every_status",),
    ),
    Mutant(
        "a group of a log that has begun anew is moved back to the runs of the former one",
        "translation/sql_join.py",
        "    greatest(coalesce(e.last_run.downstream_end, 0), coalesce(m.resumed_at, 0)) AS ledger_end,\n",
        "    coalesce(e.last_run.downstream_end, 0) AS ledger_end,\n",
        (f"{TRANSLATION}::test_without_a_run_of_the_present_log_a_place_is_behind_all_that_is_mirrored_or_unknown",),
    ),
    Mutant(
        "a topic that was created anew is translated by the map of the former one",
        "translation/awaited.py",
        "    return is_another(position.topic_id, topic_id)\n",
        "    return False\n",
        (f"{LOSSES}::test_a_topic_created_anew_is_mirrored_from_its_first_record_where_the_flow_says_so",),
    ),
    Mutant(
        "a log that ends before what is mirrored of it is translated",
        "translation/awaited.py",
        "log_end < mirrored_to else None\n",
        "log_end < 0 else None\n",
        (f"{LOSSES}::test_a_partition_that_has_lost_its_whole_log_is_noticed_and_no_group_goes_back",),
    ),
    Mutant(
        "a group is given place 0 in a remote partition that another program has filled",
        "translation/awaited.py",
        "        elif bounds[remote][1] and not flow.topics_shared:\n"
        "            found[key] = PositionReason.NOT_BEGUN\n",
        "",
        (f"{CHECKPOINTS}::test_a_group_waits_for_a_remote_topic_and_others_go_on",),
    ),
    Mutant(
        "an offset that has expired on the source stays in the history",
        "jobs/checkpoint/job.py",
        "        ended = history.ended({row.key for row in synced}, {*gone})\n",
        "        ended: list[GroupKey] = []\n",
        (f"{CHECKPOINTS}::test_what_ends_on_the_source_ends_in_the_next_cycle_and_no_failover_moves_it",),
    ),
    Mutant(
        "a plan passes over what is before the first mirrored record",
        f"{FAILOVER}/losses.py",
        "  greatest(0, coalesce(s.first_start - s.from, 0) - coalesce(l.covered, 0)) AS before_mirror,\n",
        "  0L AS before_mirror,\n",
        EVERY_BLOCK,
    ),
    Mutant(
        "a plan holds groups that their owners have moved back",
        f"{FAILOVER}/plan.py",
        "        and not is_rewound\n",
        "",
        PLAN_SAYS,
    ),
    Mutant(
        "a plan takes every group that is ahead for one that its owner has moved back",
        f"{FAILOVER}/planner.py",
        "            and before.downstream_offset == line.target_offset\n",
        "",
        PLAN_SAYS,
    ),
    Mutant(
        "changes of positions confirm nothing, only recorded cycles do",
        "jobs/checkpoint/group_positions.py",
        '    times = finished.union(ledger.of_flow("checkpoints", flow).select("created_at"))\n',
        "    times = finished\n",
        (
            "tests/spark/test_group_positions.py::test_a_position_is_confirmed_by_the_newest_cycle_also_if_the_job_was_"
            "killed_before_it_had_recorded_one",
        ),
    ),
    Mutant(
        "a plan passes over what was lost ahead of a group",
        f"{FAILOVER}/losses.py",
        "  coalesce(l.lost, 0) AS lost,",
        "  0L AS lost,",
        EVERY_BLOCK,
    ),
    Mutant(
        "a plan passes over what retention has deleted on the target",
        f"{FAILOVER}/losses.py",
        "coalesce(e.expired, 0) AS expired\n",
        "0L AS expired\n",
        EVERY_BLOCK,
    ),
    Mutant(
        "ends of a log that was seen before a reset count as lag",
        "ledger/sql/lag.sql",
        "AND (e.resets IS NULL OR c.created_at > array_max(e.resets).committed_at)",
        "",
        ("tests/spark/test_views.py::test_ends_that_were_seen_before_a_reset_are_of_another_log",),
    ),
    Mutant(
        "a run guesses whether its source is alive",
        f"{FAILOVER}/plan.py",
        '        if values["mode"] == FailoverMode.RUN and values["source"] == AUTO and not is_failback:\n',
        "        if False:\n",
        ("tests/unit/test_failover_plan.py::test_what_is_no_choice_is_refused",),
    ),
    Mutant(
        "runs that a reset has made void are in the map of the ledger",
        "translation/sql_join.py",
        "    x -> x.from_offset)), r.upstream_end) AS limit\n",
        "    x -> x.from_offset + 1000)), r.upstream_end) AS limit\n",
        (f"{TRANSLATION}::test_what_a_reset_has_made_void_is_not_in_the_map_that_holds",),
    ),
    Mutant(
        "a reset is not heeded in the runs in memory",
        "model/recent_runs.py",
        "                if gap.kind in RESETS:\n                    self._begin(key, gap.incarnation + 1)\n",
        "                if gap.kind in RESETS:\n                    pass\n",
        (f"{RECENT}::test_a_reset_voids_what_was_mapped_before",),
    ),
    Mutant(
        "runs that a reset has made void are among those in memory",
        "model/recent_runs.py",
        "        if incarnation < window.incarnation:\n",
        "        if incarnation < 0:\n",
        (f"{RECENT}::test_a_reset_voids_what_was_mapped_before",),
    ),
    Mutant(
        "a hole in the runs in memory is passed over",
        "model/recent_runs.py",
        "        if window and start > window.covered_to:\n",
        "        if window and start > window.covered_to + 1_000_000:\n",
        (f"{RECENT}::test_behind_a_hole_nothing_older_is_answered_about",),
    ),
    Mutant(
        "states come into memory in any order of their generations",
        "model/recent_runs.py",
        '            states, key=attrgetter("generation")\n',
        '            states, key=attrgetter("slot")\n',
        (
            f"{RECENT}::test_a_former_owner_whose_states_reach_further_back_says_nothing_about_a_partition_that_is_"
            "elsewhere_now",
        ),
    ),
    Mutant(
        "runs in memory that end before the flow does are asked",
        "model/recent_runs.py",
        "position is None or window is None or not window.reaches(position) or",
        "position is None or window is None or",
        (f"{RECENT}::test_nothing_is_answered_that_does_not_reach_to_where_the_flow_is",),
    ),
    Mutant(
        "an emptied ledger is not noticed",
        "ledger/store.py",
        '        return syncs <= {(row["sync_partition"], row["sync_offset"]) for row in found}\n',
        "        return True\n",
        (
            f"{EXACTLY_ONCE}::test_a_table_of_the_map_that_is_emptied_while_its_stream_runs_is_whole_again_within_seconds_of_appends",
        ),
    ),
    Mutant(
        "rows that were appended behind a hole hide it",
        "ledger/store.py",
        "{*checked.items(), *last.items()}",
        "{*last.items()}",
        (
            f"{EXACTLY_ONCE}::test_a_table_of_the_map_that_is_emptied_while_its_stream_runs_is_whole_again_within_seconds_of_appends",
        ),
    ),
    Mutant(
        "a run with an impossible length is folded, so that nobody sees it",
        "ledger/folding.py",
        'F.when(~is_plain, F.col("upstream_start"))',
        'F.lit(None).cast("bigint")',
        (FOLDED,),
    ),
    Mutant(
        "losses are folded with gaps that are none",
        "ledger/folding.py",
        "F.when(is_alone, F.struct(",
        "F.when(F.lit(False), F.struct(",
        (FOLDED,),
    ),
    Mutant(
        "a folded row is taken for one run",
        "ledger/views.py",
        "        if folded and name in UNFOLDED:\n",
        "        if name in UNFOLDED:\n",
        (FOLDED, "tests/spark/test_views.py::test_a_view_can_be_read_without_being_there"),
    ),
    Mutant(
        "runs that the ledger has already are written again",
        "ledger/delta/delta_tables.py",
        "s ON ({bounds}) AND {same} ",
        "s ON false AND ({bounds}) AND {same} ",
        (f"{LEDGER}::test_records_that_come_twice_change_nothing",),
    ),
)

MOVING_GROUPS = (
    Mutant(
        "a group in use is touched",
        "jobs/checkpoint/target_groups.py",
        "    if not group.is_idle:\n",
        "    if group is None:\n",
        (f"{CHECKPOINTS}::test_a_group_that_somebody_uses_on_the_target_is_not_touched",),
    ),
    Mutant(
        "a group that is ahead on the target is moved back",
        "jobs/checkpoint/target_groups.py",
        "    if current is None or current < offset:\n",
        "    if current is None or current != offset:\n",
        (f"{CHECKPOINTS}::test_a_group_is_never_moved_back_unless_its_owner_moved_it_back",),
    ),
    Mutant(
        "groups are moved though the gate failed",
        "jobs/checkpoint/job.py",
        '        require(results, f"flow {self.flow.name}, cycle {cycle_id}", consequence)\n',
        "",
        (f"{CHECKPOINTS}::test_a_violated_gate_touches_no_group_and_is_stored",),
    ),
)

HOSTILE_DATA = (
    Mutant(
        "a record that was rejected for its size is sent again",
        f"{COPY}/source_reader.py",
        "            and stretch.record_id(batch.base_offset) not in self.limits.refused\n",
        "",
        (f"{LOSSES}::test_a_lone_record_larger_than_the_remote_topic_allows_by_then_stops_the_flow_or_is_left_out",),
    ),
    Mutant(
        "a lack of memory counts as corruption",
        "protocol/batches/codecs.py",
        "zstandard.ZstdError, snappy.UncompressError,",
        "zstandard.ZstdError, snappy.UncompressError, MemoryError,",
        ("tests/unit/test_codecs.py::test_a_lack_of_memory_is_not_a_corrupt_batch",),
    ),
    Mutant(
        "a batch is opened whatever it becomes",
        "protocol/batches/codecs.py",
        "        found += member.decompress(payload, limit_bytes + 1 - len(found))\n",
        "        found += member.decompress(payload)\n",
        ("tests/unit/test_codecs.py::test_a_small_batch_that_becomes_a_large_one_takes_no_more_memory_than_allowed",),
    ),
    Mutant(
        "a batch with a wrong length is passed over",
        "protocol/batches/record_batch.py",
        "                if stop > end and not is_broken:\n",
        "                if stop > end or is_broken:\n",
        (f"{BATCHES}::test_a_length_that_cannot_be_right_is_a_batch_that_is_not_whole_and_the_last_one",),
    ),
)

THROTTLED = "tests/kafka/test_throttling.py::test_a_throttled_backlog_arrives_without_an_attempt_in_vain"

FIELD_CONDITIONS = (
    Mutant(
        "a batch that a line has damaged is a loss at once",
        f"{COPY}/source_reader.py",
        "if self._may_be_whole(stretch, batch, damage):",
        "if not batch.raw:",
        DAMAGED,
    ),
    Mutant(
        "a state is believed though its CRC is wrong",
        "protocol/log_reader.py",
        "batch.is_whole if even_damaged else batch.crc_is_right",
        "batch.is_whole",
        (f"{REQUESTS}::test_a_damaged_batch_is_an_error_where_its_contents_count",),
    ),
    Mutant(
        "a lost administrative request holds up those behind it",
        "protocol/admin.py",
        '            "socket.timeout.ms": self._socket_timeout_ms,\n',
        "",
        (f"{REQUESTS}::test_a_lost_answer_to_an_administrative_request_costs_one_attempt",),
    ),
    Mutant(
        "one administrative request may take all of the time in which a job starts",
        "protocol/admin.py",
        "start_timeout_ms // 2",
        "start_timeout_ms",
        (f"{REQUESTS}::test_a_lost_answer_to_an_administrative_request_leaves_a_job_time_to_start",),
    ),
    Mutant(
        "a checkpoint job ends where the source is out of reach for longer than it takes to connect",
        "jobs/checkpoint/offset_source.py",
        ").connect(again=True)",
        ").connect()",
        (
            f"{REQUESTS}::test_a_checkpoint_job_waits_for_clusters_that_are_out_of_reach_for_longer_than_it_takes_to_"
            "connect",
        ),
    ),
    Mutant(
        "a request to a throttled connection fails",
        "protocol/network/frames.py",
        "        if not connection.connected or not (connection.paused or connection._request_buffer):\n",
        "        if True:\n",
        (THROTTLED,),
    ),
    Mutant(
        "throttled time is not counted",
        "protocol/network/frames.py",
        "        self.throttled_s += min(seconds, now - self._throttled_until)\n",
        "        self.throttled_s += 0 * seconds\n",
        (THROTTLED,),
    ),
    Mutant(
        "a partition that does not advance is not noticed where plans take turns",
        f"{MIRROR}/planning/stuck.py",
        "        self._began |= begins\n",
        "        self._began = begins\n",
        ("tests/unit/test_stuck.py::test_a_partition_that_does_not_advance_is_noticed_also_where_plans_take_turns",),
    ),
    Mutant(
        "a plan is made before the marker of the last commit is in the log",
        f"{MIRROR}/planning/stuck.py",
        "        while self._is_behind(found := read()) and",
        "        while (found := read()) is None and",
        ("tests/unit/test_stuck.py::test_what_was_committed_is_waited_for_as_its_marker_may_not_be_in_the_log_yet",),
    ),
    Mutant(
        "what a socket has taken of a piece is sent again",
        "protocol/network/frames.py",
        "            waiting[0] = waiting[0][sent:]\n",
        "            pass\n",
        ("tests/unit/test_produce_request.py::test_pieces_are_sent_in_order_as_far_as_the_socket_takes_them",),
    ),
    Mutant(
        "a silent broker is asked like any other",
        "protocol/network/frames.py",
        "        return bool(now > max(sent_at, conn.transport.last_read) + SILENT_S)\n",
        "        return False\n",
        ("tests/kafka/test_held_partitions.py::test_another_broker_is_asked_while_one_is_silent",),
    ),
    Mutant(
        "a connection has the password of the start",
        "protocol/network/frames.py",
        "                self.config.update(security)\n",
        "                pass\n",
        ("tests/kafka/test_network.py::test_a_rotated_password_is_used_by_every_connection_of_a_job_that_runs",),
    ),
    Mutant(
        "a Fetch is answered by whoever thinks it is the leader",
        "protocol/requests/fetch.py",
        "current_leader_epoch=epoch_of(topics, topic, index)",
        "current_leader_epoch=-1",
        (
            "tests/kafka/test_leader_epochs.py::test_a_broker_of_another_leader_epoch_refuses_and_metadata_are_read_again",
        ),
    ),
    Mutant(
        "late metadata take back a leader",
        "protocol/requests/metadata.py",
        "        newer = {index for index, epoch in known.epochs.items() if epoch > self.epochs.get(index, epoch)}\n",
        "        newer = set()\n",
        ("tests/unit/test_cluster.py::test_metadata_of_a_broker_that_is_behind_take_no_leader_back",),
    ),
    Mutant(
        "a state may stand behind others that were not read",
        "state/fencing.py",
        "    if offset != after + sequence:\n",
        "    if False:\n",
        (f"{EXACTLY_ONCE}::test_a_state_that_stands_behind_more_than_was_read_is_not_committed",),
    ),
    Mutant(
        "an interrupted micro-batch leaves its transactions open",
        f"{MIRROR}/micro_batch.py",
        "        except KeyboardInterrupt:\n            self._abort(slots)\n            raise\n",
        "        except KeyboardInterrupt:\n            raise\n",
        (f"{EXACTLY_ONCE}::test_an_interrupt_in_a_micro_batch_aborts_its_transactions",),
    ),
    Mutant(
        "records behind the last stable offset are not looked for",
        f"{MIRROR}/planning/uncommitted.py",
        "high.get(key, offset) > offset}",
        "False}",
        (f"{MIRRORING}::test_an_open_transaction_on_the_source_is_waited_for_and_after_a_while_named",),
    ),
    Mutant(
        "a topic that can have no remote name stops the flow",
        f"{MIRROR}/job.py",
        "        if found and len(unnamed) == len(found):\n",
        "        if unnamed:\n",
        (f"{MIRRORING}::test_a_topic_whose_remote_name_is_too_long_holds_back_only_itself",),
    ),
    Mutant(
        "a TLS handshake has no deadline",
        "protocol/network/frames.py",
        "                await self._net.wait_read(self._sock, timeout_at=timeout_at)\n",
        "                await self._net.wait_read(self._sock)\n",
        ("tests/kafka/test_silence.py::test_a_port_that_says_nothing_ends_the_job_within_the_connect_timeout",),
    ),
    Mutant(
        "a transaction that another job has ended is a failed request",
        "protocol/transaction.py",
        "        if worst.code in TRANSACTION_OVER or is_unauthorized(worst):\n",
        "        if is_unauthorized(worst):\n",
        ("tests/kafka/test_faults.py::test_a_target_with_the_older_transaction_protocol_is_mirrored_to_as_well",),
    ),
    Mutant(
        "the first partitions of a backlog come first",
        f"{COPY}/fetcher.py",
        "        self._order[key] = self._order.pop(key)\n",
        "        self._order = dict.fromkeys(sorted(self._order))\n",
        (f"{MIRRORING}::test_all_partitions_of_a_backlog_advance_together",),
    ),
    Mutant(
        "a Produce request has a batch of every partition",
        f"{COPY}/target_writer.py",
        "            has_room = not batches or sizes.get(where, 0) + size <= REQUEST_BYTES\n",
        "            has_room = True\n",
        ("tests/unit/test_target_writer.py::test_a_request_is_bounded_and_each_partition_keeps_its_order",),
    ),
    Mutant(
        "a ledger that was away once is given up",
        f"{MIRROR}/ledger_keeper.py",
        "if self._away is None or self._clock() >= self._away.not_before:",
        "if self._away is None:",
        (
            f"{EXACTLY_ONCE}::test_a_full_warehouse_stops_no_copy_but_a_run_fails_at_its_end_and_the_ledger_is_whole_"
            "once_there_is_room",
        ),
    ),
    Mutant(
        "the ledger's stream takes a state of a later format for one without runs",
        "model/slot.py",
        "        if version not in READ_VERSIONS:\n",
        "        if version is None:\n",
        (f"{LEDGER}::test_a_record_of_a_later_format_is_refused_by_its_number_and_nothing_of_it_is_stored",),
    ),
    Mutant(
        "a checkpoint job dies of a column that a later version has added",
        "ledger/checkpoint_row.py",
        "for name, value in row.asDict().items() if name in known}",
        "for name, value in row.asDict().items()}",
        (
            "tests/unit/test_older_versions.py::test_a_row_of_checkpoints_of_a_later_version_is_read_as_far_as_it_is_"
            "known",
        ),
    ),
    Mutant(
        "tables of an earlier version are changed by the job that comes first",
        "ledger/delta/delta_tables.py",
        "        if not upgrade:\n",
        "        if False:\n",
        (
            f"{LEDGER}::test_tables_of_an_earlier_version_are_refused_until_they_are_upgraded_and_its_jobs_go_on_"
            "afterwards",
        ),
    ),
    Mutant(
        "a table gaps that was emptied apart stays empty",
        "ledger/store.py",
        'return last if logs.filter("span > held OR incarnation > 0").isEmpty() else {}',
        "return last",
        (NEW_TOPIC,),
    ),
    Mutant(
        "groups are placed by a map without its resets",
        "translation/group_cache.py",
        "            if without_reset(self.incarnations, resumed):",
        "            if False:",
        (NEW_TOPIC,),
    ),
    Mutant(
        "a failover plan trusts a map without its resets",
        f"{FAILOVER}/planner.py",
        " and (line.topic, line.partition) not in self._situation.emptied",
        "",
        (NEW_TOPIC,),
    ),
    Mutant(
        "a topic that is never mirrored fails no verification",
        "jobs/verification/logs.py",
        "            if one.oldest_ms is not None and one.oldest_ms < before_ms\n",
        "            if False\n",
        (
            "tests/kafka/test_verify.py::test_a_clean_mirror_passes_with_the_exact_number_of_records_and_the_same_"
            "version_says_the_same_later",
        ),
    ),
    Mutant(
        "a promoted topic is mirrored on",
        "jobs/mirror/planning/planner.py",
        "left_out = held.keys() | unfit | promoted",
        "left_out = held.keys() | unfit",
        (PROMOTION,),
    ),
    Mutant(
        "the checkpoint job moves groups on promoted topics",
        "translation/group_cache.py",
        'if position["topic"] in self._promoted:',
        "if False:",
        (PROMOTION,),
    ),
    Mutant(
        "a promotion is forgotten by the next transaction",
        "jobs/mirror/copy/slot_copy.py",
        "            promoted_topics=before.promoted_topics,\n",
        "",
        (PROMOTION,),
    ),
    Mutant(
        "a failover's plan leaves out access to groups and transactional ids",
        "protocol/acls.py",
        '        elif (acl.principal in mine or acl.permission == "DENY") and _is_wanted(flow, acl):',
        "        elif False:",
        (ACCESS,),
    ),
    Mutant(
        "a plan that tests a permission commits an offset",
        "protocol/probes/permissions.py",
        "NO_PARTITION, NO_PRODUCER_ID = 2**31 - 1, 2**62",
        "NO_PARTITION, NO_PRODUCER_ID = 0, 2**62",
        (
            "tests/kafka/test_permissions.py::test_a_plan_names_the_permissions_that_a_failover_would_lack_and_tests_them_"
            "without_any_change",
        ),
    ),
    Mutant(
        "a counting counts again what it has counted",
        "jobs/verification/bookmark.py",
        "known = {} if is_new else self.offsets",
        "known: Mapping[int, int] = {}",
        (COUNTS,),
    ),
    Mutant(
        "a record counts as missing before it is due",
        "ledger/sql/completeness.sql",
        "CASE WHEN c.counted_at <= l.of.due_at THEN c.source_records ELSE 0 END",
        "c.source_records",
        (COUNTS,),
    ),
    Mutant(
        "the records of a topic without a mirror are not counted",
        "jobs/verification/counting.py",
        "            if topic not in here:",
        "            if topic not in here or target_topic not in there:",
        (COUNTS,),
    ),
    Mutant(
        "counts of a log are compared with those of another",
        "jobs/verification/bookmark.py",
        "is_whole=not is_new and all(start[index] == known.get(index, 0) for index in bounds)",
        "is_whole=True",
        ("tests/kafka/test_counts.py::test_topics_whose_counts_need_not_be_equal_are_neutral",),
    ),
    Mutant(
        "what the target alone has deleted is not comparable",
        "jobs/verification/summarize.py",
        "    kinds[FindingKind.MISSING] += deleted_on_target\n",
        "",
        ("tests/kafka/test_verify.py::test_what_retention_has_taken_is_not_comparable_unless_the_source_keeps_it",),
    ),
    Mutant(
        "an append makes a table of its own where the files of one are gone",
        "ledger/delta/delta_tables.py",
        "        if not self._has_files(name):  # Delta would",
        "        if False:  # Delta would",
        ("tests/spark/test_store.py::test_an_append_to_a_table_whose_files_are_gone_is_an_error_and_makes_no_table",),
    ),
    Mutant(
        "each query carries all properties of Hadoop",
        "local/session.py",
        '        "spark.driver.extraClassPath": str(defaults_jar(root)),\n',
        "",
        (
            "tests/spark/test_session.py::test_queries_carry_few_of_hadoops_thousand_properties_and_files_work_without_the_others",
        ),
    ),
    Mutant(
        "maintenance overwrites how long an operator keeps the log of a table",
        "ledger/maintenance.py",
        "        if LOG_RETENTION not in properties:  # a table of an earlier version\n",
        "        if properties is not None:\n",
        ("tests/spark/test_maintenance.py::test_a_dry_run_counts_what_then_goes_and_the_tables_are_compacted",),
    ),
    Mutant(
        "after maintenance, a verification calls older copies unexpected",
        "jobs/verification/segments.py",
        'has_expired = row["upstream_start"] >= expired.get((row["topic"], row["partition"]), math.inf)',
        "has_expired = False",
        (EXPIRY,),
    ),
    Mutant(
        "an expired part of the map was never mirrored",
        "ledger/expiry.py",
        '            ledger.append_frame("expired_ranges", self.leaves)\n',
        "            pass\n",
        (EXPIRY,),
    ),
    Mutant(
        "a row expires without the rows of its state that it lies within",
        "ledger/expiry.py",
        '.filter("coalesce(reached <= start, true)")',
        "",
        ("tests/spark/test_maintenance.py::test_of_what_one_state_has_of_a_partition_either_all_goes_or_nothing",),
    ),
    Mutant(
        "a failback trusts an old source that has lost the end of a log",
        f"{FAILOVER}/lost_ends.py",
        "        if start < known[key].upstream_next\n",
        "        if False\n",
        (f"{LOSSES}::test_an_old_source_that_has_lost_what_was_mirrored_is_refused_until_the_loss_is_accepted",),
    ),
    Mutant(
        "a failback compares the ends of logs only, not the leader epochs",
        f"{FAILOVER}/lost_ends.py",
        "            found[key] = fetched.differs_from(position.leader_epoch, position.epoch_from) or 0\n",
        "            pass\n",
        (f"{LOSSES}::test_an_old_source_that_has_lost_what_was_mirrored_is_refused_until_the_loss_is_accepted",),
    ),
    Mutant(
        "a log that never had the epoch read last differs only from its end",
        "protocol/requests/fetch.py",
        "        return min(self.diverges_at, epoch_from)",
        "        return self.diverges_at",
        (f"{LOSSES}::test_an_election_back_to_what_was_before_another_is_noticed",),
    ),
    Mutant(
        "what an old source has lost is left out by the flow back",
        f"{MIRROR}/copy/source_reader.py",
        "excludes(batch) and not self._is_refilled(stretch, batch):",
        "excludes(batch):",
        (
            f"{LOSSES}::test_what_an_old_source_has_lost_is_copied_home_once_and_in_order_also_after_a_death_in_the_"
            "midst",
        ),
    ),
    Mutant(
        "any missing tombstone of a compacted topic is explained",
        "jobs/verification/classify.py",
        ' & (F.col(f"{side}.timestamp") < F.col(before))',
        "",
        ("tests/spark/test_compare.py",),
    ),
    Mutant(
        "SQL calls an offset of a shared topic exact",
        "ledger/sql/offset_map.sql",
        "is_spread OR is_shared AS is_without",
        "is_spread AS is_without",
        (
            "tests/spark/test_views.py::test_an_offset_of_a_topic_to_which_others_write_too_is_exact_only_if_they_do_no_"
            "longer",
        ),
    ),
    Mutant(
        "a merge that conflicts with another one is not made again",
        "ledger/delta/commits.py",
        "    for attempt in range(COMMIT_ATTEMPTS):\n",
        "    for attempt in range(1):\n",
        (f"{LEDGER}::test_two_writers_at_once_without_a_lock_insert_each_run_once",),
    ),
    Mutant(
        "rows that could not be written are forgotten",
        "ledger/journal.py",
        "                self._put_back(table, waiting[table])\n",
        "                pass\n",
        (
            "tests/unit/test_journal.py::test_rows_that_can_not_be_written_wait_in_their_order_and_the_oldest_leave_if_"
            "there_are_too_many",
        ),
    ),
    Mutant(
        "the newest records of a topic are looked for in the partitions that have enough",
        "transforms/preview.py",
        "start |= {key: max(first[key], end[key] - back) for key in growing if held.get(key[1], 0) < limit}",
        "growing = growing if sum(held.values()) < limit else set()",
        ("tests/kafka/test_preview.py::test_the_newest_committed_records_are_shown_before_and_after",),
    ),
    Mutant(
        "results of the gate stay in memory",
        "gate.py",
        "            self._kept.remove_key(key)\n",
        "            pass\n",
        ("tests/unit/test_gate.py::test_evaluations_leave_nothing_in_memory",),
    ),
)

CONNECTION = "tests/unit/test_connection.py"
STORES = (f"{CONNECTION}::test_a_clients_certificate_is_shown_from_every_kind_of_store",)
DIALECTS = (f"{CONNECTION}::test_one_connection_speaks_three_dialects",)

REACHING_CLUSTERS = (
    Mutant(
        "a client key is not shown by librdkafka",
        "protocol/clients/settings.py",
        """{"ssl.certificate.pem": tls.chain, "ssl.key.pem": tls.key} if tls.key else {}""",
        "{}",
        STORES,
    ),
    Mutant(
        "a client key is not shown in the data path",
        "protocol/clients/settings.py",
        "            _load_identity(context, alias, tls)\n",
        "            pass\n",
        STORES,
    ),
    Mutant(
        "a password of no text is given to Java",
        "config/security/tls.py",
        "if value or name not in PASSWORDS}",
        "if True}",
        (f"{CONNECTION}::test_a_password_of_no_text_is_none_to_java",),
    ),
    Mutant(
        "new connections of a running job have its first settings",
        "protocol/network/network_client.py",
        "            found = kafka_python(self.connection)\n        except",
        "            found = self._known_security or kafka_python(self.connection)\n        except",
        (
            "tests/kafka/test_logins.py::"
            "test_a_brokers_certificate_that_is_rotated_is_verified_by_the_new_connections_of_a_running_job",
        ),
    ),
    Mutant(
        "references are resolved before the login is parsed",
        "config/security/jaas.py",
        """TO_ESCAPE = {"\\\\": "\\\\\\\\", '"': '\\\\"',""",
        """TO_ESCAPE = {"\\\\": "\\\\\\\\",""",
        DIALECTS,
    ),
    Mutant(
        "the check of host names stays on in librdkafka",
        "protocol/clients/settings.py",
        '"https" if tls.checks_host else "none"',
        '"https"',
        DIALECTS,
    ),
    Mutant(
        "TLS versions are ignored",
        "config/security/properties.py",
        'if {version.strip() for version in value.split(",")} != TLS_VERSIONS:',
        "if False:",
        (f"{CONNECTION}::test_what_not_all_three_clients_can_do_with_tls_is_refused_by_name",),
    ),
    Mutant(
        "credentials of one role are used for all",
        "config/security/client_roles.py",
        "if value != value_of_other:",
        "if False:",
        ("tests/unit/test_configuration.py::test_separate_credentials_of_roles_and_flows_are_refused",),
    ),
    Mutant(
        "a store that is replaced is not read again",
        "config/security/key_store.py",
        "version=(stat.st_mtime_ns, stat.st_size, stat.st_ino)",
        "version=()",
        (f"{CONNECTION}::test_a_store_that_is_replaced_is_read_again",),
    ),
    Mutant(
        "a token is used until it expires",
        "protocol/clients/oauth_tokens.py",
        "            if known and now < known.renew_at_s:\n",
        "            if known and now < known.expires_at_s:\n",
        (f"{CONNECTION}::test_a_token_is_renewed_before_it_expires_and_used_on_while_the_endpoint_fails",),
    ),
    Mutant(
        "Java classes have their usual names on Databricks",
        "config/connection.py",
        "return SHADED + name if self.is_shaded else name",
        "return name",
        (f"{CONNECTION}::test_on_databricks_java_classes_have_the_names_of_that_runtime",),
    ),
    Mutant(
        "a client secret follows a redirect",
        "protocol/clients/oauth_tokens.py",
        "                allow_redirects=False,\n",
        "",
        ("tests/kafka/test_logins.py::test_a_token_that_is_not_to_be_had_is_explained_and_not_shown",),
    ),
    Mutant(
        "a job whose transactions another one has ended begins new ones at once",
        "jobs/mirror/job.py",
        "if any(failure.contested for failure in outcome.failures):",
        "if not outcome.failures:",
        (
            f"{EXACTLY_ONCE}::test_a_newer_job_takes_over_from_one_that_is_busy_also_where_its_start_takes_longer_than_"
            "micro_batches",
        ),
    ),
    Mutant(
        "an unexpected error of a leader ends what reads its log",
        "protocol/network/response_error.py",
        "error.retriable or code == ErrorCode.UNKNOWN",
        "error.retriable",
        (f"{REQUESTS}::test_a_log_is_read_on_after_an_unexpected_error_of_its_leader",),
    ),
    Mutant(
        "a broker that is restarted ends a job that creates topics",
        f"{MIRROR}/job.py",
        "retriable=may_pass)",
        "retriable=False)",
        ("tests/kafka/test_refusals.py::test_too_few_brokers_for_the_replication_factor_is_said",),
    ),
    Mutant(
        "freed memory is kept",
        "spare_memory.py",
        "            gc.collect()\n            self._trim(0)\n",
        "            gc.collect()\n",
        (
            "tests/unit/test_spare_memory.py::test_memory_that_was_freed_below_memory_in_use_is_given_back_once_in_a_while",
        ),
    ),
    Mutant(
        "what the last task of a burst has freed is kept until the next burst",
        "spare_memory.py",
        '    threading.Thread(target=made.trim_for_ever, name="spare memory", daemon=True).start()\n',
        "",
        (
            "tests/unit/test_spare_memory.py::test_a_worker_gives_the_memory_of_a_task_back_also_when_no_other_task_follows",
        ),
    ),
    Mutant(
        "the handler of SIGTERM sets the event that it has interrupted a look at",
        "notebook/runtime.py",
        "lambda *_: stop())",
        "lambda *_: job.stop())",
        ("tests/unit/test_stop_signal.py::test_sigterm_ends_a_job_that_looks_at_its_event_at_that_moment",),
    ),
    Mutant(
        "the buffers of a burst stay in a driver",
        "spare_memory.py",
        "            libc.mallopt(M_MMAP_THRESHOLD, DRIVER_LARGE_BYTES)\n",
        "",
        ("tests/unit/test_spare_memory.py::test_a_driver_gives_the_buffers_of_a_burst_back_at_once",),
    ),
    Mutant(
        "closed connections wait for the garbage collection that comes after days",
        "spare_memory.py",
        "            gc.collect()\n            self._trim(0)\n",
        "            self._trim(0)\n",
        (
            "tests/unit/test_spare_memory.py::test_objects_that_refer_to_each_other_are_freed_once_in_a_while_and_modules_are_not_looked_at",
        ),
    ),
    Mutant(
        "what a job has made stays after a later job of the process began",
        "spare_memory.py",
        "if not gc.get_freeze_count():",
        "if True:",
        (
            "tests/unit/test_spare_memory.py::test_what_a_job_has_made_is_freed_also_after_a_later_job_of_the_process_began",
        ),
    ),
    Mutant(
        "a group of the newer protocol counts as one without members",
        "protocol/group_requests.py",
        "if group.group_state in UNKNOWN_STATES:",
        "if group.group_state in ():",
        (f"{REQUESTS}::test_groups_are_deleted_where_they_are_and_members_keep_them",),
    ),
    Mutant(
        "a lost request uses up all of the time for the first contact",
        "protocol/network/frames.py",
        "            timeout_ms = min(timeout_ms, setup_ms)\n",
        "            pass\n",
        CONTACTS,
    ),
    Mutant(
        "a lost request of the bootstrap waits as long as one of a job that runs",
        "protocol/network/frames.py",
        '            conn.config["request_timeout_ms"] = setup_ms\n',
        "            pass\n",
        CONTACTS,
    ),
    Mutant(
        "a mirror job that starts gives up at the first failure that may pass",
        f"{MIRROR}/job.py",
        "starting.repeat(self._prepare)",
        "self._prepare()",
        STARTS,
    ),
    Mutant(
        "a checkpoint job that starts gives up at the first failure that may pass",
        "jobs/checkpoint/job.py",
        "starting.repeat(self._prepare)",
        "self._prepare()",
        STARTS,
    ),
    Mutant(
        "a lost answer takes all of the time in which a job starts",
        "spark/retries.py",
        "if not left_s and count >= self.least:",
        "if not left_s:",
        (
            "tests/unit/test_retries.py::test_attempts_that_took_all_of_the_time_by_themselves_are_followed_by_the_least_number_of_others",
        ),
    ),
    Mutant(
        "a step of a start is repeated without an end",
        "spark/retries.py",
        "                if not self.may_go_on(error) or self._is_stopped:\n",
        "                if not self.may_go_on(error) and not error.retriable:\n",
        RETRIES,
    ),
)

MUTANTS = (
    *COPYING,
    *COMMITTING,
    *TAKING_OVER,
    *PLANNING,
    *TRANSLATING,
    *MOVING_GROUPS,
    *HOSTILE_DATA,
    *FIELD_CONDITIONS,
    *SECURITY,
    *DATABRICKS,
    *MONITORING,
    *REACHING_CLUSTERS,
    *COMMANDS,
    *HOLDING,
    *ANSWERING,
)
