"""ACLs of remote topics: a principal that may read a topic on the source may read its remote topic on the target.

A failover asks for more: whatever a principal may do on the source (`equal_acls`).

The rules of the sync are those of MirrorMaker 2 (`MirrorSourceConnector.syncTopicAcls`, Kafka 4.3.0), with these
differences:

- Prefixed patterns and the wildcard are mirrored, too.
- A binding that is revoked on the source is revoked on the target.
- Of ALL, only READ is passed on. No principal ever gets the right to write to a remote topic.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from mirrorlake.config.flow import Flow
from mirrorlake.config.replication_policy import is_topic_name
from mirrorlake.errors import LedgerError
from mirrorlake.protocol.topic_changes import Change, ChangeKind

READING = ("READ", "DESCRIBE", "DESCRIBE_CONFIGS")
WILDCARD, EVERYONE = "*", "User:*"
OPENED = "the remote topic is not kept read-only any more"
TOPIC, GROUP, TRANSACTIONAL_ID, CLUSTER = "TOPIC", "GROUP", "TRANSACTIONAL_ID", "CLUSTER"
DESCRIPTION = re.compile(r"(ALLOW|DENY) (\w+) to (.+) from (\S+) on (LITERAL|PREFIXED) (\S+)", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One ACL binding, in Kafka's words.

    `pattern` is LITERAL or PREFIXED, `permission` is ALLOW or DENY, `resource` is TOPIC, GROUP, TRANSACTIONAL_ID or
    CLUSTER.
    """

    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str
    resource: str = TOPIC

    def __str__(self) -> str:
        kind = "" if self.resource == TOPIC else f"{self.resource} "
        return (
            f"{self.permission} {self.operation} to {self.principal} from {self.host} on {kind}{self.pattern} "
            f"{self.name}"
        )

    @classmethod
    def parse(cls, text: str) -> Acl:
        """Parses a binding on topics from the text that `str` made of it."""
        found = DESCRIPTION.fullmatch(text)
        if found is None:
            raise LedgerError(f"table topology_changes: '{text}' is not an ACL")
        permission, operation, principal, host, pattern, name = found.groups()
        return cls(
            name=name, pattern=pattern, principal=principal, host=host, operation=operation, permission=permission
        )


def remote_acls(flow: Flow, acl: Acl, topics: Collection[str]) -> Iterator[Acl]:
    """Yields the bindings on the target that correspond to a binding of the source.

    Only bindings about reading are mirrored, so that the mirror job never locks itself out. A binding is none whose
    host has white space, although brokers take it.
    """
    operation = "READ" if acl.operation == "ALL" else acl.operation
    if operation in READING and acl.host.split() == [acl.host]:
        for name, pattern in _remote_names(flow, acl, topics):
            yield Acl(
                name=name,
                pattern=pattern,
                principal=acl.principal,
                host=acl.host,
                operation=operation,
                permission=acl.permission,
            )


def _remote_names(flow: Flow, acl: Acl, topics: Collection[str]) -> Iterator[tuple[str, str]]:
    if acl.pattern == "LITERAL" and acl.name != WILDCARD:
        covered = [acl.name] if flow.mirrors_topic(acl.name) and not _is_taken(flow, acl.name, topics) else []
    else:
        prefix = "" if acl.pattern == "LITERAL" else acl.name
        covered = [topic for topic in topics if topic.startswith(prefix)]
        remote = flow.policy.remote_topic(prefix)
        if covered and flow.policy.puts_alias_in_front and not _reaches_others(flow, remote):
            yield remote, "PREFIXED"
            return
    # Under other policies, a prefix would also cover the target's own topics.
    names = map(flow.policy.remote_topic, covered)
    yield from ((name, "LITERAL") for name in names if is_topic_name(name))


def _reaches_others(flow: Flow, prefix: str) -> bool:
    """Returns True if remote topics of another cluster begin with a prefix, as with the aliases us and us-east."""
    return any(other.startswith(prefix) or prefix.startswith(other) for other in flow.other_prefixes)


def _is_taken(flow: Flow, topic: str, topics: Collection[str]) -> bool:
    """Returns True if the remote topic of a topic is that of another one, so that its readers would read that."""
    remote = flow.policy.remote_topic
    if flow.policy.keeps_topics_apart or topic in topics:
        return False
    return remote(topic) in map(remote, topics)


def principals_of(flow: Flow, source: Iterable[Acl], topics: Iterable[str]) -> set[str]:
    """Returns the principals that are allowed something on topics of the flow on the source."""
    names = list(topics)
    return {
        acl.principal
        for acl in source
        if acl.resource == TOPIC and acl.permission == "ALLOW" and any(True for _ in _remote_names(flow, acl, names))
    }


def equal_acls(flow: Flow, source: Iterable[Acl], topics: Iterable[str]) -> Iterator[Acl]:
    """Yields the bindings on the target by which a flow's principals may do there what they may do on the source.

    These are the bindings on topics of the flow, under the names of the remote topics, and those of their principals on
    groups of the flow, on transactional ids and on idempotent writing. What is denied there is denied to whomever it
    is: what everybody is allowed, and one is not, would else be allowed to all.
    """
    names, bindings = list(topics), list(source)
    mine = principals_of(flow, bindings, names)
    for acl in bindings:
        if acl.resource == TOPIC:
            yield from (replace(acl, name=name, pattern=pattern) for name, pattern in _remote_names(flow, acl, names))
        elif (acl.principal in mine or acl.permission == "DENY") and _is_wanted(flow, acl):
            yield acl


def _is_wanted(flow: Flow, acl: Acl) -> bool:
    if acl.resource == GROUP:
        return acl.pattern != "LITERAL" or acl.name == WILDCARD or acl.name in flow.groups
    return acl.resource == TRANSACTIONAL_ID or (acl.resource == CLUSTER and acl.operation == "IDEMPOTENT_WRITE")


def is_denial(acl: Acl) -> bool:
    """Returns True for a binding that makes a remote topic read-only, of those that mirrorlake has created."""
    return acl.permission == "DENY" and acl.operation == "WRITE"


def denials(flow: Flow, target: Iterable[Acl], topics: Iterable[str]) -> dict[Acl, str]:
    """Returns the bindings that keep others from writing to the remote topics, each with its source topic.

    A binding for everyone can't be denied, as that would deny the writer of the flow, too.

    Args:
        flow: the flow, with its writer; without one, nothing is denied.
        target: the bindings on the target.
        topics: the source topics whose remote topics are mirrored.
    """
    if not flow.remote_topics_writer:
        return {}
    writers = [
        acl
        for acl in target
        if acl.permission == "ALLOW"
        and acl.operation in ("WRITE", "ALL")
        and acl.principal not in (flow.remote_topics_writer, EVERYONE)
    ]
    return {
        Acl(remote, "LITERAL", acl.principal, WILDCARD, "WRITE", "DENY"): topic
        for topic, remote in ((topic, flow.policy.remote_topic(topic)) for topic in topics)
        for acl in writers
        if acl.name in (remote, WILDCARD) or (acl.pattern == "PREFIXED" and remote.startswith(acl.name))
    }


def open_to_everyone(flow: Flow, target: Iterable[Acl], topics: Iterable[str]) -> list[str]:
    """Returns the remote topics that stay writable although the flow has a writer: everyone may write to them."""
    everyone = [replace(acl, principal="") for acl in target if acl.principal == EVERYONE]
    return sorted({acl.name for acl in denials(flow, everyone, topics)})


def is_still_denied(flow: Flow, given: Acl, source: Iterable[Acl]) -> bool:
    """Tells whether the source still denies what a binding on the target denies.

    The remote topic of one that is gone, or is not mirrored any more, keeps its records. A binding that allows more
    topics may stand beside it.

    Args:
        flow: the flow.
        given: a binding on the target that mirrorlake has created.
        source: the bindings on topics of the source cluster.
    """
    if given.permission != "DENY" or is_denial(given):
        return False
    same = (given.principal, given.host, given.permission)
    return any(
        (acl.principal, acl.host, acl.permission) == same
        and given.operation == ("READ" if acl.operation == "ALL" else acl.operation)
        and _may_be_of(flow, acl, given)
        for acl in source
    )


def _may_be_of(flow: Flow, acl: Acl, given: Acl) -> bool:
    """Tells whether a binding on the target may correspond to one of the source, whatever topics there are."""
    if acl.pattern == "LITERAL" and acl.name != WILDCARD:
        return given.pattern == "LITERAL" and given.name == flow.policy.remote_topic(acl.name)
    if not flow.policy.keeps_topics_apart:  # the beginning of a topic's name may be gone from that of its remote topic
        return True
    prefix = "" if acl.pattern == "LITERAL" else acl.name
    return given.name.startswith(flow.policy.remote_topic(prefix))


def acl_changes(
    flow: Flow,
    source: Iterable[Acl],
    target: Iterable[Acl],
    given: Iterable[Acl],
    topics: Iterable[str],
    promoted: Collection[str] = (),
) -> Iterator[Change]:
    """Yields the bindings to create and to delete on the target.

    Args:
        flow: the flow whose remote topics are meant.
        source: the bindings on topics of the source cluster.
        target: the bindings on topics of the target cluster.
        given: the bindings on the target that mirrorlake itself has created. Only these are ever deleted.
        topics: the source topics of the flow.
        promoted: those of them whose remote topics others may write to.
    """
    names, have, bindings = list(topics), set(target), sorted(source)
    is_synced = flow.sync_topic_acls_enabled
    wanted = {remote: acl for acl in bindings for remote in remote_acls(flow, acl, names)} if is_synced else {}
    denied = denials(flow, have, (name for name in names if name not in promoted))
    for denial, topic in sorted(denied.items()):
        if denial not in have:
            yield Change(
                kind=ChangeKind.CREATE_ACL,
                topic=topic,
                target_topic=denial.name,
                name="acl",
                before=None,
                after=str(denial),
                note="remote topics are read-only (mirrorlake.remote.topics.writer)",
            )
    for remote, acl in sorted(wanted.items()):
        if remote not in have:
            note = (
                f"the source's ACL is for {acl.operation}, but remote topics are read-only"
                if acl.operation != remote.operation
                else None
            )
            yield Change(
                kind=ChangeKind.CREATE_ACL,
                topic=acl.name,
                target_topic=remote.name,
                name="acl",
                before=None,
                after=str(remote),
                note=note,
            )
    for acl in sorted(set(given)):
        if acl in denied or not (is_synced or is_denial(acl)):
            continue
        if acl not in wanted and not is_still_denied(flow, acl, bindings):  # another client may have deleted it
            yield Change(
                kind=ChangeKind.DELETE_ACL,
                topic=None,
                target_topic=acl.name,
                name="acl",
                before=str(acl),
                after=None,
                note=OPENED if is_denial(acl) else "revoked on the source, or its topic is no longer mirrored",
            )
