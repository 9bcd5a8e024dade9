"""Mutants of what is measured and shown while jobs run."""

from __future__ import annotations

from mutants.mutant import Mutant

LAG, TELEMETRY, OBJECTIVE = (f"tests/unit/test_{name}.py" for name in ("lag", "telemetry", "objective"))

MONITORING = (
    Mutant(
        "the age of a record is whatever its timestamp says",
        "model/partition_lag.py",
        "return min(max(now_s - timestamp_ms / 1000, least), largest)",
        "return now_s - timestamp_ms / 1000",
        (f"{LAG}::test_a_timestamp_counts_as_far_as_it_can_be_right",),
    ),
    Mutant(
        "an end that is forgotten makes bounds too narrow",
        "model/partition_lag.py",
        "while len(self._seen) > 1 and self._seen[1][0] <= offset:",
        "while len(self._seen) > 1 and self._seen[0][0] <= offset:",
        (f"{LAG}::test_what_is_forgotten_makes_bounds_wider_and_never_wrong",),
    ),
    Mutant(
        "a job that has ended leaves its lag as if it were measured on",
        "jobs/mirror/observation/lag_keeper.py",
        "(timedelta() if is_last else within)",
        "within",
        (f"{LAG}::test_an_idle_flow_writes_seldom_one_that_lags_always_and_a_failure_is_said_once",),
    ),
    Mutant(
        "a lag that is never measured is not noticed",
        "telemetry/job_telemetry.py",
        "metrics.lag_measured_seconds.labels(flow.name).set_to_current_time()",
        "pass",
        (f"{TELEMETRY}::test_what_has_not_happened_yet_is_0_and_a_lag_that_is_never_measured_can_be_noticed",),
    ),
    Mutant(
        "of too many partitions, any are shown",
        "telemetry/details.py",
        "sorted(partitions, key=lambda one: (-(one.lag_seconds or 0.0), -(one.lag or 0)))",
        "partitions",
        (f"{TELEMETRY}::test_details_are_off_unless_asked_for_and_bounded",),
    ),
    Mutant(
        "a job that hangs is healthy",
        "telemetry/health.py",
        "return self.age_s <= self._bound_s",
        "return True",
        (f"{TELEMETRY}::test_health_is_503_once_there_was_no_progress_for_the_bound",),
    ),
    Mutant(
        "the end of a job waits for a slow collector",
        "telemetry/otlp.py",
        "self._thread.join(LAST_PUSH_S)",
        "self._thread.join()",
        (f"{TELEMETRY}::test_a_collector_that_is_down_slow_or_refuses_is_said_once_and_waited_for_by_none",),
    ),
    Mutant(
        "a push that fails is logged each time",
        "telemetry/otlp.py",
        "if trouble and not self._trouble:",
        "if trouble:",
        (f"{TELEMETRY}::test_a_collector_that_is_down_slow_or_refuses_is_said_once_and_waited_for_by_none",),
    ),
    Mutant(
        "a failover moves the group of canaries",
        "config/flow.py",
        "return group in self.groups and not group.startswith(CANARY_PREFIX)",
        "return group in self.groups",
        (f"{OBJECTIVE}::test_a_canarys_group_is_synced_by_its_own_flow_and_moved_by_no_failover",),
    ),
    Mutant(
        "a canary that never arrives is not late",
        "jobs/mirror/observation/canary.py",
        "                self._judge(waited_s, is_late=True)\n",
        "",
        (f"{OBJECTIVE}::test_late_canaries_burn_the_objective_once_each_whether_they_arrive_or_not",),
    ),
)
