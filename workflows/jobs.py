"""The jobs: mirror, checkpoint, verify, failover and failback of each flow; maintain and report of the schema.

Mirror and checkpoint jobs run for ever, or on a schedule, or are paused, as is verify then. The others are scheduled;
failover and failback are started by hand. All but report need clusters that reach Kafka, so they are classic; report
reads tables only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from databricks.bundles.core import Resources

from workflows import compute
from workflows.settings import CATALOG, SCHEMA, Cadence, FlowSettings, Settings

REPORT_PACKAGES = ["matplotlib==3.11.2"]
LONGEST_RUN_S = 86_400  # a run that hangs would let all later ones of its schedule be skipped, without a word


@dataclass(frozen=True)
class Task:
    """One notebook of a job.

    Attributes:
        notebook: its name, and the key of the task.
        parameters: those that the job does not have; a job's parameter overrides a task's of the same name.
        retries: how often it is started again before the run fails; None where the job itself does that.
    """

    notebook: str
    parameters: Mapping[str, str]
    retries: int | None = 0
    retry_after_ms: int = 30_000

    def to_json(self) -> dict[str, Any]:
        retrying = (
            {"max_retries": self.retries, "min_retry_interval_millis": self.retry_after_ms} if self.retries else {}
        )
        return {
            "task_key": self.notebook,
            "notebook_task": {
                "notebook_path": f"notebooks/{self.notebook}.ipynb",
                "base_parameters": {"warehouse": "", **self.parameters},
            },
            **({"max_retries": 0} if self.retries == 0 else retrying),
        }


@dataclass(frozen=True)
class JobPlan:
    """A job before it is a resource.

    Attributes:
        name: the kind of job, and the first word of its resource key.
        description: what it does.
        tasks: its notebooks.
        flow: its flow; None for a job of the whole schema.
        parameters: defaults of parameters that an operator may change when it starts the job.
        timing: when it runs (`schedule` or `continuous`); empty for a job that is started by hand.
        is_single: whether it runs on one node.
        is_serverless: whether it runs on serverless compute.
        is_queued: whether a run waits for the one before; else it is skipped.
    """

    name: str
    description: str
    tasks: tuple[Task, ...]
    flow: FlowSettings | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    timing: Mapping[str, Any] = field(default_factory=dict)
    is_single: bool = False
    is_serverless: bool = False
    is_queued: bool = True

    @property
    def key(self) -> str:
        """The key of the resource, as in `databricks bundle run KEY`."""
        return f"{self.name}_{self.flow.key}" if self.flow else self.name

    def to_json(self, settings: Settings) -> dict[str, Any]:
        """Returns the resource."""
        tags = {**settings.tags, **({"flow": self.flow.tag} if self.flow else {})}
        of_flow = {"config": self.flow.config, "flow": self.flow.name} if self.flow else {}
        parameters = {**of_flow, "catalog": CATALOG, "schema": SCHEMA, **self.parameters}
        return {
            "name": f"mirrorlake {self.name} {self.flow.name if self.flow else '${var.schema}'}",
            "description": self.description,
            "tags": tags,
            "max_concurrent_runs": 1,  # development mode makes it 4 where it is not said; a second run fences the first
            "queue": {"enabled": self.is_queued},
            **self.timing,
            **({"timeout_seconds": LONGEST_RUN_S} if "schedule" in self.timing else {}),
            "parameters": [{"name": name, "default": value} for name, value in parameters.items()],
            **self._compute(settings, tags),
            **_notified(settings, tells_of_cancelled="continuous" in self.timing),
            "permissions": [{"group_name": settings.readers, "level": "CAN_VIEW"}] if settings.readers else [],
        }

    def _compute(self, settings: Settings, tags: dict[str, str]) -> dict[str, Any]:
        tasks = [task.to_json() for task in self.tasks]
        if self.is_serverless:
            environment = compute.environment()
            environment["spec"]["dependencies"] += REPORT_PACKAGES
            key = environment["environment_key"]
            return {
                "tasks": [{**task, "environment_key": key} for task in tasks],
                "environments": [environment],
                **({"budget_policy_id": settings.budget_policy_id} if settings.budget_policy_id else {}),
            }
        libraries = compute.libraries()
        cluster = compute.cluster(settings, self.flow, tags, is_single=self.is_single)
        return {
            "tasks": [{**task, "job_cluster_key": self.name, "libraries": libraries} for task in tasks],
            "job_clusters": [{"job_cluster_key": self.name, "new_cluster": cluster}],
        }


def add(resources: Resources, settings: Settings) -> None:
    """Adds all jobs."""
    plans = [plan for flow in settings.flows for plan in of_flow(flow)] + list(of_schema(settings))
    for plan in plans:
        resources.add_job(plan.key, plan.to_json(settings))


def of_flow(flow: FlowSettings) -> Iterable[JobPlan]:
    """Yields the jobs of one flow."""
    yield _following(
        flow, "mirror", "Copies topics exactly once and keeps the exact offset map.", "${var.mirror_schedule}"
    )
    yield _following(
        flow,
        "checkpoint",
        "Moves consumer groups to their exact offsets and keeps their history.",
        "${var.checkpoint_schedule}",
        is_single=True,
    )
    yield JobPlan(
        "verify",
        "Reads both clusters, compares every record on the exact map, counts records apart from it, and fails where "
        "they differ.",
        (
            Task("verify", {"max_lateness_seconds": "3600"}),
            Task("counts", {"max_lateness_seconds": "3600", "days": "7"}),
        ),
        flow,
        {
            "mode": "${var.verify_mode}",
            "from_time": "",
            "to_time": "",
            "version": "",
            "fraction": "1",
            "topics": "",
        },
        timing=_timing(flow, _schedule("${var.verify_schedule}")),
        is_queued=False,
    )
    common = {"mode": "plan", "groups": "", "max_lag": "0", "accept": "", "partial": "false", "close": "auto"}
    yield JobPlan(
        "failover",
        "Plans, rehearses or runs the move of consumer groups to their exact places on the target; a run drains the "
        "source first.",
        (Task("failover", {}),),
        flow,
        {
            **common,
            "signed_by": "",
            "topics": "",
            "at": "",
            "source": "auto",
            "max_position_age_seconds": "3600",
            "access": "list",
        },
    )
    yield JobPlan(
        "failback",
        "Decides about diverged records and moves consumer groups back.",
        (Task("failback", {}),),
        flow,
        {**common, "signed_by": "", "diverged": "", "export": "", "lost": ""},
    )


def of_schema(settings: Settings) -> Iterable[JobPlan]:
    """Yields the jobs of the whole schema."""
    days = {"offset_syncs": "90", "checkpoints": "365", "expectation_results": "90", "cycles": "90", "counts": "90"}
    days |= {"lag_samples": "7"}
    kept = ("anomalies", "topology_changes", "verifications")
    configs = [flow.config for flow in settings.flows]
    yield JobPlan(
        "maintain",
        "Creates the views, expires rows of the ledger that nobody needs any more, and compacts its tables.",
        (
            Task(
                "maintain",
                {
                    **{f"{table}_days": age for table, age in days.items()},
                    **{f"{table}_days": "" for table in kept},
                    "vacuum_hours": "168",
                },
                retries=3,
                retry_after_ms=600_000,
            ),
        ),
        parameters={
            "config": settings.config if settings.config in configs else configs[0],
            "dry_run": "false",
            "upgrade": "false",
        },
        timing=_schedule("${var.maintain_schedule}"),
        is_single=True,
        is_queued=False,
    )
    yield JobPlan(
        "report",
        "Shows lag, throughput, checkpoints, gates, what is verified, and anomalies of the last day.",
        (Task("report", {"flows": "", "hours": "24", "until": "", "quiet_minutes": str(settings.late_minutes)}),),
        timing=_schedule("${var.report_schedule}"),
        is_serverless=True,
        is_queued=False,
    )


def _following(flow: FlowSettings, name: str, description: str, schedule: str, *, is_single: bool = False) -> JobPlan:
    """Returns a job that follows the source, for ever or in steps."""
    is_continuous = flow.cadence is not Cadence.SCHEDULED
    timing = {"continuous": {"task_retry_mode": "ON_FAILURE"}} if is_continuous else _schedule(schedule)
    trigger = "" if is_continuous else "availableNow"  # empty: the interval of the property file, until it is stopped
    return JobPlan(
        name,
        description,
        (Task(name, {"trigger": trigger, "run_for": "", "checkpoints": ""}, retries=None if is_continuous else 3),),
        flow,
        timing=_timing(flow, timing),
        is_single=is_single,
        is_queued=False,  # runs would pile up behind one that takes long
    )


def _timing(flow: FlowSettings, timing: dict[str, Any]) -> dict[str, Any]:
    """Returns when a job runs: as it is, or paused for a flow that waits."""
    if flow.cadence is not Cadence.PAUSED:
        return timing
    return {name: {**values, "pause_status": "PAUSED"} for name, values in timing.items()}


def _schedule(quartz: str) -> dict[str, Any]:
    # Without a pause_status: development mode pauses what does not say it itself.
    return {"schedule": {"quartz_cron_expression": quartz, "timezone_id": "UTC"}}


def _notified(settings: Settings, *, tells_of_cancelled: bool) -> dict[str, Any]:
    """Returns who hears of failed runs; a continuous run whose task has failed too often ends as a cancelled one."""
    found: dict[str, Any] = {}
    if settings.emails:
        found["email_notifications"] = {"on_failure": list(settings.emails)}
    if settings.webhooks:
        found["webhook_notifications"] = {"on_failure": [{"id": one} for one in settings.webhooks]}
    if found:
        found["notification_settings"] = {
            "no_alert_for_skipped_runs": True,
            "no_alert_for_canceled_runs": not tells_of_cancelled,
        }
    return found
