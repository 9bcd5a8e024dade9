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
RELOADED = ("tests/unit/test_options.py::test_a_changed_file_takes_effect_where_its_properties_are_live",)
REBUILT = ("tests/unit/test_rebuild.py",)

HOLDING = (
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
        " or other.committed_s >= one.committed_s:",
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
        "        kept = self._kept(read_keys, cycle_id, now)\n",
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
        "a run that is to copy all leaves behind what waits",
        "jobs/mirror/planning/planner.py",
        "        due = offered if self._until_now else self._linger.due(",
        "        due = self._linger.due(",
        (
            "tests/kafka/test_throttling.py::test_partitions_with_few_records_wait_but_others_and_a_run_with_an_end_do_not",
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
)
