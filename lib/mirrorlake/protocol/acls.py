"""Access rights to remote topics: who may read a topic on the source may read its copy. Nobody is ever given the right
to write there.

MirrorMaker 2's rules (`MirrorSourceConnector.syncTopicAcls`, Kafka 4.3.0), and where they are known to hurt, the safer
choice: prefixed patterns and the wildcard are carried over too, what was revoked is revoked, and of what is allowed
only reading is passed on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mirrorlake.config.flow import Flow
from mirrorlake.errors import LedgerError
from mirrorlake.protocol.topic_changes import Change, ChangeKind

READING = ("READ", "DESCRIBE", "DESCRIBE_CONFIGS")
WILDCARD = "*"
DESCRIPTION = re.compile(r"(ALLOW|DENY) (\w+) to (.+) from (\S+) on (LITERAL|PREFIXED) (\S+)")


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One binding on topics: `pattern` is LITERAL or PREFIXED, `permission` ALLOW or DENY; words are Kafka's."""

    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str

    def __str__(self) -> str:
        return f"{self.permission} {self.operation} to {self.principal} from {self.host} on {self.pattern} {self.name}"

    @classmethod
    def parse(cls, text: str) -> Acl:
        """The binding that `str` has described."""
        found = DESCRIPTION.fullmatch(text)
        if found is None:
            raise LedgerError(f"table topology_changes: '{text}' describes no access right")
        permission, operation, principal, host, pattern, name = found.groups()
        return cls(name, pattern, principal, host, operation, permission)


def remote_acls(flow: Flow, acl: Acl, topics: Iterable[str]) -> Iterator[Acl]:
    """The bindings on the target that a source's stands for: only those about reading, so that the mirror itself is
    never locked out."""
    operation = "READ" if acl.operation == "ALL" else acl.operation
    if operation in READING:
        for name, pattern in _remote_names(flow, acl, topics):
            yield Acl(name, pattern, acl.principal, acl.host, operation, acl.permission)


def _remote_names(flow: Flow, acl: Acl, topics: Iterable[str]) -> Iterator[tuple[str, str]]:
    if acl.pattern == "LITERAL" and acl.name != WILDCARD:
        covered = [acl.name] if flow.mirrors_topic(acl.name) else []
    else:
        prefix = "" if acl.pattern == "LITERAL" else acl.name
        covered = [topic for topic in topics if topic.startswith(prefix)]
        if covered and flow.policy.puts_alias_in_front:
            yield flow.policy.remote_topic(prefix), "PREFIXED"
            return
    # Under any other policy a prefix would cover topics of the target's own.
    yield from ((flow.policy.remote_topic(topic), "LITERAL") for topic in covered)


def acl_changes(
    flow: Flow, source: Iterable[Acl], target: Iterable[Acl], given: Iterable[Acl], topics: Iterable[str]
) -> Iterator[Change]:
    """What to give and what to take back.

    Args:
        flow: whose topics.
        source, target: bindings on topics of both clusters.
        given: bindings on the target that mirrorlake has created itself; only these are ever taken back.
        topics: of the flow.
    """
    names = list(topics)
    wanted = {remote: acl for acl in sorted(source) for remote in remote_acls(flow, acl, names)}
    have = set(target)
    for remote, acl in sorted(wanted.items()):
        if remote not in have:
            note = (
                f"the source has {acl.operation}: copies are read, never written"
                if acl.operation != remote.operation
                else None
            )
            yield Change(ChangeKind.CREATE_ACL, acl.name, remote.name, "acl", None, str(remote), note)
    for acl in sorted(set(given)):
        if acl not in wanted:  # one that somebody else has taken away is recorded as gone by this
            yield Change(
                ChangeKind.DELETE_ACL,
                None,
                acl.name,
                "acl",
                str(acl),
                None,
                "revoked on the source, or its topic is no longer mirrored",
            )
