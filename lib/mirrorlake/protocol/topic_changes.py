"""Changes that a flow's remote topics need, planned from the metadata of both clusters.

`MirrorSourceConnector.syncTopicConfigs` and `DefaultConfigPropertyFilter` (Kafka 4.3.0) define the properties
that are copied and reset.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mirrorlake.config.flow import Flow

# Without these properties, the broker would compress or timestamp records anew, or reject some by their time.
TIMESTAMP_BOUNDS = {
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),  # an hour is Kafka 4's default
}
TIMESTAMP_TYPE = "message.timestamp.type"
REMOTE_CONFIG = {"compression.type": "producer", TIMESTAMP_TYPE: "CreateTime", **TIMESTAMP_BOUNDS}
BEFORE_3_6 = {"message.timestamp.difference.max.ms": str(2**63 - 1)}  # in place of the two bounds (KIP-937)
LARGEST_MESSAGE, LARGEST_MESSAGE_DEFAULT = "max.message.bytes", "1048588"
NEEDED = "mirroring needs this value, as record batches are copied unopened"
NEEDED_SIZE = "every record of the source must fit into the remote topic"
IN_NOTE = re.compile(r"[;,] ([a-z][a-z0-9.-]*)=(.*?)(?=, [a-z][a-z0-9.-]*=|$)", re.DOTALL)  # of a created topic


class ChangeKind(StrEnum):
    """Kinds of changes. Only ACL bindings that mirrorlake created are deleted; nothing else is shrunk or deleted."""

    CREATE_TOPIC = "create_topic"
    ADD_PARTITIONS = "add_partitions"
    SET_CONFIG = "set_config"
    RESET_CONFIG = "reset_config"
    CREATE_ACL = "create_acl"
    DELETE_ACL = "delete_acl"
    GRANT_ACCESS = "grant_access"  # at a failover; never taken back
    SET_QUOTA = "set_quota"  # at a failover


OF_CONFIGS = (ChangeKind.CREATE_TOPIC, ChangeKind.SET_CONFIG, ChangeKind.RESET_CONFIG)
UNANSWERED = "no answer: "  # the beginning of a reason for which a change may have been made all the same


class ChangeOutcome(StrEnum):
    """Outcomes of changes. The table topology_changes has the reason in place of REFUSED."""

    PLANNED = "planned"
    APPLIED = "applied"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Change:
    """One change on the target.

    `topic` is the source topic. `before` and `after` are a number of partitions, a config value, or an ACL binding.
    """

    kind: ChangeKind
    topic: str | None
    target_topic: str
    name: str | None = None
    before: str | None = None
    after: str | None = None
    note: str | None = None

    def __str__(self) -> str:
        what = f" {self.name}" if self.name else ""
        return (
            f"{self.kind.value.replace('_', ' ')} {self.target_topic}{what}: {self.before or '-'} -> "
            f"{self.after or '-'}" + (f" ({self.note})" if self.note else "")
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """A property of a topic: its value, and where the value comes from.

    `own`: the topic sets it. `static`: the broker's file sets it. `default`: it is Kafka's default. `fixed`: it is
    read-only or sensitive.
    """

    value: str | None
    own: bool = False
    default: bool = False
    static: bool = False
    fixed: bool = False  # read-only or sensitive


def remote_config(known: Collection[str]) -> dict[str, str]:
    """Returns the properties that a remote topic needs, by the names that its cluster knows; all names if none."""
    if not known or REMOTE_CONFIG.keys() <= set(known):
        return REMOTE_CONFIG
    return {name: value for name, value in (REMOTE_CONFIG | BEFORE_3_6).items() if name in known}


def names_bounds(error: Exception) -> bool:
    """Tells whether a cluster has refused a property that Kafka has since 3.6 (KIP-937)."""
    return any(name in str(error) for name in TIMESTAMP_BOUNDS)


def before_3_6(config: Mapping[str, str]) -> dict[str, str]:
    """Returns a new topic's configuration as clusters before Kafka 3.6 know it."""
    return {name: value for name, value in config.items() if name not in TIMESTAMP_BOUNDS} | BEFORE_3_6


def creation(
    flow: Flow,
    topic: str,
    remote: str,
    partitions: int,
    source: Mapping[str, Entry],
    known: Collection[str] = (),
) -> tuple[Change, dict[str, str]]:
    """Plans the creation of a missing remote topic.

    Args:
        flow: the flow.
        topic: the source topic.
        remote: the remote topic.
        partitions: the number of partitions of the source topic.
        source: the configuration of the source topic.
        known: the properties of topics that the target knows, as far as it has been asked.

    Returns:
        The change, and the configuration of the new topic.
    """
    config = {
        name: value
        for name, (value, _) in wanted_config(flow, source).items()
        if value is not None and (flow.topic_configs == "all" or name in known or not known)
    }
    if source.get(LARGEST_MESSAGE, Entry(None)).value not in (None, LARGEST_MESSAGE_DEFAULT):
        config[LARGEST_MESSAGE] = str(source[LARGEST_MESSAGE].value)
    config |= dict(flow.topic_creation) | remote_config(known)
    replicas = (
        f"replication factor {flow.replication_factor}"
        if flow.replication_factor > 0
        else "the target's default replication factor"
    )
    partitions = max(partitions, flow.topic_creation_partitions)
    return Change(
        kind=ChangeKind.CREATE_TOPIC,
        topic=topic,
        target_topic=remote,
        name=None,
        before=None,
        after=str(partitions),
        note=f"{replicas}; {', '.join(f'{name}={value}' for name, value in sorted(config.items()))}",
    ), config


def configs_set(changes: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """Returns the value of each property of a remote topic that mirrorlake has set, and not reset.

    Args:
        changes: applied changes of kinds CREATE_TOPIC (its note has the configuration), SET_CONFIG and RESET_CONFIG, in
            their order, with kind, target_topic, name, after and note.
    """
    found: dict[str, dict[str, str]] = {}
    for change in changes:
        if change["kind"] == ChangeKind.CREATE_TOPIC:
            found[change["target_topic"]] = dict(IN_NOTE.findall(change["note"] or ""))
        elif change["after"] is not None:
            found.setdefault(change["target_topic"], {})[change["name"]] = change["after"]
        else:
            found.get(change["target_topic"], {}).pop(change["name"], None)
    return {(topic, name): value for topic, config in found.items() for name, value in config.items()}


def only_needed(flow: Flow, config: Mapping[str, str]) -> dict[str, str]:
    """Returns of a new topic's configuration what mirroring needs, and what the flow gives to all new topics."""
    needed = {*REMOTE_CONFIG, *BEFORE_3_6, LARGEST_MESSAGE, *dict(flow.topic_creation)}
    return {name: value for name, value in config.items() if name in needed}


def growth(topic: str, remote: str, have: int, want: int) -> Iterator[Change]:
    """Yields the change that adds partitions if the remote topic has fewer than its source; partitions never decrease.

    Args:
        topic: the source topic.
        remote: the remote topic.
        have: the number of partitions of the remote topic.
        want: the number of partitions of the source topic.
    """
    if have < want:
        yield Change(
            kind=ChangeKind.ADD_PARTITIONS,
            topic=topic,
            target_topic=remote,
            name=None,
            before=str(have),
            after=str(want),
        )


def wanted_config(flow: Flow, source: Mapping[str, Entry]) -> dict[str, tuple[str | None, str | None]]:
    """Returns value and note of each property that the remote topic should set, from the source's configuration.

    The value None stands for the default of the target cluster.
    """
    wanted: dict[str, tuple[str | None, str | None]] = {}
    for name, entry in source.items():
        if entry.fixed or entry.static or name in flow.config_properties_excluded:
            continue
        wanted[name] = (None if entry.default and flow.use_defaults_from == "target" else entry.value, None)
    return wanted


def overrides_ended(
    flow: Flow, topic: str, remote: str, source: Mapping[str, Entry], target: Mapping[str, Entry]
) -> Iterator[Change]:
    """Yields the resets of properties that the remote topic sets itself, and of the source only the broker's file.

    Such a value is not copied (`wanted_config`). One that the topic had itself before was, and would stay for good.

    Args:
        flow: the flow.
        topic: the source topic.
        remote: the remote topic.
        source: the configuration of the source topic.
        target: the configuration of the remote topic.
    """
    if not flow.sync_topic_configs_enabled:
        return
    kept = {*dict(flow.topic_creation), *REMOTE_CONFIG, *BEFORE_3_6, LARGEST_MESSAGE}
    for name, entry in sorted(source.items()):
        here = target.get(name)
        is_followed = not (entry.fixed or name in kept or name in flow.config_properties_excluded)
        if entry.static and is_followed and here is not None and here.own:
            yield Change(ChangeKind.RESET_CONFIG, topic, remote, name, before=here.value)


def largest_message(configs: Iterable[Mapping[str, Entry]]) -> dict[str, Entry]:
    """Returns the largest entry of max.message.bytes among topics; empty if no topic's value is known."""
    entries = [config[LARGEST_MESSAGE] for config in configs if LARGEST_MESSAGE in config]
    return {LARGEST_MESSAGE: max(entries, key=lambda entry: int(entry.value or 0))} if entries else {}


def config_changes(
    flow: Flow, topic: str, remote: str, source: Mapping[str, Entry], target: Mapping[str, Entry]
) -> Iterator[Change]:
    """Yields the changes of a remote topic's configuration.

    The flow's settings decide which properties follow the source. The properties that mirroring of unopened
    batches needs are always set.

    Args:
        flow: the flow.
        topic: the source topic.
        remote: the remote topic.
        source: the configuration of the source topic.
        target: the configuration of the remote topic.
    """
    wanted = wanted_config(flow, source) if flow.sync_topic_configs_enabled else {}
    wanted = {name: value for name, value in wanted.items() if name not in dict(flow.topic_creation)}
    wanted |= {name: (value, NEEDED) for name, value in remote_config(target).items()}
    size = source.get(LARGEST_MESSAGE, Entry(None)).value
    if size is not None and LARGEST_MESSAGE in target:
        now, (there, _) = target[LARGEST_MESSAGE], wanted.get(LARGEST_MESSAGE, (None, None))
        resulting = there or (now.value if not now.own or LARGEST_MESSAGE not in wanted else None) or "0"
        if now.own and int(now.value or 0) > int(size):  # raised for what a transform makes, or the source took before
            wanted.pop(LARGEST_MESSAGE, None)
        elif int(resulting) < int(size):
            wanted[LARGEST_MESSAGE] = (size, NEEDED_SIZE)
    for name, (value, note) in sorted(wanted.items()):
        here = target.get(name)
        if here is None and flow.topic_configs == "intersection":
            continue
        before = here.value if here is not None and here.own else None
        if value is None and before is not None:
            yield Change(
                kind=ChangeKind.RESET_CONFIG,
                topic=topic,
                target_topic=remote,
                name=name,
                before=before,
                after=None,
                note=note,
            )
        elif value is not None and value != before and not (note and here is not None and here.value == value):
            yield Change(
                kind=ChangeKind.SET_CONFIG,
                topic=topic,
                target_topic=remote,
                name=name,
                before=before,
                after=value,
                note=note,
            )
