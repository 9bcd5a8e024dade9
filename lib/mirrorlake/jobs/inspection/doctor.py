"""The doctor: checks what a flow needs before anything runs, and changes nothing on the clusters.

Clusters are contacted first, each once, all side by side. Then each flow whose clusters answer is looked at, side by
side too. Every look has a deadline, so that a silent or half-open peer costs that time and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.errors import ConfigurationError, MirrorlakeError
from mirrorlake.jobs.inspection import flow_checks
from mirrorlake.jobs.inspection.bounded import bounded
from mirrorlake.jobs.inspection.clusters import ClusterFacts, connected, connections_of, contact, timeout_ms
from mirrorlake.jobs.inspection.finding import Check, DoctorFinding, ok, problem, unknown, warning
from mirrorlake.protocol.cluster import OLDEST_BROKER

DEADLINE_S = 20.0
NOT_NEEDED = frozenset({Check.SPACE, Check.CLOCK})  # checks whose permissions no job needs


@dataclass
class _Look:
    """The findings of one look, kept as they come: those of a look that does not end are not lost."""

    findings: list[DoctorFinding] = field(default_factory=list)

    def run(self, checks: Callable[[], Iterable[DoctorFinding]]) -> _Look:
        for finding in checks():
            self.findings.append(finding)
        return self


def examine(properties: Properties, names: Sequence[str], deadline_s: float = DEADLINE_S) -> list[DoctorFinding]:
    """Examines flows and their clusters.

    Args:
        properties: the property file.
        names: the flows, which the file enables.
        deadline_s: the longest time of each look.
    """
    flows, findings = _read_flows(properties, names)
    facts = contact(connections_of(flows), deadline_s)
    for found in facts.values():
        findings += _about_cluster(found)
    findings += _doubled(facts.values())
    looks = {flow.name: _Look() for flow in flows}
    tasks = {
        flow.name: partial(looks[flow.name].run, partial(_about_flow, flow, deadline_s))
        for flow in flows
        if not (facts[flow.source].error or facts[flow.target].error)
    }
    answers = bounded(tasks, deadline_s)
    for flow in flows:
        findings += looks[flow.name].findings
        if flow.name not in answers:
            down = [alias for alias in (flow.source, flow.target) if facts[alias].error]
            findings.append(
                unknown(
                    Check.PERMISSION,
                    flow.name,
                    f"permissions, topics and state were not checked: cluster {' and '.join(down)} can't be used",
                    "Make it reachable, and run doctor again",
                )
            )
        elif answers[flow.name].is_late:
            findings.append(
                unknown(
                    Check.PERMISSION,
                    flow.name,
                    f"not all checks have ended within {deadline_s:g} s",
                    "Look at the brokers' request times, or give the checks more time: --deadline",
                )
            )
        elif (error := answers[flow.name].error) is not None:
            findings.append(problem(Check.REACHABILITY, flow.name, error.message, "See the message"))
    return findings


def _read_flows(properties: Properties, names: Sequence[str]) -> tuple[list[Flow], list[DoctorFinding]]:
    flows, findings, said = list[Flow](), list[DoctorFinding](), set[str]()
    for name in names:
        try:
            flow = Flow.from_properties(properties, name)
        except ConfigurationError as error:
            findings.append(problem(Check.CONFIGURATION, name, error.message, f"Correct {properties.path}"))
            continue
        flows.append(flow)
        new = [text for text in flow.warnings if text not in said]  # most are about the file, not about one flow
        said.update(new)
        findings += [warning(Check.CONFIGURATION, name, text, f"Correct {properties.path}") for text in new]
        if not new:
            findings.append(ok(Check.CONFIGURATION, name, f"{properties.path} is valid"))
    return flows, findings


def _about_cluster(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    subject = f"cluster {facts.alias}"
    if facts.error is not None:
        yield problem(
            Check.REACHABILITY,
            subject,
            facts.error.message,
            f"Check {facts.alias}.bootstrap.servers, its security properties, firewalls, and that its brokers run",
        )
        return
    yield ok(
        Check.REACHABILITY,
        subject,
        f"{facts.servers}: {facts.brokers} broker{'s' if facts.brokers != 1 else ''}, answered in "
        f"{facts.connect_ms:,.0f} ms",
    )
    oldest = ".".join(map(str, OLDEST_BROKER))
    yield ok(Check.VERSION, subject, f"Kafka {facts.version} or later (mirrorlake needs {oldest})")


def _doubled(found: Iterable[ClusterFacts]) -> Iterator[DoctorFinding]:
    """Yields a finding for each cluster that has two aliases."""
    by_id: dict[str, list[str]] = {}
    for facts in found:
        if facts.cluster_id:
            by_id.setdefault(facts.cluster_id, []).append(facts.alias)
    for cluster_id, aliases in by_id.items():
        if len(aliases) > 1:
            yield warning(
                Check.CLUSTER_ID,
                f"cluster {aliases[0]}",
                f"clusters {' and '.join(aliases)} are the same Kafka cluster (id {cluster_id})",
                "Correct one of the bootstrap.servers, unless it is meant (mirrorlake.same.cluster.allowed)",
            )


def _about_flow(flow: Flow, deadline_s: float) -> Iterator[DoctorFinding]:
    limit_ms = timeout_ms(deadline_s)
    with (
        connected(flow.source_connection, "source", limit_ms) as source,
        connected(flow.target_connection, "target", limit_ms) as target,
    ):
        peers = flow_checks.Peers(flow, source, target, limit_ms)
        for kind, check in flow_checks.CHECKS:
            try:
                yield from check(peers)
            except MirrorlakeError as error:
                make = warning if kind in NOT_NEEDED else problem
                yield make(kind, flow.name, error.message, "Grant what the message names, or remove its cause")


def levels(findings: Iterable[DoctorFinding]) -> Mapping[str, int]:
    """Counts findings by level."""
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.level.value] = counts.get(finding.level.value, 0) + 1
    return counts
