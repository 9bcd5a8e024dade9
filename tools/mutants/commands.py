"""Mutants of what operators type: pausing, looking, exit codes."""

from __future__ import annotations

from mutants.mutant import Mutant

PAUSES, LOOKS, PARSED = "tests/kafka/test_pause.py", "tests/kafka/test_inspection.py", "tests/unit/test_cli.py"
FOLLOWED = (f"{PAUSES}::test_running_jobs_follow_a_pause_and_go_on_after_it",)
STARTED = (f"{PAUSES}::test_a_job_that_starts_in_a_pause_waits_and_creates_nothing_unless_it_fails_over",)
CLOSED = (
    "tests/kafka/test_failover.py::test_with_the_alias_in_front_positions_go_home_by_the_map_of_either_direction",
)
JOINED = (
    "tests/kafka/test_failover.py::test_a_group_that_somebody_joins_between_plan_and_commit_is_refused_the_others_move_"
    "and_a_second_run_finishes",
)
REAPPLIED = (
    "tests/kafka/test_failback.py::test_what_was_written_to_a_topic_after_its_own_promotion_is_reapplied_once_with_the_"
    "rest",
)
UNDECIDED = (
    "tests/kafka/test_failback.py::test_records_that_come_while_a_failback_runs_or_that_a_transaction_hides_are_decided_"
    "about_first",
)
SILENT = (f"{LOOKS}::test_a_peer_that_says_nothing_costs_its_deadline_and_hides_no_other_flow",)

COMMANDS = (
    Mutant(
        "a running mirror job copies on in a pause",
        "jobs/mirror/planning/planner.py",
        "ranges = [] if pause else ranges",
        "ranges = ranges if pause else ranges",
        FOLLOWED,
    ),
    Mutant(
        "the checkpoint job moves groups in a pause",
        "jobs/checkpoint/group_sync.py",
        "if time.monotonic() < self._due or is_paused:",
        "if time.monotonic() < self._due:",
        FOLLOWED,
    ),
    Mutant(
        "a pause is read once only",
        "state/pause.py",
        "self._due = self._clock() + LOOK_S",
        'self._due = float("inf")',
        FOLLOWED,
    ),
    Mutant(
        "a failover waits for the end of a pause",
        "state/pause.py",
        "        if flow.ignores_pause:\n            return\n",
        "",
        STARTED,
    ),
    Mutant(
        "a pause that can't be understood is none",
        "state/pause.py",
        "    except (ValueError, KeyError, TypeError, OverflowError):\n        raise TargetError(",
        "    except (ValueError, KeyError, TypeError, OverflowError):\n        return None\n        raise TargetError(",
        (f"{PAUSES}::test_a_record_that_says_nothing_known_of_a_pause_stops_the_job",),
    ),
    Mutant(
        "a look waits for a peer that says nothing",
        "jobs/inspection/bounded.py",
        "running[key] = time.monotonic() + deadline_s",
        "running[key] = time.monotonic() + 60 * deadline_s",
        (f"{PARSED}::test_a_look_that_does_not_end_holds_up_no_other",),
    ),
    Mutant(
        "the worst flow comes last",
        "jobs/inspection/overview.py",
        "key=lambda one: (ORDER[one.condition], -(one.lag or 0), one.flow)",
        "key=lambda one: (-ORDER[one.condition], -(one.lag or 0), one.flow)",
        SILENT,
    ),
    Mutant(
        "states of another program pass the doctor",
        "jobs/inspection/flow_checks.py",
        '            yield _foreign(flow, f"topic {topic} on {flow.target} has records that are no states")\n'
        "            return\n",
        "            return\n",
        (f"{LOOKS}::test_doctor_knows_states_of_others_and_records_from_the_future",),
    ),
    Mutant(
        "a reader of uncommitted records is overlooked",
        "jobs/inspection/assessment/groups.py",
        "ahead=sum(offset > ends[key][1] for key, offset in here.items())",
        "ahead=0",
        (f"{LOOKS}::test_the_assessment_says_what_is_left_out_and_why_and_who_reads_uncommitted_records",),
    ),
    Mutant(
        "a fenced job ends like any error of the target",
        "cli/exit_code.py",
        "    (FencedError, ExitCode.FENCED),\n",
        "",
        (f"{PARSED}::test_each_kind_of_error_has_an_exit_code_of_its_own",),
    ),
    Mutant(
        "a flow that was failed over is not noted as closed",
        "jobs/failover/job.py",
        '                self.ledger.append("cycles", [Cycle.note(self.flow, CycleJob.CLOSE, done.generation)])\n',
        "                pass\n",
        CLOSED,
    ),
    Mutant(
        "a flow that can't be closed hides which groups were moved",
        "jobs/failover/job.py",
        "        is_recorded = self._is_concluded(done)  # before the flow is closed",
        "        is_recorded = False  # before the flow is closed",
        JOINED,
    ),
    Mutant(
        "what retention has deleted of the diverged tail is in no gap",
        "jobs/failover/divergence.py",
        "                    *deleted_stretches(tail.deleted_from, tail.from_offset, brought),\n",
        "",
        UNDECIDED,
    ),
    Mutant(
        "markers of what a flow had brought, which retention has deleted, are losses",
        "jobs/failover/divergence.py",
        "merged((first, last + 1) for first, last in brought)",
        "brought",
        ("tests/unit/test_failover_plan.py",),
    ),
    Mutant(
        "a flow that is opened again stops at what retention has deleted while it was closed",
        "jobs/failover/failback.py",
        "            self._pass_over(divergence, here, there, drops=False)\n",
        "",
        UNDECIDED,
    ),
    Mutant(
        "a generation begins at what was committed before an older job was fenced",
        "state/generation.py",
        "added if known == looked_at else beginning(known)",
        "added",
        (
            "tests/kafka/test_exactly_once.py::test_a_generation_begins_at_what_was_committed_by_the_time_its_slots_were_"
            "fenced",
        ),
    ),
    Mutant(
        "a flow that has never mirrored is not closed",
        "jobs/failover/job.py",
        "    if generation := begin_again(flow, target, beginning):\n        return generation\n",
        "    return begin_again(flow, target, beginning)\n",
        ("tests/kafka/test_failover.py::test_a_flow_that_has_never_mirrored_is_closed_by_a_failover_as_well",),
    ),
    Mutant(
        "the plan of a failback is GO though nobody has decided about diverged records",
        "jobs/failover/failback.py",
        "        diverged = 0 if self.decided else self.divergence.records\n",
        "        diverged = 0\n",
        UNDECIDED,
    ),
    Mutant(
        "the plan of a failback is GO though records are to be copied home",
        "jobs/failover/failback.py",
        '            "not_refilled": (self.to_refill,',
        '            "not_refilled": (0,',
        ("tests/unit/test_failover_plan.py::test_a_failback_is_no_go_until_all_is_home_as_decided",),
    ),
    Mutant(
        "a tail counts as re-applied whose topic is held",
        "jobs/failover/failback.py",
        "                self._require_reapplied(divergence, here, there)\n",
        "",
        REAPPLIED,
    ),
    Mutant(
        "a flow that was opened again stays noted as closed",
        "jobs/failover/failback.py",
        "Cycle.note(flow, CycleJob.OPEN, generation)",
        "Cycle.note(flow, CycleJob.CLOSE, generation)",
        CLOSED,
    ),
    Mutant(
        "SIGTERM ends a command as a defect would",
        "cli/app.py",
        "context.exit(ExitCode.TERMINATED)",
        "context.exit(ExitCode.DEFECT)",
        (f"{PARSED}::test_a_command_that_is_cut_short_has_a_code_and_prints_nothing",),
    ),
    Mutant(
        "a wrong option is no object for a machine",
        "cli/app.py",
        "if output.is_json() or _asks_for_json(words):",
        "if output.is_json():",
        (f"{PARSED}::test_a_wrong_option_is_an_object_too",),
    ),
)
