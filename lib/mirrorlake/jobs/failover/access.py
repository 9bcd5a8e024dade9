"""Compares what the principals of a flow may do on the source with what they may do on the target.

After a failover, producers and consumers need the same ACLs and quotas there, and users that can log in. Passwords
can't be copied, so that SCRAM users are listed only. The names of principals are taken to be the same on both clusters.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError
from mirrorlake.ledger.store import Ledger
from mirrorlake.protocol import acls
from mirrorlake.protocol.acls import EVERYONE, OPENED, Acl, equal_acls, is_denial, principals_of
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.probes.permissions import denied_transactions
from mirrorlake.protocol.topic_changes import ChangeKind, ChangeOutcome
from mirrorlake.protocol.users import Entity, read_quotas, read_scram_users, set_quota
from mirrorlake.state.closure import is_closed
from mirrorlake.state.offset_syncs import read_all_states

if TYPE_CHECKING:
    import pandas as pd

READ, WRITE = 3, 4  # codes of AclOperation
OPTIONS: Mapping[str, str] = {acls.TOPIC: "--topic", acls.GROUP: "--group", acls.TRANSACTIONAL_ID: "--transactional-id"}
ENTITIES: Mapping[str, str] = {"user": "users", "client-id": "clients", "ip": "ips"}


class AccessKind(StrEnum):
    """The kinds of access that the target lacks."""

    ACL = "acl"
    QUOTA = "quota"
    SCRAM_USER = "scram_user"
    DENIAL = "denial"
    PERMISSION = "permission"  # of this notebook's principal
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MissingAccess:
    """Access that principals have on the source and not on the target, or that closing the flow needs.

    Attributes:
        kind: kind of access.
        principal: principal or quota entity; empty for this notebook's own principal.
        missing: the ACL, the values of the quota, the mechanism, or the permission; of a denial, the ACL that denies.
        command: command of Kafka's tools that gives it, or takes a denial back; empty if there is none.
        outcome: `applied`, or the reason why the target refused it; empty if nothing was tried.
        acl: the binding to create.
        quota: entity and values to set.
    """

    kind: AccessKind
    principal: str
    missing: str
    command: str = ""
    outcome: str = ""
    acl: Acl | None = None
    quota: tuple[Entity, tuple[tuple[str, float], ...]] | None = None


def table(found: Iterable[MissingAccess]) -> pd.DataFrame:
    """Returns one row for each missing access, for display."""
    import pandas as pd

    shown = [one.name for one in fields(MissingAccess) if one.name not in ("acl", "quota")]
    return pd.DataFrame([[getattr(one, name) for name in shown] for one in found], columns=shown)


def missing_on_target(flow: Flow, source: Cluster, target: Cluster) -> list[MissingAccess]:
    """Lists the access that the principals of a flow have on the source, and not on the target.

    Without ACLs on the source, everyone counts as a principal of the flow. A part that a cluster does not list
    becomes a row of kind UNKNOWN.

    Args:
        flow: the flow.
        source: connected source cluster.
        target: connected target cluster.
    """
    topics = [name for name in source.refresh(None, flow.connect_timeout_ms) if flow.mirrors_topic(name)]
    here, there = Admin(flow.source_connection, "source", flow.name), Admin(flow.target_connection, "target", flow.name)
    bindings = here.acls("ANY")
    # librdkafka has an empty list for a cluster without an authorizer, too
    principals = principals_of(flow, bindings, topics) if bindings else None
    servers = ",".join(flow.target_connection.bootstrap_servers)

    def has(principal: str) -> bool:
        return principals is None or EVERYONE in principals or principal in principals

    return [
        *(() if bindings is None else _acls(flow, bindings, there.acls("ANY"), topics, servers)),
        *_parts("quotas", lambda: _quotas(flow, source, target, has, servers)),
        *_parts("SCRAM users", lambda: _scram_users(flow, source, target, has, servers)),
    ]


def unknown_denials(
    flow: Flow, target: Iterable[Acl] | None, ledger: Ledger, topics: Iterable[str]
) -> list[MissingAccess]:
    """Lists the ACLs that keep remote topics read-only and that the ledger does not know, so that nothing deletes them.

    The ledger may be lost, or an operator has created them: they look the same.

    Args:
        flow: the flow.
        target: bindings on the target; None if it does not list them.
        ledger: tables that know the ACLs which mirrorlake has created.
        topics: source topics that a run would close.
    """
    have = {*(target or ())}
    found = have & {*acls.denials(flow, have, topics)}
    if not found:
        return []
    return [_denial(flow, acl) for acl in sorted(found - {*map(Acl.parse, ledger.granted_acls(flow))})]


def missing_to_close(flow: Flow, target: Cluster) -> list[MissingAccess]:
    """Lists the permissions that this notebook's principal lacks on the target to close the flow."""
    timeout_ms, syncs = flow.connect_timeout_ms, flow.offset_syncs_topic
    states = read_all_states(target, syncs, timeout_ms)
    if not states or is_closed(states.values()):
        return []
    topic = target.refresh([syncs], timeout_ms, operations=True).get(syncs)
    lacking = [
        f"{name} on TOPIC {syncs}"
        for name, operation in (("READ", READ), ("WRITE", WRITE))
        if topic is not None and not topic.allows(operation)
    ]
    ids = [flow.transactional_id(slot) for slot in sorted(states)]
    unknown: list[MissingAccess] = []
    try:
        lacking += [f"WRITE on TRANSACTIONAL_ID {one}" for one in denied_transactions(target, ids, timeout_ms)]
    except MirrorlakeError as error:  # a coordinator is away; a run that does not close the flow needs none
        if not error.retriable:
            raise
        unknown = [
            MissingAccess(AccessKind.UNKNOWN, "", f"the right to close the flow can't be tested: {error.message}")
        ]
    found = [MissingAccess(AccessKind.PERMISSION, "", f"closing the flow needs {what}") for what in lacking]
    return found + unknown


def missing_to_open(flow: Flow, topics: Iterable[str] | None, ledger: Ledger) -> list[MissingAccess]:
    """Lists what this notebook's principal lacks on the target to let others write to remote topics.

    Args:
        flow: the flow.
        topics: source topics that a run would close; None for all.
        ledger: tables that know the ACLs which mirrorlake has created.
    """
    denied, admin = _denied_to_writers(flow, topics, ledger), Admin(flow.target_connection, "target", flow.name)
    if not denied:
        return []
    try:
        if admin.may_change_acls():
            return []
        there = admin.acls()
    except MirrorlakeError as error:
        what = f"the right to delete ACLs can't be tested: {error.message}"
        return [MissingAccess(AccessKind.UNKNOWN, "", what)]
    if there is None:  # an operator may have deleted them
        what = f"ALTER on CLUSTER is missing, to delete {len(denied)} ACLs such as {denied[0]}, if they are there still"
        return [MissingAccess(AccessKind.UNKNOWN, "", what)]
    denied = sorted({*denied} & {*there})
    if not denied:
        return []
    what = f"closing the flow needs ALTER on CLUSTER, to delete {len(denied)} ACLs such as {denied[0]}"
    return [MissingAccess(AccessKind.PERMISSION, "", what)]


def give(
    found: Iterable[MissingAccess], flow: Flow, target: Cluster, ledger: Ledger, signed_by: str
) -> list[MissingAccess]:
    """Gives missing ACLs and quotas on the target, and records each in the table topology_changes; returns all with
    their outcomes."""
    admin = Admin(flow.target_connection, "target", flow.name)
    done = [replace(one, outcome=_given(one, flow, admin, target)) for one in found]
    now = datetime.now(UTC).replace(tzinfo=None)
    ledger.append(
        "topology_changes",
        [
            {
                "source": flow.source,
                "target": flow.target,
                "kind": (ChangeKind.GRANT_ACCESS if one.acl else ChangeKind.SET_QUOTA).value,
                "topic": None,
                "target_topic": one.acl.name if one.acl else one.principal,
                "name": one.kind.value,
                "before": None,
                "after": one.missing,
                "note": f"the principal has it on the source; given at a failover signed by {signed_by or 'nobody'}",
                "outcome": one.outcome,
                "changed_at": now,
            }
            for one in done
            if one.outcome
        ],
    )
    return done


def open_to_writers(flow: Flow, topics: Iterable[str] | None, ledger: Ledger) -> list[MissingAccess]:
    """Deletes the ACLs that keep remote topics read-only, and records that in the table topology_changes.

    Args:
        flow: the flow.
        topics: source topics that were promoted; None for all.
        ledger: tables that know the ACLs which mirrorlake has created.

    Returns:
        The ACLs that the target has not deleted, with the reason as the outcome.
    """
    wanted = _denied_to_writers(flow, topics, ledger)
    if not wanted:
        return []
    admin, now = Admin(flow.target_connection, "target", flow.name), datetime.now(UTC).replace(tzinfo=None)
    there = admin.acls()  # an operator may have deleted some
    refused = admin.delete_acls(wanted if there is None else sorted({*wanted} & {*there}))
    rows = [
        {
            "source": flow.source,
            "target": flow.target,
            "kind": ChangeKind.DELETE_ACL.value,
            "topic": None,
            "target_topic": acl.name,
            "name": "acl",
            "before": str(acl),
            "after": None,
            "note": OPENED,
            "outcome": refused[acl].message if acl in refused else ChangeOutcome.APPLIED.value,
            "changed_at": now,
        }
        for acl in wanted
    ]
    ledger.append("topology_changes", rows)
    return [replace(_denial(flow, acl), outcome=refused[acl].message) for acl in wanted if acl in refused]


def _denied_to_writers(flow: Flow, topics: Iterable[str] | None, ledger: Ledger) -> list[Acl]:
    """Returns the ACLs that keep remote topics read-only, of those that mirrorlake has created and not deleted."""
    remotes = None if topics is None else {flow.policy.remote_topic(topic) for topic in topics}
    given = sorted({acl for acl in map(Acl.parse, ledger.granted_acls(flow)) if is_denial(acl)})
    return [acl for acl in given if remotes is None or acl.name in remotes]


def _denial(flow: Flow, acl: Acl) -> MissingAccess:
    """Returns an ACL that denies writing, with the command that deletes it."""
    servers = ",".join(flow.target_connection.bootstrap_servers)
    command = _acl_command(acl, servers, "--remove", "--force")
    return MissingAccess(AccessKind.DENIAL, acl.principal, str(acl), command)


def _given(one: MissingAccess, flow: Flow, admin: Admin, target: Cluster) -> str:
    if one.acl is not None:
        refused = admin.create_acls([one.acl])
        return refused[one.acl].message if refused else ChangeOutcome.APPLIED.value
    if one.quota is not None:
        try:
            set_quota(target, one.quota[0], dict(one.quota[1]), flow.connect_timeout_ms)
        except MirrorlakeError as error:
            return error.message
        return ChangeOutcome.APPLIED.value
    return ""


def _parts(what: str, read: Callable[[], Iterable[MissingAccess]]) -> list[MissingAccess]:
    """Returns what was read, or that it can't be: a missing permission must not stop a failover."""
    try:
        return list(read())
    except MirrorlakeError as error:
        return [MissingAccess(AccessKind.UNKNOWN, "", f"{what} can't be compared: {error.message}")]


def _acls(
    flow: Flow, bindings: list[Acl], there: list[Acl] | None, topics: list[str], servers: str
) -> Iterator[MissingAccess]:
    wanted = sorted(set(equal_acls(flow, bindings, topics)))
    if there is None:
        if wanted:
            what = f"ACLs can't be compared: cluster {flow.target} has no authorizer, or does not list its ACLs"
            yield MissingAccess(AccessKind.UNKNOWN, "", what)
        return
    have = set(there)
    for acl in wanted:
        if acl not in have and replace(acl, operation="ALL") not in have:
            yield MissingAccess(AccessKind.ACL, acl.principal, str(acl), _acl_command(acl, servers), acl=acl)


def _acl_command(acl: Acl, servers: str, *action: str) -> str:
    deny = acl.permission == "DENY"
    on = ["--cluster"] if acl.resource == acls.CLUSTER else [OPTIONS[acl.resource], acl.name]
    return shlex.join(
        [
            *("kafka-acls.sh", "--bootstrap-server", servers, *(action or ("--add",))),
            *("--deny-principal" if deny else "--allow-principal", acl.principal),
            *("--deny-host" if deny else "--allow-host", acl.host),
            *("--operation", "".join(word.capitalize() for word in acl.operation.split("_")), *on),
            *("--resource-pattern-type", acl.pattern.lower()),
        ]
    )


def _quotas(
    flow: Flow, source: Cluster, target: Cluster, has: Callable[[str], bool], servers: str
) -> Iterator[MissingAccess]:
    there = read_quotas(target, flow.connect_timeout_ms)
    here = read_quotas(source, flow.connect_timeout_ms)
    for entity, values in sorted(here.items(), key=lambda item: str(item[0])):
        users = [name for kind, name in entity if kind == "user" and name is not None]
        lacking = {key: value for key, value in values.items() if there.get(entity, {}).get(key) != value}
        if lacking and all(has(f"User:{user}") for user in users) and all(kind != "ip" for kind, _ in entity):
            named = ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in entity)
            text = ",".join(f"{key}={value:.15g}" for key, value in sorted(lacking.items()))
            # What the target has set otherwise, or would set for all of its clients, is for the operator to decide.
            is_new = not lacking.keys() & there.get(entity, {}).keys() and all(name is not None for _, name in entity)
            yield MissingAccess(
                AccessKind.QUOTA,
                named,
                text,
                _config_command(servers, text, entity),
                quota=(entity, tuple(sorted(lacking.items()))) if is_new else None,
            )


def _scram_users(
    flow: Flow, source: Cluster, target: Cluster, has: Callable[[str], bool], servers: str
) -> Iterator[MissingAccess]:
    known = read_scram_users(target, flow.connect_timeout_ms)
    for user, mechanisms in sorted(read_scram_users(source, flow.connect_timeout_ms).items()):
        lacking = sorted(mechanisms - known.get(user, set()))
        if lacking and has(f"User:{user}"):
            text = ",".join(f"{mechanism}=[password=...]" for mechanism in lacking)
            command = _config_command(servers, text, (("user", user),))
            yield MissingAccess(AccessKind.SCRAM_USER, f"User:{user}", ", ".join(lacking), command)


def _config_command(servers: str, values: str, entity: Entity) -> str:
    named: list[Any] = ["kafka-configs.sh", "--bootstrap-server", servers, "--alter", "--add-config", values]
    for kind, name in entity:
        named += ["--entity-type", ENTITIES[kind], *(["--entity-default"] if name is None else ["--entity-name", name])]
    return shlex.join(named)
