"""Writes the alerts: monitoring/alerts.yml for Prometheus, and their table in docs/monitoring.md.

Each limit and duration is a parameter; `--set lag=600 --set lag_for=900` changes two (seconds, unless its name says
otherwise), and then the rules are printed instead.
Usage: PYTHONPATH=lib .venv/bin/python tools/alerts.py [--set NAME=NUMBER ...]
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
RULES, PAGE = ROOT / "monitoring/alerts.yml", ROOT / "docs/monitoring.md"
PLACE = re.compile(r"(<!-- alerts -->\n).*?(?=<!-- end of alerts -->)", re.DOTALL)
HEAD = """# Alerts on mirrorlake's metrics, for Prometheus. docs/monitoring.md lists them.
# tools/alerts.py writes this file.
# Other limits: PYTHONPATH=lib .venv/bin/python tools/alerts.py --set lag=600 --set lag_for=900 > my-alerts.yml
"""


@dataclass(frozen=True)
class Alert:
    """One alert.

    Attributes:
        name: its name, which is also its heading in docs/troubleshooting.md.
        expression: PromQL, with parameters in braces.
        severity: page (somebody must act now) or ticket (in working hours).
        summary: what has happened, with Prometheus' placeholders.
        cause: the likely causes.
        look_at: what shows the cause.
        action: what to do.
        parameters: the limits in the expression, and `for`: the seconds for which it must hold.
    """

    name: str
    expression: str
    severity: str
    summary: str
    cause: str
    look_at: str
    action: str
    parameters: Mapping[str, float] = field(default_factory=dict)


FLOW = "Flow {{ $labels.flow }}"

ALERTS = (
    Alert(
        "MirrorlakeDown",
        'up{{job=~"mirrorlake.*"}} == 0',
        "page",
        "{{ $labels.instance }} does not answer: the job has ended, or its port can't be reached.",
        "The job has stopped with an error, was killed, or was never started again.",
        "The end of the job's log (mirror_failed, checkpoint_failed), and rows of anomalies with the action stop.",
        "Remove the cause that the error names, and start the job again. It continues where it has committed.",
        {"down_for": 120},
    ),
    Alert(
        "MirrorlakeRestarting",
        'changes(up{{job=~"mirrorlake.*"}}[{restarts_window:.0f}s]) >= {restarts}',
        "page",
        "{{ $labels.instance }} has ended and begun again several times.",
        "Whatever starts the job does so again and again, and each time an error ends it.",
        "The end of the job's log (mirror_failed, checkpoint_failed), and rows of anomalies with the action stop.",
        "Remove the cause that the error names. No start before that gets further.",
        {"restarts_window": 3600, "restarts": 6, "restarts_for": 0},
    ),
    Alert(
        "MirrorlakeNoProgress",
        "mirrorlake_progress_age_seconds > {no_progress}",
        "page",
        FLOW + " has made no progress for {{ $value | humanizeDuration }}.",
        "A cluster can't be reached, every attempt fails, or a request hangs.",
        "/health of the job (error), the events retrying and slots_failed in its log, mirrorlake_retries_total.",
        "Remove the cause that the log names. If the log is silent, restart the job; nothing is lost or copied twice.",
        {"no_progress": 300, "no_progress_for": 0},
    ),
    Alert(
        "MirrorlakeLag",
        "mirrorlake_lag_seconds > {lag}",
        "page",
        FLOW + " is {{ $value | humanizeDuration }} behind its source.",
        "More is written than is copied, a cluster throttles, or partitions are held.",
        "The view lag_now, worst first; mirrorlake_throttled_seconds_total; mirrorlake_held_partitions.",
        "Raise quotas, give the job more cores (mirrorlake.slots), or remove the reason in lag_now.",
        {"lag": 300, "lag_for": 300},
    ),
    Alert(
        "MirrorlakeLagNotMeasured",
        "time() - mirrorlake_lag_measured_timestamp_seconds > {not_measured}",
        "ticket",
        "The lag of flow {{ $labels.flow }} was last measured {{ $value | humanizeDuration }} ago.",
        "A cluster does not answer the measurement, or the principal lacks DESCRIBE.",
        "The event lag_not_measured in the log of the mirror job.",
        "Remove the cause that the event names. Until then lag_now and mirrorlake_lag_seconds show old figures.",
        {"not_measured": 600, "not_measured_for": 0},
    ),
    Alert(
        "MirrorlakeGateFailed",
        "increase(mirrorlake_gate_failures_total[{window:.0f}s]) > 0",
        "page",
        FLOW + ": expectations of {{ $labels.suite }} have failed; nothing of that cycle was committed.",
        "The offsets of a micro-batch or of groups are not what they must be: a defect, or another writer.",
        "SELECT * FROM expectation_results WHERE NOT success ORDER BY evaluated_at DESC.",
        "Do not retry blindly: read the failed expectation and the rows that it names. Earlier commits hold.",
        {"window": 900, "gate_for": 0},
    ),
    Alert(
        "MirrorlakeAnomaly",
        'increase(mirrorlake_anomalies_total{{kind!~"held|open_transaction|ledger_away"}}[{window:.0f}s]) > 0',
        "page",
        FLOW + " has recorded an anomaly of kind {{ $labels.kind }}.",
        "Records of the source were lost before they were mirrored, or another program has written to a remote topic.",
        "SELECT * FROM anomalies ORDER BY detected_at DESC; its detail names topic, partition and offsets.",
        "Decide by the kind, as docs/troubleshooting.md says.",
        {"window": 900, "anomaly_for": 0},
    ),
    Alert(
        "MirrorlakeHeld",
        "mirrorlake_held_topics > 0 or mirrorlake_held_partitions > 0",
        "ticket",
        FLOW + " holds back {{ $value }} topics or partitions; the others go on.",
        "A permission is missing, a remote topic can't be created or holds records of others, or a leader is silent.",
        "The column reason of lag_now WHERE state IN ('held', 'silent'); rows of anomalies of kind held.",
        "Remove the reason. The flow takes the topic up by itself.",
        {"held_for": 600},
    ),
    Alert(
        "MirrorlakePaused",
        "mirrorlake_paused_partitions > 0",
        "ticket",
        FLOW + " has {{ $value }} paused partitions; they don't count as lag.",
        "An operator has paused the flow (mirrorlake pause), or mirrorlake.paused or mirrorlake.topics.paused is set.",
        "The column reason of lag_now WHERE state = 'paused' names who has paused it, and why.",
        "Resume it (mirrorlake resume), or remove the property. Retention may delete records that are not mirrored.",
        {"paused_for": 14_400},
    ),
    Alert(
        "MirrorlakeOpenTransaction",
        "mirrorlake_open_transaction_age_seconds > {transaction}",
        "ticket",
        FLOW + " waits for a transaction that is open for {{ $value | humanizeDuration }}.",
        "A producer on the source hangs or is gone, and its transaction has not timed out.",
        "Rows of anomalies of kind open_transaction name the producer, its partition and the first offset.",
        "Restart the producer, or abort its transaction: kafka-transactions.sh abort.",
        {"transaction": 300, "transaction_for": 0},
    ),
    Alert(
        "MirrorlakeLedgerAway",
        "mirrorlake_ledger_away_seconds > {ledger_away}",
        "ticket",
        "The ledger of flow {{ $labels.flow }} can't be written for {{ $value | humanizeDuration }}; the copy goes on.",
        "The storage of the tables is full, unreachable or forbidden.",
        "The event ledger_away in the log of the mirror job.",
        "Make the storage writable again. The runs are appended by themselves.",
        {"ledger_away": 300, "ledger_away_for": 0},
    ),
    Alert(
        "MirrorlakeCheckpointStale",
        "mirrorlake_checkpoint_age_seconds > {checkpoint}",
        "page",
        "The groups of flow {{ $labels.flow }} were last synced {{ $value | humanizeDuration }} ago.",
        "The cycles of the checkpoint job fail, or one of them hangs.",
        "/health of the checkpoint job (error), and the events retrying and checkpoint_failed in its log.",
        "Remove the cause that the log names. Until then a failover continues at older offsets.",
        {"checkpoint": 300, "checkpoint_for": 0},
    ),
    Alert(
        "MirrorlakeGroupUnfinished",
        "mirrorlake_checkpoint_worst_group_seconds > {group}",
        "ticket",
        "A group of flow {{ $labels.flow }} is not at its exact offset for {{ $value | humanizeDuration }}.",
        "The mirror is behind the group, the target refuses its commits, or a cluster does not tell its offsets.",
        "SELECT * FROM current_position WHERE status IN ('clamped', 'not_mirrored_yet') OR sync IN ('refused', "
        "'waiting', 'held'); and the events groups_not_read and partitions_not_read in the log.",
        "See MirrorlakeLag for a mirror that is behind; for a refusal, grant what the reason names; else look at the "
        "brokers that the events name.",
        {"group": 900, "group_for": 0},
    ),
    Alert(
        "MirrorlakeGroupRefused",
        'mirrorlake_checkpoint_synced_positions{{status="refused"}} > 0',
        "ticket",
        "The target refuses {{ $value }} positions of groups of flow {{ $labels.flow }}.",
        "The principal lacks READ on a group of the target, or the group is of another protocol there.",
        "SELECT group_id, reason FROM current_position WHERE sync = 'refused'.",
        "Grant READ on these groups, or exclude them (groups.exclude).",
        {"refused_for": 600},
    ),
    Alert(
        "MirrorlakeThrottled",
        "rate(mirrorlake_throttled_seconds_total[{throttle_window:.0f}s]) > {throttled_share}",
        "ticket",
        "The {{ $labels.cluster }} of flow {{ $labels.flow }} throttles tasks {{ $value | humanizePercentage }} of the "
        "time.",
        "A quota of the principal or client id is lower than what is written on the source.",
        "mirrorlake_throttled_seconds_total by cluster; kafka-configs.sh --describe of the client's quotas.",
        "Raise the quota, or accept the lag that it makes.",
        {"throttle_window": 300, "throttled_share": 0.5, "throttled_for": 900},
    ),
    Alert(
        "MirrorlakeRetries",
        "increase(mirrorlake_retries_total[{retry_window:.0f}s]) > {retries}",
        "ticket",
        FLOW + " has retried {{ $value | humanize }} times because of {{ $labels.kind }}.",
        "Brokers restart or are overloaded, or the network between the clusters loses connections.",
        "The events retrying and slots_failed in the log name each error.",
        "Look at the cluster that the errors name. The job stops by itself after mirrorlake.retry.timeout.ms.",
        {"retry_window": 600, "retries": 20, "retries_for": 0},
    ),
    Alert(
        "MirrorlakeUnverified",
        "time() - mirrorlake_verified_timestamp_seconds > {unverified}",
        "ticket",
        "Flow {{ $labels.flow }} is verified up to {{ $value | humanizeDuration }} ago only.",
        "The verification has not run, or has found a difference.",
        "SELECT * FROM verifications ORDER BY finished_at DESC, and the view unverified.",
        "Run notebooks/verify.ipynb; of a difference, look at verification_findings.",
        {"unverified": 172_800, "unverified_for": 0},
    ),
    Alert(
        "MirrorlakeCanaryLate",
        "mirrorlake_canary_burn_ratio > {burn}",
        "page",
        FLOW
        + ": canaries by {{ $labels.path }} are late {{ $value | humanize }} times as often as the objective allows.",
        "The way from end to end is slow or interrupted: the mirror, the checkpoint job, or a cluster.",
        "mirrorlake_canary_quantile_seconds; MirrorlakeLag for the path record, MirrorlakeCheckpointStale for group.",
        "See the alert of the part that is slow. If none fires, raise mirrorlake.canary.record.sla.ms or group.sla.ms.",
        {"burn": 1, "burn_for": 300},
    ),
    Alert(
        "MirrorlakeMemory",
        "mirrorlake_memory_bytes > {memory_bytes:.0f}",
        "ticket",
        "The Python process of flow {{ $labels.flow }}'s driver takes {{ $value | humanize1024 }}B of memory.",
        "Very many partitions or groups, or a leak.",
        "mirrorlake_memory_bytes over days, beside the number of partitions. It has neither Spark's JVM nor its "
        "workers.",
        "Give the driver's machine or container more memory; a heap of the JVM (SPARK_DRIVER_MEMORY) is not meant. If "
        "it grows without more partitions, restart the job and report it.",
        {"memory_bytes": 4 << 30, "memory_for": 900},
    ),
)


def rules(changes: Mapping[str, float] | None = None) -> str:
    """Renders the rules for Prometheus.

    Args:
        changes: parameters that differ from the defaults.

    Raises:
        KeyError: there is no such parameter.
    """
    known = {name for alert in ALERTS for name in alert.parameters}
    if unknown := sorted({*(changes or {})} - known):
        raise KeyError(f"no parameter {unknown[0]}; there are {', '.join(sorted(known))}")
    return HEAD + yaml.safe_dump(
        {"groups": [{"name": "mirrorlake", "rules": [_rule(alert, changes or {}) for alert in ALERTS]}]},
        sort_keys=False,
        width=1_000,
    )


def _rule(alert: Alert, changes: Mapping[str, float]) -> dict[str, Any]:
    values = {name: changes.get(name, value) for name, value in alert.parameters.items()}
    lasting = next(value for name, value in values.items() if name.endswith("_for"))
    return {
        "alert": alert.name,
        "expr": alert.expression.format(**values),
        **({"for": f"{lasting:.0f}s"} if lasting else {}),
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "cause": alert.cause,
            "look_at": alert.look_at,
            "action": alert.action,
            "runbook": f"docs/troubleshooting.md#{alert.name.lower()}",
        },
    }


def table(page: str) -> str:
    """Replaces the table between the marks of a page."""
    rows = []
    for alert in ALERTS:
        rule = _rule(alert, {})
        expression, lasting = rule["expr"].replace("|", "\\|"), rule.get("for", "")
        where = f"troubleshooting.md#{alert.name.lower()}"
        rows.append(f"| [{alert.name}]({where}) | {alert.severity} | `{expression}` | {lasting} | {alert.cause} |\n")
    text = "| alert | severity | fires where | for | likely causes |\n|---|---|---|---|---|\n" + "".join(rows)
    return PLACE.sub(lambda place: f"{place[1]}\n{text}\n", page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER", help="changes a parameter")
    changes = dict(one.partition("=")[::2] for one in parser.parse_args().set)
    if changes:
        print(rules({name: float(value) for name, value in changes.items()}), end="")
        return 0
    RULES.write_text(rules())
    PAGE.write_text(table(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
