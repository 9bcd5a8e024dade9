"""Faults of single requests: what can happen to one, and the rules that say to which requests it happens.

A fault leaves the peers only states that a network, a proxy or a broker can leave them. After a request that got no
answer, a connection has no further answers either, because Kafka answers in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from mirrorlake.local.proxy.requests import Request


class Fault(StrEnum):
    """The faults of a request. The broker applies a request, unless the fault says otherwise."""

    DELAYED = "delayed"  # the request arrives later
    ANSWER_DELAYED = "answer_delayed"  # the answer arrives later
    LOST = "lost"  # not applied; the connection stays open and says nothing any more
    CUT_BEFORE = "cut_before"  # not applied; the connection is closed
    CUT_WITHIN = "cut_within"  # not applied; the connection is closed in the middle of the request
    CUT_AFTER = "cut_after"  # the connection is closed in place of the answer
    CUT_WITHIN_ANSWER = "cut_within_answer"  # the connection is closed in the middle of the answer
    HALF_OPEN = "half_open"  # the answer is lost; the connection stays open and says nothing any more
    THROTTLED = "throttled"  # the answer asks the client to pause
    REFUSED = "refused"  # not applied, and answered with an error (requests that only read are answered so)
    MISREPORTED = "misreported"  # applied, and answered with an error
    LATE = "late"  # the connection is closed, and the request arrives afterwards, over another one
    DOUBLED = "doubled"  # the request arrives once more afterwards, over another connection
    CORRUPTED = "corrupted"  # a byte of the fetched records is another one
    CUT_OFF = "cut_off"  # the fetched records end in the middle of a batch
    LYING_LENGTH = "lying_length"  # a fetched batch says that it has another length
    MISPLACED = "misplaced"  # a fetched batch says that it has another first offset


@dataclass(frozen=True)
class Rule:
    """One fault of one request.

    Attributes:
        api: name of the kind of request, such as `EndTxn`.
        fault: what happens to it.
        skip: the number of such requests that pass before.
        delay_ms: for how long something is delayed, or the client is asked to pause.
        code: the error code that is answered.
        pick: which entry of an answer, or which byte of records, is changed; any number.
    """

    api: str
    fault: Fault
    skip: int = 0
    delay_ms: int = 0
    code: int = 0
    pick: int = 0

    def to_json(self) -> dict[str, Any]:
        """Returns the rule as plain values, for `of_json`."""
        return asdict(self)

    @staticmethod
    def of_json(values: dict[str, Any]) -> Rule:
        """Restores a rule."""
        return Rule(**{**values, "fault": Fault(values["fault"])})


class Rules:
    """The rules of a proxy, with the requests that it has seen and the faults that it has made.

    Attributes:
        seen: the number of requests, by kind.
        made: the number of faults, by kind of request and fault.
    """

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.seen: Counter[str] = Counter()
        self.made: Counter[tuple[str, Fault]] = Counter()
        self._waiting: dict[str, list[Rule]] = {}
        self.arm(rules)

    def arm(self, rules: Iterable[Rule]) -> None:
        """Replaces the rules that have not been used; counting for `skip` begins anew."""
        self._waiting = {}
        self._passed: Counter[str] = Counter()
        for rule in sorted(rules, key=lambda rule: rule.skip):
            self._waiting.setdefault(rule.api, []).append(rule)

    def fault_of(self, request: Request) -> Rule | None:
        """Counts a request; returns the rule for it, which is used up then."""
        self.seen[request.api] += 1
        waiting = self._waiting.get(request.api)
        number = self._passed[request.api]
        self._passed[request.api] += 1
        return waiting.pop(0) if waiting and waiting[0].skip <= number else None

    def note(self, rule: Rule) -> None:
        """Counts a fault that was made."""
        self.made[rule.api, rule.fault] += 1
