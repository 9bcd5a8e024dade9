"""Keeps the remote topics of a flow in step with the source: existence, partitions, configuration and access rights.

Remote topics are never shrunk and never deleted. Each change that is made or refused is a row of the table
topology_changes. An error about one topic does not stop the others: it is returned, and the next call tries again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, MirrorlakeError, TargetError
from mirrorlake.jobs.mirror.planning.source_topics import source_topics
from mirrorlake.log import ending, event
from mirrorlake.model.slot import merge_positions
from mirrorlake.protocol.acls import Acl, acl_changes, open_to_everyone
from mirrorlake.protocol.admin import Admin, NewTopic, Refusals
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.requests.metadata import WRITE
from mirrorlake.protocol.topic_changes import (
    TIMESTAMP_BOUNDS,
    UNANSWERED,
    Change,
    ChangeKind,
    ChangeOutcome,
    Entry,
    config_changes,
    creation,
    growth,
    largest_message,
    remote_config,
)
from mirrorlake.reasons import TopicHeld
from mirrorlake.state.closure import promoted_topics, require_open
from mirrorlake.state.offset_syncs import TOPIC_CONFIG, read_all_states, topic_config

if TYPE_CHECKING:
    import pandas as pd

    from mirrorlake.ledger.store import Ledger

log = logging.getLogger(__name__)


class ChangeLedger(Protocol):
    """Records changes, and knows the access rights that mirrorlake has granted."""

    def append(self, name: str, rows: Iterable[Any], /) -> None:
        """Takes rows of a table."""

    def granted_acls(self, flow: Flow) -> list[str]:
        """Lists the ACL bindings that mirrorlake has created and not deleted, as text."""


class Topology:
    """The topics of one flow on its target.

    Args:
        flow: flow of the topics.
        source: administration of the source.
        target: administration of the target.
        ledger: tables that record changes, and the access rights that mirrorlake has granted.
    """

    def __init__(self, flow: Flow, source: Admin, target: Admin, ledger: ChangeLedger) -> None:
        self.flow, self._source, self._target, self._ledger = flow, source, target, ledger
        self._settled: dict[str, int] = {}
        self._unready: dict[str, tuple[int, MirrorlakeError]] = {}  # with the number of partitions
        self._refused: dict[Change, str] = {}
        self._undescribed: set[tuple[str, str]] = set()  # clusters and topics without DESCRIBE_CONFIGS, as logged
        self._new_configs: dict[str, dict[str, str]] = {}
        self._known_properties: frozenset[str] = frozenset()
        self.loses_states = False  # whether states have to be snapshots, as the offset-syncs topic may lose records
        self.promoted: frozenset[str] = frozenset()  # topics that follow the source no more; readers keep their access

    # -- topics that the mirror job needs -----------------------------------------------------------

    def ensure_offset_syncs(self, slots: int) -> int:
        """Creates the flow's offset-syncs topic, or adds partitions for more slots.

        Returns:
            The number of partitions of the topic.

        Raises:
            ConfigurationError: the topic loses records, but the property file asks for states that are changes.
        """
        topic = self.flow.offset_syncs_topic
        have = self._target.partitions().get(topic, 0)
        if have:
            found = self._target.configs([topic]).get(topic)
            if self.flow.state_changes_enabled:
                self._require_kept(topic, found)
            self._let_clocks_differ(topic, found or {})
        refusals: Refusals = {}
        if have == 0:
            refusals = self._create_offset_syncs(slots)
        elif have < slots:
            refusals = self._target.grow({topic: slots})
        if refusals:
            raise refusals[topic]
        return max(have, slots)

    def _create_offset_syncs(self, slots: int) -> Refusals:
        """Creates the topic with `TIMESTAMP_BOUNDS`, or without them on a cluster before 3.6, which refuses them."""
        topic, factor = self.flow.offset_syncs_topic, self.flow.offset_syncs_replication_factor
        for bounds in (TIMESTAMP_BOUNDS, {}):
            refusals = self._target.create([NewTopic(topic, slots, factor, config=topic_config(factor) | bounds)])
            if not refusals or refusals[topic].retriable:
                break
        return refusals

    def _let_clocks_differ(self, topic: str, found: Mapping[str, Entry]) -> None:
        """Lets a topic of an earlier version take the states of a machine whose clock is wrong.

        Where the principal may not configure the topic, it stays as it is.
        """
        wrong = {
            name: value for name, value in TIMESTAMP_BOUNDS.items() if name in found and found[name].value != value
        }
        if wrong:
            self._target.alter_configs({topic: wrong})

    def _require_kept(self, topic: str, found: Mapping[str, Entry] | None) -> None:
        """Checks that snapshots stay as long as the changes that name them.

        If they don't, or if this can't be known without DESCRIBE_CONFIGS, a flow whose file does not ask for changes
        goes on with snapshots. A log cleaner keeps the last state of each slot, which is then all that a start needs.
        """
        wanted = {name: TOPIC_CONFIG[name] for name in ("cleanup.policy", "retention.ms", "retention.bytes")}
        wrong = [name for name, value in wanted.items() if found and name in found and found[name].value != value]
        if found is None:
            if self.flow.state_changes_required:
                return
            what = "its configuration can't be read, so it may lose"
            better = "Grant DESCRIBE_CONFIGS on the TOPIC"
        elif wrong:
            values = ", ".join(f"{name} = {found[name].value}" for name in wrong)
            better = f"Set {', '.join(f'{name} = {wanted[name]}' for name in wrong)}"
            if self.flow.state_changes_required:
                raise ConfigurationError(
                    f"flow {self.flow.name}: topic {topic} on cluster {self.flow.target} has {values}, so it loses "
                    f"states that later ones are based on. {better} on the topic, or mirrorlake.state.changes.enabled "
                    "= false"
                )
            what = f"it has {values}, so it loses"
        else:
            return
        self.loses_states = True
        reason = (
            f"{what} records that the ledger may have to be rebuilt from. Each transaction writes all positions of its "
            f"slot meanwhile. {better}, and start the job again"
        )
        log.warning(event("states_not_kept", flow=self.flow.name, topic=topic, reason=reason))

    def ensure_dead_letters(self, target: Cluster) -> None:
        """Creates the flow's dead-letter topic if it does not exist, and requires that it may be written.

        Raises:
            TargetError: it can't be created, or the principal may not write to it.
        """
        topic = self.flow.dead_letter_topic
        if topic not in self._target.partitions():
            config = {
                name: value for name, value in remote_config(self._known()).items() if name != "compression.type"
            } | {"max.message.bytes": TOPIC_CONFIG["max.message.bytes"]}
            refusals = self._target.create([NewTopic(topic, 1, self.flow.replication_factor, config=config)])
            if refusals:
                raise refusals[topic]
        found = target.refresh([topic], self.flow.connect_timeout_ms, operations=True).get(topic)
        if found is not None and not found.allows(WRITE):
            raise TargetError(
                TopicHeld.NOT_PERMITTED.about(
                    flow=self.flow.name, topic=topic, operation="WRITE", cluster=self.flow.target
                )
            )

    def ensure(self, topics: Mapping[str, int]) -> Refusals:
        """Creates remote topics, adds partitions, and configures them so that they take batches unchanged.

        A call for topics that were ensured before sends no requests, nor does one for topics that were refused for
        good before `try_again`.

        Returns:
            Errors by source topic; topics without an error are ready.

        Raises:
            ConfigurationError: see `Flow.remote_topics`.
            TargetError: a retriable failure; or a remote topic would overwrite timestamps, and its configuration can't
                be changed.
        """
        mine = {topic: partitions for topic, partitions in topics.items() if topic not in self.promoted}
        unready = {topic: count for topic, count in mine.items() if self._settled.get(topic, 0) < count}
        known = {
            topic: self._unready[topic][1]
            for topic, count in unready.items()
            if topic in self._unready and self._unready[topic][0] == count
        }
        new = {topic: count for topic, count in unready.items() if topic not in known}
        if not new:
            return known
        remote_of = self.flow.remote_topics(topics)
        refusals = self._apply(self._topic_changes(new, topics, new.keys() - self._settled.keys()))
        refused_of: dict[str, dict[Change, TargetError]] = {}
        for change, error in refusals.items():
            refused_of.setdefault(change.target_topic, {})[change] = error
        failures: Refusals = known
        for topic, partitions in new.items():
            refused = refused_of.get(remote_of[topic], {})
            stamping = next(
                (error for change, error in refused.items() if change.name == "message.timestamp.type"), None
            )
            if stamping is not None:  # the topic would overwrite every timestamp, so nothing may be copied
                raise stamping
            missing = next(
                (
                    error
                    for change, error in refused.items()
                    if change.kind in (ChangeKind.CREATE_TOPIC, ChangeKind.ADD_PARTITIONS)
                ),
                None,
            )
            if missing is None:
                self._settled[topic] = partitions
            else:
                failures[topic] = missing
                if not missing.retriable:
                    self._unready[topic] = partitions, missing
        return failures

    def try_again(self, gone: Iterable[str]) -> None:
        """Lets `ensure` look again at topics that were refused, and at those that may be gone."""
        self._unready.clear()
        for topic in gone:
            self._settled.pop(topic, None)

    # -- topic sync ---------------------------------------------------------------------------------

    def plan(self, topics: Mapping[str, int]) -> list[Change]:
        """Returns all changes that are due, without making them.

        A topic with 0 partitions may not be described on the source: nothing of it changes, and readers keep access.
        """
        asked = {topic: count for topic, count in topics.items() if count and topic not in self.promoted}
        return self._topic_changes(asked, topics, asked.keys()) + self._acl_changes(topics)

    def sync(self, topics: Mapping[str, int], *, configs: bool, acls: bool) -> None:
        """Syncs configuration and access rights, as requested."""
        self.ensure(topics)
        changes = self._config_changes(self._settled.keys() & topics.keys()) if configs else []
        self._apply(changes + (self._acl_changes(topics) if acls else []))

    def apply(self, changes: list[Change]) -> dict[Change, str]:
        """Makes the changes of a plan, and returns the outcome of each."""
        refusals = self._apply(changes)
        return {change: refusals[change].message if change in refusals else ChangeOutcome.APPLIED for change in changes}

    def _topic_changes(self, asked: Mapping[str, int], topics: Mapping[str, int], configured: Set[str]) -> list[Change]:
        """Returns the changes that the remote topics of `asked` need.

        `topics` are all topics of the flow; `configured` are those whose configuration is compared.
        """
        remote_of, have = self.flow.remote_topics(topics), self._target.partitions()
        widest: dict[str, int] = {}
        for topic, partitions in topics.items():
            widest[remote_of[topic]] = max(widest.get(remote_of[topic], 0), partitions)
        known = [topic for topic in asked if remote_of[topic] in have]
        missing = [topic for topic in asked if remote_of[topic] not in have]
        changes = [*self._creations(missing, remote_of, widest), *self._growths(known, remote_of, have, widest)]
        return changes + self._config_changes(topic for topic in known if topic in configured)

    def _creations(
        self, topics: Iterable[str], remote_of: Mapping[str, str], widest: Mapping[str, int]
    ) -> Iterator[Change]:
        """Yields one change for each remote topic; a remote topic that several topics share is created once."""
        wanted = {remote_of[topic]: topic for topic in sorted(topics)}
        configs = self._describe(self._source, wanted.values())
        for remote, topic in wanted.items():
            change, self._new_configs[remote] = creation(
                self.flow,
                topic,
                remote=remote,
                partitions=widest[remote],
                source=configs.get(topic, {}),
                known=self._known(),
            )
            yield change

    def _known(self) -> frozenset[str]:
        """Returns the names of the properties that a topic of the target has; none if they can't be read."""
        if not self._known_properties:
            syncs = self.flow.offset_syncs_topic
            self._known_properties = frozenset(self._describe(self._target, [syncs]).get(syncs, ()))
        return self._known_properties

    @staticmethod
    def _growths(
        topics: Iterable[str], remote_of: Mapping[str, str], have: Mapping[str, int], widest: Mapping[str, int]
    ) -> Iterator[Change]:
        for remote, topic in {remote_of[topic]: topic for topic in topics}.items():
            yield from growth(topic, remote, have[remote], widest[remote])

    def _config_changes(self, topics: Iterable[str]) -> list[Change]:
        wanted = sorted(topics)
        remote_of = self.flow.remote_topics(wanted)
        source = self._describe(self._source, wanted)
        target = self._describe(self._target, remote_of.values())
        deciding = {
            remote: topic for topic, remote in reversed(remote_of.items())
        }  # the first topic decides if several share a remote topic
        sharing: dict[str, list[str]] = {}
        for topic in wanted:
            sharing.setdefault(remote_of[topic], []).append(topic)
        changes: list[Change] = []
        for remote, topic in deciding.items():
            if remote in target:
                merged = [source.get(other, {}) for other in sharing[remote]]
                config = {**source.get(topic, {}), **largest_message(merged)}
                changes += config_changes(self.flow, topic, remote=remote, source=config, target=target[remote])
        return changes

    def _acl_changes(self, topics: Iterable[str]) -> list[Change]:
        if not self.flow.keeps_acls:
            return []
        source, target = self._source.acls(), self._target.acls()
        if source is None or target is None:
            cluster = self.flow.source if source is None else self.flow.target
            reason = (
                "the flow keeps ACLs of topics, but the cluster has no authorizer, or does not list its ACLs: the "
                "principal needs DESCRIBE on CLUSTER"
            )
            log.warning(event("acls_not_synced", flow=self.flow.name, cluster=cluster, reason=reason))
            return []
        names = {*topics, *self.promoted}
        if writable := open_to_everyone(self.flow, target, names - self.promoted):
            reason = (
                "User:* may write to them, and denying it would deny the writer, too. Allow single principals instead"
            )
            log.warning(event("topics_writable", flow=self.flow.name, topics=",".join(writable), reason=reason))
        return list(
            acl_changes(
                self.flow,
                source,
                target=target,
                given=map(Acl.parse, self._ledger.granted_acls(self.flow)),
                topics=sorted(names),
                promoted=self.promoted,
            )
        )

    def _describe(self, admin: Admin, topics: Iterable[str]) -> dict[str, Any]:
        denied = set[str]()
        found = admin.configs(sorted(set(topics)), denied)
        cluster = self.flow.source if admin is self._source else self.flow.target
        if new := {topic for topic in denied if (cluster, topic) not in self._undescribed}:
            self._undescribed |= {(cluster, topic) for topic in new}
            names = f"{min(new)}{f' and {len(new) - 1} more' if len(new) > 1 else ''}"
            reason = "the principal needs DESCRIBE_CONFIGS on each TOPIC"
            log.warning(event("configs_not_synced", flow=self.flow.name, cluster=cluster, topics=names, reason=reason))
        return found

    # -- making changes -----------------------------------------------------------------------------

    def _apply(self, changes: Iterable[Change]) -> dict[Change, TargetError]:
        """Makes changes, logs and records them; returns the errors of those that were refused."""
        todo = list(changes)
        if not todo:
            return {}
        refusals: dict[Change, Any] = {}
        new = [change for change in todo if change.kind is ChangeKind.CREATE_TOPIC]
        refusals |= self._refused_of(new, self._target.create([self._new_topic(change) for change in new]))
        grown = [change for change in todo if change.kind is ChangeKind.ADD_PARTITIONS]
        refusals |= self._refused_of(
            grown, self._target.grow({change.target_topic: int(change.after or 0) for change in grown})
        )
        refusals |= self._configure(
            [change for change in todo if change.kind in (ChangeKind.SET_CONFIG, ChangeKind.RESET_CONFIG)]
        )
        given = {change: Acl.parse(str(change.after)) for change in todo if change.kind is ChangeKind.CREATE_ACL}
        taken = {change: Acl.parse(str(change.before)) for change in todo if change.kind is ChangeKind.DELETE_ACL}
        refused = self._target.create_acls(given.values())
        refusals |= {change: refused[acl] for change, acl in given.items() if acl in refused}
        refused = self._target.delete_acls(taken.values())
        refusals |= {change: refused[acl] for change, acl in taken.items() if acl in refused}
        self._record(todo, refusals)
        for error in refusals.values():
            if error.retriable and not error.lone:
                raise error
        return refusals

    def _new_topic(self, change: Change) -> NewTopic:
        return NewTopic(
            change.target_topic,
            int(change.after or 0),
            self.flow.replication_factor,
            config=self._new_configs[change.target_topic],
        )

    def _configure(self, changes: list[Change]) -> dict[Change, Any]:
        """Changes all properties of a topic in one request.

        If the request is refused, each property is sent alone, so that only the wrong one is missing.
        """
        by_topic: dict[str, list[Change]] = {}
        for change in changes:
            by_topic.setdefault(change.target_topic, []).append(change)
        refused = self._target.alter_configs(
            {topic: {str(change.name): change.after for change in group} for topic, group in by_topic.items()}
        )
        refusals: dict[Change, Any] = {}
        for topic, error in refused.items():
            for change in by_topic[topic]:
                again = (
                    self._target.alter_configs({topic: {str(change.name): change.after}})
                    if len(by_topic[topic]) > 1
                    else {topic: error}
                )
                refusals |= self._refused_of([change], again)
        return refusals

    @staticmethod
    def _refused_of(changes: Iterable[Change], refusals: Refusals) -> dict[Change, Any]:
        return {change: refusals[change.target_topic] for change in changes if change.target_topic in refusals}

    @staticmethod
    def _outcome(change: Change, refusals: Mapping[Change, TargetError]) -> str:
        """Returns the outcome of a change; a binding that may have been created is one that mirrorlake takes back."""
        if change not in refusals:
            return ChangeOutcome.APPLIED
        error = refusals[change]
        may_be_there = change.kind is ChangeKind.CREATE_ACL and error.retriable
        return f"{UNANSWERED}{error.message}" if may_be_there else error.message

    def _record(self, changes: Iterable[Change], refusals: Mapping[Change, TargetError]) -> None:
        now, rows = datetime.now(UTC).replace(tzinfo=None), []
        for change in changes:
            outcome = self._outcome(change, refusals)
            if self._refused.get(change) == outcome:
                continue  # logged and recorded when it was first refused
            self._log(change, outcome)
            if outcome != ChangeOutcome.APPLIED:
                self._refused[change] = outcome
            rows.append(
                {
                    "source": self.flow.source,
                    "target": self.flow.target,
                    "kind": change.kind.value,
                    "topic": change.topic,
                    "target_topic": change.target_topic,
                    "name": change.name,
                    "before": change.before,
                    "after": change.after,
                    "note": change.note,
                    "outcome": outcome,
                    "changed_at": now,
                }
            )
        self._ledger.append("topology_changes", rows)

    def _log(self, change: Change, outcome: str) -> None:
        about = {
            "flow": self.flow.name,
            "kind": change.kind.value,
            "topic": change.target_topic,
            "property": change.name or None,
        }
        if outcome == ChangeOutcome.APPLIED:
            said = event("topic_changed", **about, before=change.before, after=change.after, note=change.note or None)
            log.info(said)
        else:
            log.warning(event("topic_change_refused", **about, error=outcome))


@dataclass(frozen=True)
class TopologyResult:
    """The result of the topics job: every change that is due, with its outcome (`planned` in a dry run)."""

    flow: str
    topics: int
    outcomes: dict[Change, str] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        counts = Counter(
            outcome if outcome in (ChangeOutcome.APPLIED, ChangeOutcome.PLANNED) else ChangeOutcome.REFUSED
            for outcome in self.outcomes.values()
        )
        return {
            "flow": self.flow,
            "topics": self.topics,
            "changes": len(self.outcomes),
            **{outcome.value: counts[outcome] for outcome in ChangeOutcome},
        }

    def table(self) -> pd.DataFrame:
        """Returns one row for each change, for display."""
        import pandas as pd

        columns = ["kind", "topic", "target_topic", "name", "before", "after", "note", "outcome"]
        return pd.DataFrame(
            [
                {**asdict(change), "kind": change.kind.value, "outcome": outcome}
                for change, outcome in self.outcomes.items()
            ],
            columns=columns,
        ).fillna("")


def keep_in_step(flow: Flow, ledger: Ledger, *, dry_run: bool) -> TopologyResult:
    """Runs the topics job: syncs the remote topics of a flow with the source, or only plans it (`dry_run`).

    Raises:
        MirrorlakeError: a cluster can't be reached, remote names conflict, or the flow is closed.
    """
    with ending(log, "topics", flow=flow.name):
        return _keep_in_step(flow, ledger, dry_run=dry_run)


def _keep_in_step(flow: Flow, ledger: Ledger, *, dry_run: bool) -> TopologyResult:
    for warning in flow.warnings:
        log.warning(event("configuration_warning", flow=flow.name, detail=warning))
    client_id, timeout_ms = f"{flow.name}|topics", flow.connect_timeout_ms
    with closing(Cluster(flow.target_connection, "target", client_id, timeout_ms)) as target:
        states = read_all_states(target.connect(), flow.offset_syncs_topic, timeout_ms).values()
    require_open(flow, states)
    promoted = promoted_topics(states)
    with closing(Cluster(flow.source_connection, "source", client_id, timeout_ms)) as source:
        mirrored = {topic for topic, _ in merge_positions(states)}
        found = source_topics(source.connect(), flow, mirrored - promoted)
    topics = {name: topic.partitions for name, topic in found.items()}
    ledger.ensure_tables()
    topology = Topology(
        flow,
        Admin(flow.source_connection, "source", flow.name),
        Admin(flow.target_connection, "target", flow.name),
        ledger,
    )
    topology.promoted = promoted
    planned = topology.plan(topics)
    if dry_run:
        return TopologyResult(flow.name, len(topics), dict.fromkeys(planned, ChangeOutcome.PLANNED))
    return TopologyResult(flow.name, len(topics), topology.apply(planned))
