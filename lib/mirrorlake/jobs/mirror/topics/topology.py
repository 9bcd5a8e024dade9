"""Keeps the remote topics of a flow in step with the source: existence, partitions, configuration and access rights.

Remote topics are never shrunk and never deleted. Each change that is made or refused is a row of the table
topology_changes. An error about one topic does not stop the others: it is returned, and the next call tries again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError, TargetError
from mirrorlake.jobs.mirror.topics.change_maker import ChangeLedger, ChangeMaker, require_answers
from mirrorlake.log import event
from mirrorlake.protocol.acls import Acl, acl_changes, open_to_everyone
from mirrorlake.protocol.admin import Admin, Refusals
from mirrorlake.protocol.topic_changes import (
    Change,
    ChangeKind,
    ChangeOutcome,
    config_changes,
    creation,
    growth,
    largest_message,
)

log = logging.getLogger(__name__)

AGAIN_S, LONGEST_S = 1.0, 300.0  # the shortest and the longest pause before what may succeed later is asked for again
WAITS_LESS = 10  # the pause is this many times as long as the wait for the last answer
EXISTENCE = frozenset({ChangeKind.CREATE_TOPIC, ChangeKind.ADD_PARTITIONS})


class Topology:
    """The remote topics of one flow.

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
        self._again_at = 0.0  # on the monotonic clock, for those of `_unready` whose error may pass
        self._changes = ChangeMaker(target, ledger)
        self._undescribed: set[tuple[str, str]] = set()  # clusters and topics without DESCRIBE_CONFIGS, as logged
        self._new_configs: dict[str, dict[str, str]] = {}
        self._known_properties: frozenset[str] = frozenset()
        self.promoted: frozenset[str] = frozenset()  # topics that follow the source no more; readers keep their access

    # -- topics that the mirror job needs -----------------------------------------------------------

    def ensure(self, topics: Mapping[str, int]) -> Refusals:
        """Creates remote topics, adds partitions, and configures them so that they take batches unchanged.

        A call for topics that were ensured before sends no requests, nor does one for topics that were refused for
        good before `try_again`. What may pass is asked for again after a second, or after ten times as long as the
        answer took, up to five minutes: topics that are ready wait for that answer.

        Returns:
            Errors by source topic; topics without an error are ready.

        Raises:
            ConfigurationError: see `Flow.remote_topics`.
            TargetError: a retriable failure about a configuration; or a remote topic would overwrite timestamps, and
                its configuration can't be changed.
        """
        mine = {topic: partitions for topic, partitions in topics.items() if topic not in self.promoted}
        unready = {topic: count for topic, count in mine.items() if self._settled.get(topic, 0) < count}
        known = {
            topic: self._unready[topic][1]
            for topic, count in unready.items()
            if topic in self._unready and self._unready[topic][0] == count and not self._is_due(topic)
        }
        new = {topic: count for topic, count in unready.items() if topic not in known}
        if not new:
            return known
        remote_of, began = self.flow.remote_topics(topics), time.monotonic()
        refusals = self._make(self._topic_changes(new, topics, new.keys() - self._settled.keys()))
        ended = time.monotonic()
        self._again_at = ended + min(max(AGAIN_S, WAITS_LESS * (ended - began)), LONGEST_S)
        require_answers({change: error for change, error in refusals.items() if change.kind not in EXISTENCE})
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
            missing = next((error for change, error in refused.items() if change.kind in EXISTENCE), None)
            if missing is None:
                self._settled[topic] = partitions
                self._unready.pop(topic, None)
            else:
                failures[topic] = missing
                self._unready[topic] = partitions, missing
        return failures

    def _is_due(self, topic: str) -> bool:
        """Returns True if an unready topic may be ready now."""
        _, error = self._unready[topic]
        return error.retriable and time.monotonic() >= self._again_at

    def try_again(self, gone: Iterable[str]) -> None:
        """Lets `ensure` look again at topics that were refused, and at those that may be gone."""
        self._unready = {topic: one for topic, one in self._unready.items() if one[1].retriable}
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
        require_answers(self._make(changes + (self._acl_changes(topics) if acls else [])))

    def apply(self, changes: list[Change]) -> dict[Change, str]:
        """Makes the changes of a plan, and returns the outcome of each."""
        refusals = self._make(changes)
        require_answers(refusals)
        return {change: refusals[change].message if change in refusals else ChangeOutcome.APPLIED for change in changes}

    def _make(self, changes: list[Change]) -> dict[Change, TargetError]:
        return self._changes.make(self.flow, changes, self._new_configs)

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
