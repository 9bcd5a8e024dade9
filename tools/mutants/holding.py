"""Mutants of what waits or is held, and of what must not hold up others or be left behind."""

from __future__ import annotations

from mutants.mutant import Mutant

HIDDEN = (
    "tests/kafka/test_permissions.py::test_a_topic_that_may_be_described_no_more_is_held_until_it_may_and_its_groups_"
    "keep_their_positions",
)
UNANSWERED = ("tests/unit/test_cluster.py::test_a_cluster_that_never_answered_is_closed_with_all_that_was_open",)
REBUILT = ("tests/unit/test_rebuild.py",)

HOLDING = (
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
