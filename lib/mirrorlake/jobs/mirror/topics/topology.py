"""Keeps the remote topics of a flow in step with the source: existence, partitions, configuration and access rights.

Remote topics are never shrunk and never deleted. One that holds records of others is not touched. Each change that is
made or refused is a row of the table topology_changes. An error about one topic does not stop the others: it is
returned, and the next call tries again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mirrorlake.config.flow import Flow
from mirrorlake.errors import LedgerError, MirrorlakeError, SourceError, TargetError
from mirrorlake.jobs.mirror.topics.change_maker import ChangeLedger, ChangeMaker, require_answers
from mirrorlake.jobs.mirror.topics.way_back import WayBack
from mirrorlake.log import event
from mirrorlake.protocol.acls import Acl, acl_changes, open_to_everyone
from mirrorlake.protocol.admin import Admin, Refusals, is_away
from mirrorlake.protocol.topic_changes import (
    NEEDED,
    NEEDED_SIZE,
    TIMESTAMP_TYPE,
    Change,
    ChangeKind,
    ChangeOutcome,
    Entry,
    config_changes,
    creation,
    growth,
    largest_message,
    overrides_ended,
)
from mirrorlake.reasons import TopicHeld

log = logging.getLogger(__name__)

AGAIN_S, LONGEST_S = 1.0, 30.0  # the shortest and the longest pause before what may succeed later is asked for again
WAITS_LESS = 10  # the pause is this many times as long as the wait for the last answer
EXISTENCE = frozenset({ChangeKind.CREATE_TOPIC, ChangeKind.ADD_PARTITIONS})


@dataclass(frozen=True)
class Unready:
    """A topic that is not ready, or whose configuration is not known to be.

    Attributes:
        remote: its remote topic.
        partitions: the number of partitions that it is to have.
        error: the error of the last request about it.
        is_missing: whether the remote topic, or a partition of it, could not be created.
        is_unfit: whether the remote topic is there, and would not keep records as they are.
    """

    remote: str
    partitions: int
    error: MirrorlakeError
    is_missing: bool
    is_unfit: bool

    def failure(self, flow: Flow) -> MirrorlakeError | None:
        """Returns the error for which the topic can't be mirrored; None if it can be."""
        if self.is_missing:
            return self.error
        if not self.is_unfit:
            return None
        why = TopicHeld.UNFIT.about(flow=flow.name, remote=self.remote, target=flow.target, error=self.error)
        return TargetError(why, retriable=self.error.retriable)


class Topology:
    """The remote topics of one flow.

    Args:
        flow: flow of the topics.
        source: administration of the source.
        target: administration of the target.
        ledger: tables that record changes, and the access rights that mirrorlake has granted.
        way_back: tells which topics the flow back keeps in step.
    """

    def __init__(self, flow: Flow, source: Admin, target: Admin, ledger: ChangeLedger, way_back: WayBack) -> None:
        self.flow, self._source, self._target, self._ledger = flow, source, target, ledger
        self._way_back = way_back
        self._settled: dict[str, int] = {}
        self._unready: dict[str, Unready] = {}
        self._again_at = 0.0  # on the monotonic clock, for those of `_unready` whose error may pass
        self._changes = ChangeMaker(target, ledger)
        self._undescribed: set[tuple[str, str]] = set()  # clusters and topics without DESCRIBE_CONFIGS, as logged
        self._left_to_both: set[str] = set()  # remote topics that differ, and the flow back keeps, as logged
        self._given_by_both: Set[Acl] = frozenset()  # rights that this flow and the flow back have given, as logged
        self._new_configs: dict[str, dict[str, str]] = {}
        self._undescribed_new: dict[str, MirrorlakeError] = {}  # why remote topics were not created the last time
        self._known_properties: frozenset[str] = frozenset()
        self.promoted: frozenset[str] = frozenset()  # topics that follow the source no more; readers keep their access
        self.foreign: frozenset[str] = frozenset()  # topics whose remote topic is, or may be, that of somebody else

    # -- topics that the mirror job needs -----------------------------------------------------------

    def ensure(self, topics: Mapping[str, int]) -> Refusals:
        """Creates remote topics, adds partitions, and configures them so that they take batches unchanged.

        A call for topics that were ensured before sends no requests, nor does one for topics that were refused for
        good before `try_again`. What may pass is asked for again after a second, or after ten times as long as the
        answer took, up to half a minute: topics that are ready wait for that answer. If there was none, it is asked for
        once the controller answers again, for which nothing waits.

        Returns:
            Errors by source topic; topics without an error are ready.

        Raises:
            ConfigurationError: see `Flow.remote_topics`.
        """
        mine = self._followed(topics)
        unready = {topic: count for topic, count in mine.items() if self._settled.get(topic, 0) < count}
        waiting = {topic: known for topic, count in unready.items() if (known := self._waiting(topic, count))}
        failures: Refusals = {topic: error for topic, known in waiting.items() if (error := known.failure(self.flow))}
        new = {topic: count for topic, count in unready.items() if topic not in waiting}
        if not new:
            return failures
        remote_of, began = self.flow.remote_topics(topics), time.monotonic()
        refusals = self._make(self._topic_changes(new, topics, new.keys() - self._settled.keys()))
        refused_of = _by_remote(refusals)
        ended = time.monotonic()
        is_answered = self._changes.is_answered(self.flow)
        self._again_at = ended + (
            min(max(AGAIN_S, WAITS_LESS * (ended - began)), LONGEST_S) if is_answered else AGAIN_S
        )
        for topic, partitions in new.items():
            refused = refused_of.get(remote_of[topic], {})
            missing = next(
                (error for change, error in refused.items() if change.kind in EXISTENCE),
                self._undescribed_new.get(remote_of[topic]),
            )
            unfit = _unfit(refused)
            why = missing or unfit or next(filter(is_away, refused.values()), None)
            if why is None:
                self._settled[topic] = partitions
                self._unready.pop(topic, None)
                continue
            known = Unready(
                remote_of[topic], partitions, why, is_missing=missing is not None, is_unfit=unfit is not None
            )
            self._unready[topic] = known
            if (failure := known.failure(self.flow)) is not None:
                failures[topic] = failure
        self._hold_stamping(mine, refusals)  # topics that were ready may share a remote topic with one that is new
        return failures

    def _followed(self, topics: Mapping[str, int]) -> dict[str, int]:
        """Returns the topics whose remote topics follow them."""
        left_alone = self.promoted | self.foreign
        return {topic: count for topic, count in topics.items() if topic not in left_alone}

    @property
    def unfit(self) -> dict[str, MirrorlakeError]:
        """Errors of topics whose remote topic is there, and would not keep records as they are."""
        return {
            topic: error
            for topic, known in [*self._unready.items()]
            if known.is_unfit and (error := known.failure(self.flow))
        }

    def _waiting(self, topic: str, partitions: int) -> Unready | None:
        """Returns what is known of a topic that is not ready for that many partitions, and can't be by now."""
        known = self._unready.get(topic)
        if known is None or known.partitions != partitions:
            return None
        if not known.error.retriable or time.monotonic() < self._again_at:
            return known
        return known if is_away(known.error) and not self._changes.is_answered(self.flow) else None

    def try_again(self, gone: Iterable[str]) -> None:
        """Lets `ensure` look again at topics that were refused, and at those that may be gone."""
        self._unready = {topic: one for topic, one in list(self._unready.items()) if one.error.retriable}
        for topic in gone:
            self._settled.pop(topic, None)

    # -- topic sync ---------------------------------------------------------------------------------

    def plan(self, topics: Mapping[str, int]) -> list[Change]:
        """Returns all changes that are due, without making them.

        A topic with 0 partitions may not be described on the source: nothing of it changes, and readers keep access.
        """
        asked = {topic: count for topic, count in self._followed(topics).items() if count}
        changes = self._topic_changes(asked, topics, asked.keys())
        for error in self._undescribed_new.values():
            raise error
        return changes + self._acl_changes(topics)

    def sync(self, topics: Mapping[str, int], *, configs: bool, acls: bool) -> None:
        """Syncs configuration and access rights, as requested."""
        self.ensure(topics)
        changes = self._config_changes((self._settled.keys() & topics.keys()) - self.foreign) if configs else []
        refusals = self._make(changes + (self._acl_changes(topics) if acls else []))
        self._hold_stamping(topics, refusals)
        require_answers(refusals)

    def _hold_stamping(self, topics: Mapping[str, int], refusals: Mapping[Change, TargetError]) -> None:
        """Holds the topics whose remote topic has begun to replace timestamps, where that can't be changed."""
        stamping = {change.target_topic: error for change, error in refusals.items() if change.name == TIMESTAMP_TYPE}
        if not stamping:
            return
        remote_of = self.flow.remote_topics(topics)
        for topic in [topic for topic in topics if topic in self._settled and remote_of[topic] in stamping]:
            remote, partitions = remote_of[topic], topics[topic]
            self._unready[topic] = Unready(remote, partitions, stamping[remote], is_missing=False, is_unfit=True)
            self._settled.pop(topic, None)

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
        sharing: dict[str, list[str]] = {}
        for topic, partitions in sorted(topics.items()):
            widest[remote_of[topic]] = max(widest.get(remote_of[topic], 0), partitions)
            if partitions and topic not in self.promoted:
                sharing.setdefault(remote_of[topic], []).append(topic)
        known = [topic for topic in asked if remote_of[topic] in have]
        self._undescribed_new = {}
        missing = {remote_of[topic]: sharing[remote_of[topic]] for topic in asked if remote_of[topic] not in have}
        changes = [*self._creations(missing, widest), *self._growths(known, remote_of, have, widest)]
        compared = {other for topic in known if topic in configured for other in sharing[remote_of[topic]]}
        return changes + self._config_changes(compared)

    def _creations(self, wanted: Mapping[str, Sequence[str]], widest: Mapping[str, int]) -> Iterator[Change]:
        """Yields one change for each remote topic, of which the first of its topics decides."""
        if not wanted:
            return
        denied = set[str]()
        configs = self._describe(self._source, (topic for sharing in wanted.values() for topic in sharing), denied)
        known = self._known()
        for remote, sharing in sorted(wanted.items()):
            if unread := [topic for topic in sharing if topic not in configs and topic not in denied]:
                self._undescribed_new[remote] = SourceError(
                    f"flow {self.flow.name}: cluster {self.flow.source} does not describe topic {unread[0]} now, so "
                    f"topic {remote} can't be created with its configuration",
                    retriable=True,
                    lone=True,
                )
                continue
            change, self._new_configs[remote] = creation(
                self.flow,
                sharing[0],
                remote=remote,
                partitions=widest[remote],
                source=_of_all(sharing, configs),
                known=known,
            )
            yield change

    def _known(self) -> frozenset[str]:
        """Returns the names of the properties that a topic of the target has; none if they can't be read.

        Before the mirror job has run for the first time, the flow has no topic of its own there.
        """
        if not self._known_properties:
            syncs, there = self.flow.offset_syncs_topic, self._target.partitions()
            for topic in [syncs] if syncs in there else sorted(there)[:1]:
                self._known_properties = frozenset(self._describe(self._target, [topic]).get(topic, ()))
        return self._known_properties

    @staticmethod
    def _growths(
        topics: Iterable[str], remote_of: Mapping[str, str], have: Mapping[str, int], widest: Mapping[str, int]
    ) -> Iterator[Change]:
        for remote, topic in {remote_of[topic]: topic for topic in topics}.items():
            yield from growth(topic, remote, have[remote], widest[remote])

    def _config_changes(self, topics: Iterable[str]) -> list[Change]:
        """Returns the changes of remote topics, of each of which all topics are given; the first one decides."""
        wanted = sorted(topics)
        remote_of = self.flow.remote_topics(wanted)
        source = self._describe(self._source, wanted)
        target = self._describe(self._target, remote_of.values())
        kept_back = self._way_back.kept(self.flow, {topic: remote_of[topic] for topic in wanted})
        sharing: dict[str, list[str]] = {}
        for topic in wanted:
            sharing.setdefault(remote_of[topic], []).append(topic)
        mine = {remote: those for remote, those in sharing.items() if kept_back.isdisjoint(those)}
        changes = self._overrides_ended(mine, source, target)
        left: dict[str, list[Change]] = {}
        for remote, those in sharing.items():
            if remote in target:
                config = _of_all(those, source)
                compared = partial(config_changes, topic=those[0], remote=remote, source=config, target=target[remote])
                due = list(compared(self.flow))
                if not kept_back.isdisjoint(those):
                    every, due = due, list(compared(replace(self.flow, sync_topic_configs_enabled=False)))
                    left[remote] = [one for one in every if one.name not in {change.name for change in due}]
                changes += due
        self._say_left(left)
        return changes

    def _overrides_ended(
        self,
        sharing: Mapping[str, Sequence[str]],
        source: Mapping[str, Mapping[str, Entry]],
        target: Mapping[str, Mapping[str, Entry]],
    ) -> list[Change]:
        """Returns the resets of properties that the flow has set, and that only the source's broker file sets by now.

        Those that somebody else has set on the target stay, as they do with MirrorMaker 2.
        """
        ended = [
            change
            for remote, those in sharing.items()
            for change in overrides_ended(
                self.flow, those[0], remote, source.get(those[0], {}), target=target.get(remote, {})
            )
        ]
        given: Mapping[tuple[str, str], str] = {}
        if ended:
            with contextlib.suppress(LedgerError):  # nothing is reset then; the next sync asks again
                given = self._ledger.set_configs(self.flow)
        return [change for change in ended if given.get((change.target_topic, str(change.name))) == change.before]

    def _say_left(self, left: Mapping[str, Sequence[Change]]) -> None:
        """Says which remote topics differ from their source, and are left as they are, once for each."""
        differ = {remote: changes for remote, changes in left.items() if changes}
        if new := differ.keys() - self._left_to_both:
            flow, remote, (first, *_) = self.flow, min(new), differ[min(new)]
            there, here = (value or "its default" for value in (first.after, first.before))
            reason = (
                f"{first.name} differs, for example: {there} on {flow.source}, {here} on {flow.target}. This flow and "
                f"{flow.name_back} are open, and each would undo the other. Set sync.topic.configs.enabled "
                "= false for one of them; the topics of its source then follow those of its target"
            )
            names = f"{remote}{f' and {len(new) - 1} more' if len(new) > 1 else ''}"
            log.warning(event("configs_not_synced", flow=flow.name, cluster=flow.target, topics=names, reason=reason))
        self._left_to_both = (self._left_to_both - left.keys()) | differ.keys()

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
        bound = {acl.name for acl in source if self.flow.mirrors_topic(acl.name)}  # those that are not there, too
        giver = self._way_back.giver(self.flow, {one: self.flow.policy.remote_topic(one) for one in names | bound})
        theirs = set(map(Acl.parse, self._ledger.granted_acls(giver))) if giver is not None else set()
        given = set(map(Acl.parse, self._ledger.granted_acls(self.flow)))
        self._say_given_by_both(theirs & given)
        changes = acl_changes(
            self.flow,
            [acl for acl in source if acl not in theirs],
            target=target,
            given=given - theirs,
            topics=sorted(names),
            promoted=self.promoted,
        )
        foreign = {self.flow.policy.remote_topic(topic) for topic in self.foreign}
        return [one for one in changes if one.kind is ChangeKind.DELETE_ACL or one.target_topic not in foreign]

    def _say_given_by_both(self, acls: Set[Acl]) -> None:
        """Says which rights both flows have given, each at a time when the other was closed, once for each."""
        if acls - self._given_by_both:
            flow = self.flow
            reason = (
                f"this flow and {flow.name_back} have both given {min(acls)}, for example, so nobody knows "
                "where it comes from. It stays on both clusters; to revoke it, delete it on both"
            )
            log.warning(event("acls_not_synced", flow=flow.name, cluster=flow.target, reason=reason))
        self._given_by_both = acls

    def _describe(self, admin: Admin, topics: Iterable[str], denied: set[str] | None = None) -> dict[str, Any]:
        denied = set() if denied is None else denied
        found = admin.configs(sorted(set(topics)), denied)
        cluster = self.flow.source if admin is self._source else self.flow.target
        if new := {topic for topic in denied if (cluster, topic) not in self._undescribed}:
            self._undescribed |= {(cluster, topic) for topic in new}
            names = f"{min(new)}{f' and {len(new) - 1} more' if len(new) > 1 else ''}"
            reason = "the principal needs DESCRIBE_CONFIGS on each TOPIC"
            log.warning(event("configs_not_synced", flow=self.flow.name, cluster=cluster, topics=names, reason=reason))
        return found


def _by_remote(refusals: Mapping[Change, TargetError]) -> dict[str, dict[Change, TargetError]]:
    found: dict[str, dict[Change, TargetError]] = {}
    for change, error in refusals.items():
        found.setdefault(change.target_topic, {})[change] = error
    return found


def _unfit(refused: Mapping[Change, TargetError]) -> TargetError | None:
    """Returns the error for which a remote topic would not keep records as they are; None if it would.

    It would replace every timestamp, or nobody knows yet whether it takes batches unchanged. Where another change that
    mirroring needs is refused for good, the copy goes on: a batch that the target does not take is an error of its own.
    """
    for change, error in refused.items():
        if change.name == TIMESTAMP_TYPE or (change.note in (NEEDED, NEEDED_SIZE) and is_away(error)):
            return error
    return None


def _of_all(sharing: Sequence[str], configs: Mapping[str, Mapping[str, Entry]]) -> dict[str, Entry]:
    """Returns the configuration that a remote topic follows: that of the first of its topics, and the largest limit."""
    return {**configs.get(sharing[0], {}), **largest_message(configs.get(topic, {}) for topic in sharing)}
