"""Mutants of what Databricks needs: readers without privileges, Spark Connect, and a ledger that is lost."""

from __future__ import annotations

from mutants.mutant import Mutant

OPENED = "tests/spark/test_views.py::test_a_view_of_somebody_else_stays_as_it_is_and_one_that_is_missing_is_named"
CONNECT = "tests/spark/test_connect.py"
REBUILT = (
    "tests/kafka/test_failover.py::test_with_source_and_ledger_lost_the_target_alone_tells_where_every_group_goes_on",
)

DATABRICKS = (
    Mutant(
        "a reader creates tables where the catalog keeps them",
        "ledger/delta/delta_tables.py",
        "        if self.warehouse:  # a session forgets its catalog\n",
        "        if True:\n",
        (OPENED,),
    ),
    Mutant(
        "a view of somebody else ends maintenance",
        "ledger/views.py",
        "            if not _exists(ledger, name):\n",
        "            if True:\n",
        (OPENED,),
    ),
    Mutant(
        "tables that exist are created again, which needs a privilege",
        "ledger/delta/delta_tables.py",
        "there = set() if self.warehouse else self.names()",
        "there = set()",
        (f"{CONNECT}::test_readers_need_no_more_than_select_and_views_are_made_by_maintenance",),
    ),
    Mutant(
        "tasks do not get the package of a checkout",
        "notebook/runtime.py",
        "        distribution.ship(spark)\n",
        "        pass\n",
        (f"{CONNECT}::test_tasks_find_the_package_that_a_notebook_of_a_checkout_ships",),
    ),
    Mutant(
        "of a rebuilt group, the oldest position counts",
        "protocol/mm2_topics.py",
        "            last[one.group, one.topic, one.partition] = one\n",
        "            last.setdefault((one.group, one.topic, one.partition), one)\n",
        REBUILT,
    ),
    Mutant(
        "a failover with a lost ledger finds no group",
        "jobs/failover/job.py",
        "            rebuild.rebuild_positions(self.ledger, self.flow, target)\n",
        "            pass\n",
        REBUILT,
    ),
)
