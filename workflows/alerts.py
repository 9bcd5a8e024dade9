"""SQL alerts on the ledger, of what nobody should have to look for. Each query returns one row: the number `value`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from databricks.bundles.core import Resources
from mirrorlake.ledger.sql_text import filled, literal, literals
from mirrorlake.ledger.store import STANDING
from mirrorlake.model.gap import RESETS
from mirrorlake.reasons import NOT_LOOKED_AT

from workflows.settings import CATALOG, SCHEMA, Settings

GONE_DAYS = 90
AGAIN_AFTER_S = 3600  # until an alert that goes on is sent again
UNVERIFIED_HOURS = 48  # without a verification that has passed
# A flow that a failover has closed is silent, as it must be. One that is silent for GONE_DAYS was removed.
IS_ALIVE = f"""max_by(job, finished_at) FILTER (WHERE job IN ('mirror', 'open', 'close')) IS DISTINCT FROM 'close'
            AND max(finished_at) > current_timestamp() - INTERVAL {GONE_DAYS} DAYS"""
ALIVE = f"(SELECT source, target FROM {{cycles}} GROUP BY source, target HAVING {IS_ALIVE}) alive"


@dataclass(frozen=True)
class Alert:
    """One alert; it fires while `value` is greater than the threshold.

    Attributes:
        key: the key of its resource.
        summary: what has happened, and where to look.
        query: SQL with the names of tables and views in braces.
        threshold: the greatest value that is well; None for the minutes of LATE_MINUTES.
    """

    key: str
    summary: str
    query: str
    threshold: float | None = 0


def _quiet(job: str) -> str:
    """Returns the minutes since the last sign of a job; of one that has never worked, since the flow's first sign."""
    return f"""
        SELECT coalesce(max(minutes), 0) AS value FROM (
          SELECT timestampdiff(MINUTE, coalesce(max(finished_at) FILTER (WHERE job = '{job}'), min(finished_at)),
            current_timestamp()) AS minutes
          FROM {{cycles}} GROUP BY source, target
          HAVING {IS_ALIVE}
        )"""


ALERTS = (
    Alert(
        "mirror_silent",
        "No sign of a mirror job: its run has failed, is paused, or can't reach a cluster. Look at the job's last run.",
        _quiet("mirror"),
        None,
    ),
    Alert(
        "mirror_stuck",
        "A mirror job runs, has records to mirror, and commits none. Look at its log, and at the table anomalies.",
        f"""
        SELECT coalesce(max(timestampdiff(MINUTE, c.committed_at, n.finished_at)), 0) AS value
        FROM (
          SELECT source, target, max(finished_at) AS finished_at, max_by(lag, finished_at) AS lag
          FROM {{cycles}} WHERE job IN ('mirror', 'close') GROUP BY source, target
        ) n
        JOIN (SELECT source, target, max(committed_at) AS committed_at FROM {{offset_syncs}} GROUP BY source, target) c
          ON c.source = n.source AND c.target = n.target
        JOIN {ALIVE} ON alive.source = n.source AND alive.target = n.target
        LEFT ANTI JOIN (
          SELECT source, target FROM {{lag_now}} GROUP BY source, target HAVING every(state IN ('paused', 'promoted'))
        ) p ON p.source = n.source AND p.target = n.target
        WHERE n.lag > 0""",
        None,
    ),
    Alert(
        "mirror_behind",
        "Records wait to be mirrored for long. The view lag_now has the partitions, and why they wait.",
        f"""
        SELECT coalesce(max(lag_seconds) / 60, 0) AS value
        FROM (SELECT *, max(measured_at) OVER (PARTITION BY source, target) AS newest_at FROM {{lag_now}}) l
        JOIN {ALIVE} ON alive.source = l.source AND alive.target = l.target
        WHERE l.measured_at > l.newest_at - INTERVAL 2 HOURS AND l.state NOT IN ('paused', 'promoted')""",
        None,
    ),
    Alert(
        "checkpoint_silent",
        "No sign of a checkpoint job. With a dead source, a failover would use positions of this age.",
        _quiet("checkpoint"),
        None,
    ),
    Alert(
        "flow_stopped",
        "An error has stopped a flow in the last hour. The table anomalies names the cause and the remedy.",
        "SELECT count(*) AS value FROM {anomalies} "
        "WHERE action = 'stop' AND detected_at > current_timestamp() - INTERVAL 1 HOUR",
    ),
    Alert(
        "gate_failed",
        "A gate has refused a commit in the last hour. The table expectation_results has the expectation.",
        "SELECT count(DISTINCT cycle_id) AS value FROM {expectation_results} "
        "WHERE NOT success AND suite IN ('offset_syncs', 'checkpoints') "
        "AND evaluated_at > current_timestamp() - INTERVAL 1 HOUR",
    ),
    Alert(
        "records_lost",
        "Records of a source were lost in the last day. The view unmirrored has their offsets and the cause.",
        f"SELECT coalesce(sum(if(kind IN ({literals(RESETS)}), 1, offsets)), 0) AS value "
        "FROM {unmirrored} "
        "WHERE is_loss AND committed_at > current_timestamp() - INTERVAL 1 DAY",
    ),
    Alert(
        "verification_failed",
        "A verification has found differences that stand. The table verification_findings has the offsets.",
        f"""
        SELECT count(DISTINCT d.source, d.target, d.topic, d.partition) AS value
        FROM ({STANDING.replace("{rows}", "{verifications}")}) d
        JOIN {ALIVE} ON alive.source = d.source AND alive.target = d.target""",
    ),
    Alert(
        "unverified",
        "No verification of a flow has passed for two days. Look at the last run of its job verify.",
        f"""
        SELECT coalesce(max(timestampdiff(HOUR, greatest(v.passed_at, c.began_at), current_timestamp())), 0) AS value
        FROM (
          SELECT source, target,
            coalesce(max(finished_at) FILTER (WHERE job = 'open'), min(finished_at)) AS began_at
          FROM {{cycles}} GROUP BY source, target
          HAVING {IS_ALIVE}
        ) c
        LEFT JOIN (
          SELECT source, target, max(finished_at) AS passed_at FROM (
            SELECT source, target, max(finished_at) AS finished_at FROM {{verifications}}
            WHERE mode IN ('full', 'incremental') AND topics IS NULL AND NOT coalesce(pinned, false)
            GROUP BY source, target, verification_id
            HAVING bool_or(passed OR status = 'nothing_new')
              AND NOT bool_or(status IN ('different', 'not_mirrored') OR coalesce(unmirrored, 0) > 0
                OR coalesce(startswith(detail, {literal(NOT_LOOKED_AT)}), false))
          ) GROUP BY source, target
        ) v ON v.source = c.source AND v.target = c.target""",
        UNVERIFIED_HOURS,
    ),
    Alert(
        "records_missing",
        "Counts of both clusters differ, apart from the map. The view completeness has topics and hours.",
        "SELECT count_if(status IN ('missing', 'surplus')) AS value FROM {completeness} "
        "WHERE window_start > current_timestamp() - INTERVAL 7 DAYS",
    ),
    Alert(
        "groups_refused",
        "The target refuses to commit positions of groups. The view current_position has the reasons.",
        f"SELECT count_if(sync = 'refused') AS value FROM {{current_position}} p "
        f"JOIN {ALIVE} ON alive.source = p.source AND alive.target = p.target",
    ),
)


def add(resources: Resources, settings: Settings) -> None:
    """Adds all alerts."""
    subscriptions = [{"user_email": email} for email in settings.emails]
    subscriptions += [{"destination_id": one} for one in settings.webhooks]
    for alert in ALERTS:
        threshold = settings.late_minutes if alert.threshold is None else alert.threshold
        resources.add_alert(alert.key, _resource(alert, threshold, subscriptions))


def _resource(alert: Alert, threshold: float, subscriptions: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "display_name": f"mirrorlake {alert.key.replace('_', ' ')}",
        "query_text": filled(alert.query, lambda name: f"`{CATALOG}`.`{SCHEMA}`.{name}").strip(),
        "warehouse_id": "${var.warehouse_id}",
        "custom_summary": alert.summary,
        "schedule": {"quartz_cron_schedule": "${var.alert_schedule}", "timezone_id": "UTC"},
        "evaluation": {
            "source": {"name": "value"},
            "comparison_operator": "GREATER_THAN",
            "threshold": {"value": {"double_value": float(threshold)}},
            "empty_result_state": "ERROR",
            "notification": {
                "notify_on_ok": True,
                "retrigger_seconds": AGAIN_AFTER_S,
                "subscriptions": subscriptions,
            },
        },
    }
