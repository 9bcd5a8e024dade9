"""Mutants of what waits or is held, and of what must not hold up others or be left behind."""

from __future__ import annotations

from mutants.mutant import Mutant

HIDDEN = (
    "tests/kafka/test_permissions.py::test_a_topic_that_may_be_described_no_more_is_held_until_it_may_and_its_groups_"
    "keep_their_positions",
)
UNANSWERED = ("tests/unit/test_cluster.py::test_a_cluster_that_never_answered_is_closed_with_all_that_was_open",)
PAIRED = (
    "tests/unit/test_cli.py::test_of_two_ways_the_one_that_was_failed_over_is_at_rest_while_the_other_one_mirrors",
)
STRAYS = ("tests/unit/test_cluster.py::test_a_large_snapshot_near_the_end_is_not_fetched_again_and_again",)
STRAYS_IN_LEDGER = (
    "tests/spark/test_store.py::test_what_a_state_has_of_a_partition_is_one_row_and_unfolds_to_a_row_for_each_run_and_gap",
)
REBUILT_PRODUCERS = ("tests/unit/test_provenance.py::test_a_record_of_another_program_is_named_by_its_place",)
NOT_OPENED = (
    "tests/unit/test_failover_plan.py::test_a_promotion_with_a_dead_source_says_what_is_left_to_do_on_the_flow_back",
)
COUNTED = ("tests/kafka/test_counts.py::test_each_record_is_counted_once_and_is_missed_when_it_is_due",)
WIDE_GROUP = (
    "tests/unit/test_cluster.py::test_the_offsets_of_a_wide_group_are_committed_in_portions_that_a_coordinator_takes",
)
RELOADED = ("tests/unit/test_options.py::test_a_changed_file_takes_effect_where_its_properties_are_live",)
REBUILT = ("tests/unit/test_rebuild.py",)
STAMPED = (
    "tests/kafka/test_permissions.py::test_a_remote_topic_that_stamps_records_anew_and_may_not_be_changed_is_held_and_"
    "the_others_go_on",
)
AWAY = (
    "tests/kafka/test_proxy_requests.py::test_a_remote_topic_that_needs_a_change_waits_for_the_controller_while_the_"
    "others_go_on",
)
ENDING = (
    "tests/unit/test_cluster.py::test_an_address_that_takes_connections_and_ends_them_is_tried_less_often_and_others_"
    "meanwhile",
)
APART = (
    "tests/kafka/test_topic_sync.py::test_a_property_that_the_target_refuses_keeps_no_other_away_and_costs_no_request_"
    "for_each_topic",
)

LONG_LOGS = ("tests/unit/test_fetcher.py",)
LOOKS = ("tests/kafka/test_target_writer.py",)
WAY_BACK = ("tests/unit/test_way_back.py",)

HOLDING = (
    Mutant(
        "the offsets of a wide group are committed at once, which its coordinator refuses for good",
        "protocol/group_offsets.py",
        "        if portion and size + needed > PORTION_BYTES:\n",
        "        if portion and size < 0:\n",
        WIDE_GROUP,
    ),
    Mutant(
        "another program's record counts as the state of a slot",
        "state/offset_syncs.py",
        "    return message.key == key_of(slot)\n",
        "    return True\n",
        STRAYS,
    ),
    Mutant(
        "another program's record counts as a state in the ledger",
        "ledger/offset_sync_rows.py",
        "records.filter(is_state).select(",
        "records.select(",
        STRAYS_IN_LEDGER,
    ),
    Mutant(
        "producers of other programs' records count as a flow's",
        "state/provenance.py",
        "                    if not is_state(message, key[1]):\n",
        "                    if message.key is None:\n",
        REBUILT_PRODUCERS,
    ),
    Mutant(
        "nobody is told that topics which went home are not mirrored",
        "jobs/failover/job.py",
        "        elif self._back is not None:\n",
        "        elif self._back is None:\n",
        NOT_OPENED,
    ),
    Mutant(
        "an hour beyond the year 9999 ends a counting",
        "jobs/verification/counting.py",
        'F.least(F.greatest(F.unix_millis("timestamp"), F.lit(FIRST_MS)), F.lit(LAST_MS))',
        'F.unix_millis("timestamp")',
        COUNTED,
    ),
    Mutant(
        "a topic that may not be described counts as deleted for counts, verifications, translations and failovers",
        "protocol/probes/hidden_topics.py",
        "        if not topic.leaders and topic.operations is not None",
        "        if topic.leaders and topic.operations is not None",
        HIDDEN,
    ),
    Mutant(
        "what was counted before stands for a topic that may not be described",
        "jobs/verification/counting.py",
        "mirrored - promoted - listed, HIDDEN",
        "set(), HIDDEN",
        HIDDEN,
    ),
    Mutant(
        "a topic that may not be described is never late",
        "jobs/verification/logs.py",
        "require_visible(self._source, self._flow, unseen, HIDDEN)",
        "require_visible(self._source, self._flow, set(), HIDDEN)",
        HIDDEN,
    ),
    Mutant(
        "the doctor names no topic that may not be described",
        "jobs/inspection/flow_checks.py",
        "connect_timeout_ms=at.timeout_ms), _mirrored(at))",
        "connect_timeout_ms=at.timeout_ms), set())",
        HIDDEN,
    ),
    Mutant(
        "a flow is at rest as soon as it was failed over, as the other way has mirrored before",
        "jobs/inspection/overview.py",
        " or other.state_s >= one.state_s:",
        ":",
        PAIRED,
    ),
    Mutant(
        "a rate lowered while the job runs is checked for one slot",
        "config/reload.py",
        "require_rates(new, self.slots)",
        "require_rates(new, 1)",
        RELOADED,
    ),
    Mutant(
        "a topic that may not be described vanishes",
        "jobs/mirror/planning/source_topics.py",
        "    if missing:\n",
        "    if not missing:\n",
        HIDDEN,
    ),
    Mutant(
        "a group in a topic that may not be described counts as deleted",
        "jobs/checkpoint/job.py",
        "        kept = self._kept(read_keys, unread, cycle_id, now)\n",
        "        kept: list[Checkpoint] = []\n",
        HIDDEN,
    ),
    Mutant(
        "the event loop of closed clusters stays open",
        "protocol/network/event_loop.py",
        "        if self._users == 0:\n",
        "        if self._users < 0:\n",
        UNANSWERED,
    ),
    Mutant(
        "the first of two clusters closes the event loop of both",
        "protocol/network/event_loop.py",
        "        if self._users == 0:\n",
        "        if self._users >= 0:\n",
        UNANSWERED,
    ),
    Mutant(
        "bytes that were not sent keep a closed connection open",
        "protocol/network/frames.py",
        "            transport._close()  # one with unsent bytes is still open\n",
        "            pass\n",
        UNANSWERED,
    ),
    Mutant(
        "a mirror job goes on without its session",
        "jobs/mirror/spark_engine.py",
        "            if (error := why_ended(self.spark, run.flow.name)) is not None:\n",
        "            if (error := why_ended(self.spark, run.flow.name)) is not None and not error.message:\n",
        ("tests/unit/test_plan_loop.py",),
    ),
    Mutant(
        "a mirror run ends well while its attempts fail",
        "jobs/mirror/plan_loop.py",
        "(self._failure or deadline is None or",
        "(deadline is None or",
        ("tests/unit/test_plan_loop.py",),
    ),
    Mutant(
        "a checkpoint run ends well without a cycle",
        "jobs/checkpoint/cycles.py",
        "(not retries.is_well or deadline is None or",
        "(deadline is None or",
        ("tests/unit/test_cycles.py",),
    ),
    Mutant(
        "a checkpoint run on Spark ends well without a cycle",
        "spark/query_loop.py",
        "(not self._retries.is_well or deadline is None or",
        "(deadline is None or",
        ("tests/spark/test_query_loop.py",),
    ),
    Mutant(
        "a checkpoint run on Spark ends well while its cycles fail",
        "spark/retries.py",
        "        self.is_well = False\n",
        "",
        ("tests/spark/test_query_loop.py",),
    ),
    Mutant(
        "a rate may be so low that slots look as if they failed",
        "config/flow.py",
        "        if 0 < rate < least:\n",
        "        if 0 < rate < 1:\n",
        ("tests/unit/test_throttle.py",),
    ),
    Mutant(
        "a backfill shares a micro-batch with topics that have a transform",
        "jobs/mirror/planning/turns.py",
        "        return _short(flow, backfill) if turn else others\n",
        "        return ranges\n",
        ("tests/unit/test_turns.py",),
    ),
    Mutant(
        "partitions with few records never wait",
        "jobs/mirror/planning/linger.py",
        "        if is_begun and now < first_seen + linger_ms / 1000:\n",
        "        if is_begun and now < first_seen:\n",
        ("tests/unit/test_linger.py",),
    ),
    Mutant(
        "a backlog waits after each plan that takes a part of it",
        "jobs/mirror/planning/linger.py",
        "            if seen is None or start >= seen.end:\n",
        "            if seen is None or start > seen.end - one.stable:\n",
        ("tests/unit/test_linger.py",),
    ),
    Mutant(
        "a partition that fails lets the others wait no longer",
        "jobs/mirror/planning/linger.py",
        "            if seen.since != CALLED:\n",
        "            if True:\n",
        ("tests/unit/test_linger.py",),
    ),
    Mutant(
        "a slot that fails is tried while the others linger",
        "jobs/mirror/planning/stuck.py",
        "        if not (chosen or lingering - resting):\n",
        "        if not chosen:\n",
        ("tests/unit/test_stuck.py::test_a_slot_that_fails_rests_also_while_the_others_linger",),
    ),
    Mutant(
        "a run that is to copy all leaves behind what waits",
        "jobs/mirror/planning/planner.py",
        "        due = offered if self._until_now else self._linger.due(",
        "        due = self._linger.due(",
        (
            "tests/unit/test_planner_work.py::"
            "test_a_run_with_an_end_lets_no_partition_linger_whose_leader_has_answered_late[True]",
        ),
    ),
    Mutant(
        "each look for a pause holds up the job while one is under way",
        "state/pause.py",
        " if began >= self._held_at + LOOK_S else 0.0)",
        ")",
        ("tests/unit/test_pause.py",),
    ),
    Mutant(
        "a ledger with any position gets no other one",
        "jobs/checkpoint/rebuild.py",
        "        elif at < newest:\n",
        "        elif known:\n",
        REBUILT,
    ),
    Mutant(
        "a group that was deleted long ago comes back",
        "jobs/checkpoint/rebuild.py",
        "        elif at < newest:\n",
        "        elif at < datetime.min:\n",
        REBUILT,
    ),
    Mutant(
        "records are copied to a topic that stamps them anew until the target has answered so",
        "jobs/mirror/job.py",
        "        plan = plan.without(unfit)\n",
        "        plan = plan.without(())\n",
        STAMPED,
    ),
    Mutant(
        "a topic that begins to stamp records anew is tried again and again",
        "jobs/mirror/topics/topology.py",
        "        self._hold_stamping(topics, refusals)\n        require_answers(refusals)\n",
        "        require_answers(refusals)\n",
        STAMPED,
    ),
    Mutant(
        "records are copied to a topic that would compress them anew while the controller is away",
        "jobs/mirror/topics/topology.py",
        " or (change.note in (NEEDED, NEEDED_SIZE) and is_away(error)):",
        ":",
        AWAY,
    ),
    Mutant(
        "a run with an end leaves a topic behind whose controller is away for a second",
        "jobs/mirror/planning/planner.py",
        "                or (self._unfit_since is not None and ",
        "                or (False and ",
        AWAY,
    ),
    Mutant(
        "an address that takes connections and ends them is tried without a pause",
        "protocol/network/frames.py",
        "        self.update_backoff(node_id)\n        failures, until, _ = self._backoff[node_id]\n",
        "        return\n        failures, until, _ = self._backoff[node_id]\n",
        ENDING,
    ),
    Mutant(
        "each property of each topic that a target refuses has a request of its own",
        "jobs/mirror/topics/change_maker.py",
        "        for alike in zip_longest(*apart):\n",
        "        for alike in [[change] for group in apart for change in group]:\n",
        APART,
    ),
    Mutant(
        "what a plan does not hold of long logs fills the responses",
        "jobs/mirror/copy/fetcher.py",
        "        return min(most_bytes, max(least_bytes, int(planned_bytes)))\n",
        "        return most_bytes\n",
        LONG_LOGS,
    ),
    Mutant(
        "partitions that trickle are asked for no more than their last records took",
        "jobs/mirror/copy/fetcher.py",
        " = size if goes_on else None\n",
        " = size\n",
        LONG_LOGS,
    ),
    Mutant(
        "a look for a pause is asked for twice in a plan",
        "state/pause.py",
        "        if self._under_way is None and self._clock() >= self._due:\n",
        "        if self._clock() >= self._due - LOOK_S:\n",
        ("tests/unit/test_pause.py",),
    ),
    Mutant(
        "a remote topic that may not be described any more ends a job that starts",
        "jobs/mirror/copy/target_ends.py",
        "            if is_unauthorized(error):\n",
        "            if is_unauthorized(error) and not asked:\n",
        (
            "tests/kafka/test_permissions.py::"
            "test_a_remote_topic_that_may_be_written_no_more_is_held_until_it_may_and_the_others_go_on",
        ),
    ),
    Mutant(
        "a transaction waits for all that others have written",
        "jobs/mirror/copy/target_writer.py",
        "(is_late or read_bytes > CHECKED_BYTES)",
        "(read_bytes > CHECKED_BYTES)",
        LOOKS,
    ),
    Mutant(
        "each attempt reads anew what failed ones have left behind the position",
        "jobs/mirror/copy/target_writer.py",
        "        return max(stretch.downstream_from, to) if is_same else stretch.downstream_from\n",
        "        return stretch.downstream_from\n",
        LOOKS,
    ),
    Mutant(
        "a batch that is larger than what its partition is asked for waits for a turn of its own",
        "jobs/mirror/copy/fetcher.py",
        "                self.limits.log_sizes[key] = None\n",
        "                pass\n",
        LONG_LOGS,
    ),
    Mutant(
        "records of failed attempts are read again by each look",
        "jobs/mirror/planning/readiness.py",
        "        start = max(start, known_end)\n",
        "        pass\n",
        LOOKS,
    ),
    Mutant(
        "what a look has read of another topic counts for the one of the same name",
        "jobs/mirror/planning/readiness.py",
        "known_log == log != UNKNOWN_LOG and known_end <= end:",
        "known_end <= end:",
        LOOKS,
    ),
    Mutant(
        "two flows undo each other's changes of a topic",
        "jobs/mirror/topics/way_back.py",
        "        if not states or is_closed(states):\n",
        "        if True:\n",
        WAY_BACK,
    ),
    Mutant(
        "a flow back that was closed keeps the topics",
        "jobs/mirror/topics/way_back.py",
        "        if not states or is_closed(states):\n",
        "        if not states:\n",
        WAY_BACK,
    ),
    Mutant(
        "what mirroring needs is left as it is where the flow back keeps the topic",
        "jobs/mirror/topics/topology.py",
        "                changes += due\n",
        "                changes += due if remote not in left else []\n",
        ("tests/kafka/test_policies.py::test_two_flows_that_keep_names_do_not_undo_each_others_changes_of_a_topic",),
    ),
)
