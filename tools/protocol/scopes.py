"""The scopes that are explored, and for each rule the invariant that the model breaks without it."""

from __future__ import annotations

from collections.abc import Mapping

from tools.protocol.invariant import Invariant
from tools.protocol.world import Rule, Scope, Start

ONE, TWO, CLOSING = Start(1), Start(2), Start(1, closes=True)

SCOPES: Mapping[str, Scope] = {
    "one job, attempts that live on, three faults": Scope(
        partitions=1, records=2, jobs=(ONE,), plans=2, attempts=3, faults=3
    ),
    "two jobs at once, three faults": Scope(partitions=1, jobs=(ONE, ONE), faults=3),
    "a job with fewer slots beside another": Scope(jobs=(TWO, ONE)),
    "a job with more slots beside another": Scope(jobs=(ONE, TWO)),
    "a failover closes the flow beside a job": Scope(partitions=1, jobs=(ONE, CLOSING), attempts=2, faults=2),
    "a failover closes a flow of two slots": Scope(jobs=(TWO, Start(2, closes=True)), faults=0),
    "partitions without a position": Scope(jobs=(TWO,), is_new=True, plans=2, faults=2),
    "brokers that are not the leader any more": Scope(
        partitions=1, records=2, jobs=(ONE, ONE), goes_stale=True, plans=2
    ),
    "a topic that is created anew": Scope(partitions=1, records=2, jobs=(ONE, ONE), renews=True),
    "a topic that is created anew, and fewer slots": Scope(partitions=1, records=2, jobs=(TWO, ONE), renews=True),
    "a failover of one topic beside a job": Scope(jobs=(TWO, Start(2, promotes=(0,)))),
    "a target that loses a state": Scope(
        partitions=1, records=2, jobs=(ONE, ONE), forgets=True, checks_writers=True, plans=2
    ),
}

BREAKS: Mapping[Rule, tuple[str, Invariant]] = {
    Rule.FENCE: ("one job, attempts that live on, three faults", Invariant.RESUMES),
    Rule.SETTLE: ("one job, attempts that live on, three faults", Invariant.ONCE),
    Rule.ONE_TRANSACTION: ("one job, attempts that live on, three faults", Invariant.TRUE),
    Rule.COMPARE: ("one job, attempts that live on, three faults", Invariant.ONCE),
    Rule.READ_THE_LOG: ("one job, attempts that live on, three faults", Invariant.KNOWN),
    Rule.REFUSE_NEWER: ("two jobs at once, three faults", Invariant.GENERATIONS),
    Rule.READ_BEHIND_FENCE: ("two jobs at once, three faults", Invariant.GENERATIONS),
    Rule.ALL_POSITIONS: ("a job with fewer slots beside another", Invariant.TRUE),
    Rule.FURTHEST: ("a job with fewer slots beside another", Invariant.TRUE),
    Rule.WHOLE_OPENING: ("a job with more slots beside another", Invariant.FENCED),
    Rule.STAY_CLOSED: ("a failover closes the flow beside a job", Invariant.CLOSED),
    Rule.GATE: ("partitions without a position", Invariant.GATED),
    Rule.KEEP_SLOT: ("partitions without a position", Invariant.ONCE),
    Rule.NEWEST_LOG: ("a topic that is created anew, and fewer slots", Invariant.TRUE),
    Rule.PLANNED_LOG: ("a topic that is created anew", Invariant.TRUE),
    Rule.STAY_PROMOTED: ("a failover of one topic beside a job", Invariant.CLOSED),
    Rule.BEHIND_THE_READ: ("brokers that are not the leader any more", Invariant.GENERATIONS),
    Rule.SOLE_WRITER: ("a target that loses a state", Invariant.ONCE),
}


def without(rule: Rule) -> Scope:
    """Returns the scope in which the model without a rule breaks an invariant."""
    scope, _ = BREAKS[rule]
    return SCOPES[scope]._replace(without=frozenset({rule}))
