"""Makes changes on a target, and records each of them with its outcome."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from typing import Any, Protocol

from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError, TargetError
from mirrorlake.log import event
from mirrorlake.protocol.acls import Acl
from mirrorlake.protocol.admin import Admin, NewTopic, Refusals, is_away
from mirrorlake.protocol.topic_changes import (
    UNANSWERED,
    Change,
    ChangeKind,
    ChangeOutcome,
    before_3_6,
    names_bounds,
    only_needed,
)

log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks whether a controller answers again

Maker = tuple[Set[ChangeKind], Callable[[list[Change]], dict[Change, Any]]]


class ChangeLedger(Protocol):
    """Records changes, and knows the access rights that mirrorlake has granted."""

    def append(self, name: str, rows: Iterable[Any], /) -> None:
        """Takes rows of a table."""

    def granted_acls(self, flow: Flow) -> list[str]:
        """Lists the ACL bindings that mirrorlake has created and not deleted, as text."""

    def set_configs(self, flow: Flow) -> dict[tuple[str, str], str]:
        """Returns the value of each property, by remote topic and name, that mirrorlake has set and not reset."""


class ChangeMaker:
    """Makes the changes of one flow.

    Args:
        target: administration of the target.
        ledger: tables that record changes.
    """

    def __init__(self, target: Admin, ledger: ChangeLedger) -> None:
        self._target, self._ledger = target, ledger
        self._refused: dict[Change, str] = {}  # with the outcomes that were recorded
        self._away: MirrorlakeError | None = None  # the error of the last changes, if they had no answer
        self._look_at = 0.0  # on the monotonic clock

    def is_answered(self, flow: Flow) -> bool:
        """Returns whether the controller has answered the last changes, or does so again; waits for nothing."""
        if self._away is not None and time.monotonic() >= self._look_at:
            if self._target.answers(flow.offset_syncs_topic):
                self._away = None
            self._look_at = time.monotonic() + LOOK_S
        return self._away is None

    def make(
        self, flow: Flow, changes: Sequence[Change], new_configs: Mapping[str, Mapping[str, str]]
    ) -> dict[Change, TargetError]:
        """Makes changes, logs and records them; returns the errors of those that were refused.

        Behind a request without an answer, no more are sent until the controller answers again: each would wait as
        long.

        Args:
            flow: the flow of the changes.
            changes: the changes to make.
            new_configs: the configuration of each topic to create.
        """
        refusals, tried = dict[Change, Any](), list[Change]()
        away = None if self.is_answered(flow) else self._away
        left_out: list[Change] = []
        for kinds, make in self._makers(flow, new_configs, left_out):
            some = [change for change in (*changes, *left_out) if change.kind in kinds]
            if some and away is None:
                refused = make(some)
                tried += some
                away = self._away = next((error for error in refused.values() if is_away(error)), None)
            else:
                refused = dict.fromkeys(some, away)
            refusals |= refused
        if tried:
            self._record(flow, tried, refusals)
        return refusals

    def _makers(
        self, flow: Flow, new_configs: Mapping[str, Mapping[str, str]], left_out: list[Change]
    ) -> Iterator[Maker]:
        """Yields functions that make changes, with the kinds of these, in their order.

        Args:
            flow: the flow of the changes.
            new_configs: the configuration of each topic to create.
            left_out: takes the properties without which topics were created; they are set afterwards.
        """
        yield {ChangeKind.CREATE_TOPIC}, partial(self._create, flow, new_configs, left_out)
        yield {ChangeKind.ADD_PARTITIONS}, self._grow
        yield {ChangeKind.SET_CONFIG, ChangeKind.RESET_CONFIG}, self._configure
        yield {ChangeKind.CREATE_ACL}, self._create_acls
        yield {ChangeKind.DELETE_ACL}, self._delete_acls

    def _create(
        self,
        flow: Flow,
        new_configs: Mapping[str, Mapping[str, str]],
        left_out: list[Change],
        changes: list[Change],
    ) -> dict[Change, Any]:
        """Creates topics, and those that are refused once more, with other configurations.

        Before anything on it could be described, a cluster may be older than what was planned. Under intersection, a
        topic gets what it needs only: the target may know a property, and refuse the source's value. The others are
        set afterwards, one by one where that is refused: with the target's retention, old records would be gone.
        """
        refused = self._created(flow, changes, new_configs)
        if older := [change for change, error in refused.items() if names_bounds(error)]:
            new_configs = {topic: before_3_6(config) for topic, config in new_configs.items()}
            refused = _without(refused, older) | self._created(flow, older, new_configs)
        again = [change for change, error in refused.items() if not error.retriable]
        if flow.topic_configs != "intersection" or not again:
            return refused
        needed = {topic: only_needed(flow, config) for topic, config in new_configs.items()}
        refused_again = self._created(flow, again, needed)
        left_out += [
            Change(ChangeKind.SET_CONFIG, one.topic, one.target_topic, name, after=value)
            for one in again
            if one not in refused_again
            for name, value in sorted(new_configs[one.target_topic].items())
            if name not in needed[one.target_topic]
        ]
        return _without(refused, again) | refused_again

    def _created(
        self, flow: Flow, changes: list[Change], configs: Mapping[str, Mapping[str, str]]
    ) -> dict[Change, Any]:
        wanted = [
            NewTopic(one.target_topic, int(one.after or 0), flow.replication_factor, configs[one.target_topic])
            for one in changes
        ]
        return self._refused_of(changes, self._target.create(wanted))

    def _grow(self, changes: list[Change]) -> dict[Change, Any]:
        wanted = {change.target_topic: int(change.after or 0) for change in changes}
        return self._refused_of(changes, self._target.grow(wanted))

    def _create_acls(self, changes: list[Change]) -> dict[Change, Any]:
        given = {change: Acl.parse(str(change.after)) for change in changes}
        refused = self._target.create_acls(given.values())
        return {change: refused[acl] for change, acl in given.items() if acl in refused}

    def _delete_acls(self, changes: list[Change]) -> dict[Change, Any]:
        taken = {change: Acl.parse(str(change.before)) for change in changes}
        refused = self._target.delete_acls(taken.values())
        return {change: refused[acl] for change, acl in taken.items() if acl in refused}

    def _configure(self, changes: list[Change]) -> dict[Change, Any]:
        """Changes all properties of a topic at once.

        Where that is refused, each property is sent apart, so that only the wrong one is missing: the first ones of all
        such topics together, then the second ones; not behind a request without an answer.
        """
        by_topic: dict[str, list[Change]] = {}
        for change in changes:
            by_topic.setdefault(change.target_topic, []).append(change)
        refused = self._set(changes)
        apart = [by_topic[topic] for topic, error in refused.items() if len(by_topic[topic]) > 1 and not is_away(error)]
        left = {change for group in apart for change in group}
        refusals = {change: error for change, error in self._refused_of(changes, refused).items() if change not in left}
        for alike in zip_longest(*apart):
            if any(map(is_away, refusals.values())):
                break
            some = [change for change in alike if change is not None]
            refusals |= self._refused_of(some, self._set(some))
            left -= {*some}
        away = next(filter(is_away, refusals.values()), None)  # why some are left, if there are
        return refusals | dict.fromkeys(left, away)

    def _set(self, changes: Iterable[Change]) -> Refusals:
        """Sets properties of topics; returns the errors by topic."""
        wanted: dict[str, dict[str, str | None]] = {}
        for change in changes:
            wanted.setdefault(change.target_topic, {})[str(change.name)] = change.after
        return self._target.alter_configs(wanted)

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

    def _record(self, flow: Flow, changes: Sequence[Change], refusals: Mapping[Change, TargetError]) -> None:
        now, rows = datetime.now(UTC).replace(tzinfo=None), []
        for change in changes:
            outcome = self._outcome(change, refusals)
            if self._refused.get(change) == outcome:
                continue  # logged and recorded when it was first refused
            _log(flow, change, outcome)
            if outcome == ChangeOutcome.APPLIED:
                self._refused.pop(change, None)
            else:
                self._refused[change] = outcome
            rows.append(
                {
                    "source": flow.source,
                    "target": flow.target,
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


def _without(refused: Mapping[Change, Any], some: Iterable[Change]) -> dict[Change, Any]:
    left_out = {*some}
    return {change: error for change, error in refused.items() if change not in left_out}


def _log(flow: Flow, change: Change, outcome: str) -> None:
    about = {
        "flow": flow.name,
        "kind": change.kind.value,
        "topic": change.target_topic,
        "property": change.name or None,
    }
    if outcome == ChangeOutcome.APPLIED:
        said = event("topic_changed", **about, before=change.before, after=change.after, note=change.note or None)
        log.info(said)
    else:
        log.warning(event("topic_change_refused", **about, error=outcome))


def require_answers(refusals: Mapping[Change, TargetError]) -> None:
    """Raises the first error of a request that has to be repeated."""
    for error in filter(is_away, refusals.values()):
        raise error
