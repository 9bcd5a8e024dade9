"""The names of remote topics, and the topics that are never mirrored: MirrorMaker 2's replication policies.

Sources: `DefaultReplicationPolicy`, `IdentityReplicationPolicy` and `ReplicationPolicy` of connect-mirror-client 4.3.0;
KIP-1074 for the topics that are internal since 4.0.
"""

from __future__ import annotations

import importlib
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from mirrorlake.config.name_filter import compile_patterns, split_list
from mirrorlake.config.properties import Scope
from mirrorlake.errors import ConfigurationError

HEARTBEATS = "heartbeats"
TOPIC_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
LONGEST_TOPIC_NAME = 249
DEAD_LETTERS = "mirrorlake.dead-letters."  # the default name of a dead-letter topic, without the alias
MIRRORMAKER = "org.apache.kafka.connect.mirror"  # the package of its policies
OWN_POLICIES = "MIRRORLAKE_POLICY_CLASSES"  # the environment variable with the classes that may be imported
GROUP = re.compile(r"\$(?:(\d+)|\{(\w+)\})")


@dataclass(frozen=True)
class DefaultReplicationPolicy:
    """Remote topics are called `<source alias><separator><topic>`.

    Every name with a separator in it looks remote to this policy, as in MirrorMaker 2: the text before the first
    separator is taken for an alias. That matters for cycles only: a topic is not mirrored if its first part, or any
    later one, is the target's alias.
    """

    source: str
    separator: str = "."
    internal_separator: str = "."

    @property
    def puts_alias_in_front(self) -> bool:
        """Whether a remote name tells where a topic came from. Derived classes may choose any names."""
        return type(self) is DefaultReplicationPolicy

    @property
    def keeps_topics_apart(self) -> bool:
        """Whether two topics never have the same remote topic. Derived classes may choose any names."""
        return type(self) in (DefaultReplicationPolicy, IdentityReplicationPolicy)

    def remote_topic(self, topic: str) -> str:
        """Names `topic` on the target (formatRemoteTopic)."""
        return f"{self.source}{self.separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """Finds the alias that a remote topic came from; None for a local one. Trailing separators do not count."""
        before, _, after = topic.partition(self.separator)
        return before if after.replace(self.separator, "") else None

    def upstream_topic(self, topic: str) -> str | None:
        """Finds the name of a remote topic one hop back; None for a local one."""
        return None if self.topic_source(topic) is None else topic.partition(self.separator)[2]

    def original_topic(self, topic: str) -> str:
        """Finds the name that a topic had where it was first written."""
        upstream = self.upstream_topic(topic)
        return topic if upstream in (None, topic) else self.original_topic(upstream)

    def is_heartbeats_topic(self, topic: str) -> bool:
        """Tells whether a topic holds heartbeats, of this cluster or another one."""
        return self.original_topic(topic) == HEARTBEATS

    def checkpoints_topic(self) -> str:
        """Names MirrorMaker 2's topic for checkpoints of this policy's source, on the target."""
        return self.internal_separator.join((self.source, "checkpoints", "internal"))

    def offset_syncs_topic(self, alias: str) -> str:
        """Names MirrorMaker 2's topic for offset syncs with the cluster of that alias."""
        return self.internal_separator.join(("mm2-offset-syncs", alias, "internal"))

    def is_internal_topic(self, topic: str) -> bool:
        """Tells whether a topic is one of Kafka's, MirrorMaker 2's or mirrorlake's own, which are never mirrored."""
        is_checkpoints = topic.endswith(f"{self.internal_separator}checkpoints{self.internal_separator}internal")
        is_mm2 = topic.startswith("mm2") and topic.endswith(f"{self.internal_separator}internal")
        is_letters = topic.startswith(DEAD_LETTERS)  # what a transform could not mask, for example
        is_ours = is_letters or (topic.startswith("mirrorlake.") and topic.endswith(".internal"))
        return topic.startswith(("__", ".")) or is_mm2 or is_checkpoints or is_ours

    def is_cycle(self, topic: str, target: str) -> bool:
        """Tells whether a topic has come from, or through, the target."""
        if self.topic_source(topic) == target or self._has_whole_alias(topic, target):
            return True
        upstream = self.upstream_topic(topic)
        return upstream not in (None, topic) and self.is_cycle(upstream, target)

    def _has_whole_alias(self, topic: str, target: str) -> bool:
        """Returns True if the name has an alias with separators in it, which is several parts to MirrorMaker 2."""
        between = self.separator
        return between in target and f"{between}{target}{between}" in f"{between}{topic}"


@dataclass(frozen=True)
class IdentityReplicationPolicy(DefaultReplicationPolicy):
    """Remote topics keep their names, for one-way flows. Only heartbeats get the source's alias. Names can't show
    cycles."""

    def remote_topic(self, topic: str) -> str:
        return super().remote_topic(topic) if self._looks_like_heartbeats(topic) else topic

    def topic_source(self, topic: str) -> str | None:
        return super().topic_source(topic) if self._looks_like_heartbeats(topic) else self.source

    def upstream_topic(self, topic: str) -> str | None:
        return super().upstream_topic(topic) if self._looks_like_heartbeats(topic) else topic

    def _has_whole_alias(self, topic: str, target: str) -> bool:
        return self._looks_like_heartbeats(topic) and super()._has_whole_alias(topic, target)

    @staticmethod
    def _looks_like_heartbeats(topic: str) -> bool:
        return topic.endswith(HEARTBEATS)


@dataclass(frozen=True)
class RenameReplicationPolicy(IdentityReplicationPolicy):
    """A topic that `regex` matches as a whole gets its remote name from `replacement` (RegexRouter of Kafka Connect).
    Other topics keep their names. Both are Java's: `$1` and `${name}` stand for groups."""

    regex: str = ""
    replacement: str = ""

    def __post_init__(self) -> None:
        pattern = compile_patterns("topics.rename.regex", (self.regex,))
        for number, name in GROUP.findall(self.replacement):
            if (number and int(number) > pattern.groups) or (name and name not in pattern.groupindex):
                raise ConfigurationError(
                    f"property topics.rename.replacement: '{self.replacement}' names group {number or name}, which "
                    f"topics.rename.regex '{self.regex}' does not have"
                )

    def remote_topic(self, topic: str) -> str:
        if self._looks_like_heartbeats(topic):
            return super().remote_topic(topic)
        found = compile_patterns("topics.rename.regex", (self.regex,)).fullmatch(topic)
        if found is None:
            return topic
        return GROUP.sub(lambda group: found[int(group[1]) if group[1] else group[2]] or "", self.replacement)


POLICIES: dict[str, type[DefaultReplicationPolicy]] = {
    "DefaultReplicationPolicy": DefaultReplicationPolicy,
    "IdentityReplicationPolicy": IdentityReplicationPolicy,
    "RenameReplicationPolicy": RenameReplicationPolicy,
}


def find_policy(name: str, environment: Mapping[str, str] = os.environ) -> type[DefaultReplicationPolicy]:
    """Finds the policy class of a name.

    A class of POLICIES may be named with or without a package, as in MirrorMaker 2's files; see `policy_warnings`. A
    user's own class is named as `package.module.Class`, and must derive from one of them. It is imported only if the
    environment allows it (OWN_POLICIES), as importing a module runs it.

    Args:
        name: the value of `replication.policy.class`.
        environment: the environment of this process, which the authors of property files don't decide.

    Raises:
        ConfigurationError: there is no such class, it is not allowed, or it is not a policy.
    """
    module, _, simple = name.rpartition(".")
    is_allowed = name in split_list(environment.get(OWN_POLICIES, ""))
    if not is_allowed and simple in POLICIES:
        return POLICIES[simple]
    found, why = None, ""
    if is_allowed:
        try:
            found = getattr(importlib.import_module(module), simple) if module else None
        except (ImportError, AttributeError) as error:
            why = f" ({error})"
    if not (isinstance(found, type) and issubclass(found, DefaultReplicationPolicy)):
        raise ConfigurationError(
            f"property replication.policy.class is '{name}'{why}; supported are {', '.join(POLICIES)}, and Python "
            f"classes derived from one of them that the environment variable {OWN_POLICIES} names as "
            "package.module.Class, separated by commas, where the job is started"
        )
    return found


def read_policy(scope: Scope) -> DefaultReplicationPolicy:
    """Reads the policy of a flow.

    Raises:
        ConfigurationError: a property of the policy is missing, malformed or contradictory.
    """
    separator = scope.read("replication.policy.separator")
    if not separator or not set(separator) <= TOPIC_CHARACTERS:
        raise ConfigurationError(
            f"flow {scope.flow}: property replication.policy.separator is '{separator}'; allowed are characters that a "
            "topic name may have (letters, digits, . _ -)"
        )
    internal = separator if scope.read("replication.policy.internal.topic.separator.enabled") else "."
    regex, replacement = (scope.read(f"topics.rename.{part}") for part in ("regex", "replacement"))
    name = scope.read("replication.policy.class", RenameReplicationPolicy.__name__ if regex else None)
    policy = find_policy(name)
    if policy is not RenameReplicationPolicy:
        if regex or replacement:
            raise ConfigurationError(
                f"flow {scope.flow}: topics.rename.regex and .replacement contradict replication.policy.class = "
                f"{name}: leave the class out, or set RenameReplicationPolicy"
            )
        return policy(scope.source, separator, internal)
    if not (regex and replacement):
        raise ConfigurationError(
            f"flow {scope.flow}: RenameReplicationPolicy needs both topics.rename.regex and topics.rename.replacement"
        )
    return RenameReplicationPolicy(scope.source, separator, internal, regex=regex, replacement=replacement)


def policy_warnings(scope: Scope, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yields a line if the class has the name of one of MirrorMaker 2's policies and is of another package, so that it
    may name topics in another way."""
    name = scope.read("replication.policy.class", "")
    package, _, simple = name.rpartition(".")
    is_own = name in split_list(environment.get(OWN_POLICIES, ""))
    if simple in POLICIES and package not in ("", MIRRORMAKER) and not is_own:
        yield (
            f"property replication.policy.class is {name}, a class that is not MirrorMaker 2's; {simple} of mirrorlake "
            f"takes its place. Write {simple} if both name topics in the same way. Else remote topics get other names: "
            f"write a Python class, and name it in the environment variable {OWN_POLICIES}"
        )


def names_tell_origin(scope: Scope, back: Scope) -> bool:
    """Tells whether the names of topics say where records came from: both directions put the alias in front, in the
    same way."""
    one, other = read_policy(scope), read_policy(back)
    is_plain = not any(policy.separator in alias for policy in (one, other) for alias in (scope.source, scope.target))
    return one.puts_alias_in_front and other.puts_alias_in_front and is_plain and one.separator == other.separator


def find_ring(scope: Scope) -> tuple[str, ...]:
    """Finds a ring of three or more clusters through this flow in which records would go round for ever.

    Names stop a record where two flows in a row put their alias in front: the second flow finds the alias of its own
    target. Where flows between these clusters have several separators, it may not.

    Returns:
        The aliases along the ring, the source's at both ends; empty if there is no ring.
    """
    flows = [scope.properties.scope(flow) for flow in scope.properties.flows]
    policies = {(flow.source, flow.target): read_policy(flow) for flow in flows}
    around = _reached(scope.target, policies) & _reached(scope.source, [(to, of) for of, to in policies])
    separators = {
        policy.separator for leg, policy in policies.items() if {*leg} <= around and policy.puts_alias_in_front
    }
    is_one_way = len(separators) < 2
    keeps_names = {leg: not (policy.puts_alias_in_front and is_one_way) for leg, policy in policies.items()}
    paths: deque[tuple[str, ...]] = deque([(scope.source, scope.target)])
    while paths:
        path = paths.popleft()
        is_free = keeps_names.get((path[-2], path[-1]), False)
        for target in (to for (of, to), keeps in keeps_names.items() if of == path[-1] and (is_free or keeps)):
            ring = (*path, target)
            if target == scope.source and len(path) > 2 and _goes_round([keeps_names[leg] for leg in pairwise(ring)]):
                return ring
            if target not in path:
                paths.append(ring)
    return ()


def _reached(start: str, legs: Iterable[tuple[str, str]]) -> set[str]:
    """Returns the clusters that records of one can reach, with itself."""
    known, found, todo = list(legs), {start}, [start]
    while todo:
        here = todo.pop()
        new = {to for of, to in known if of == here} - found
        found |= new
        todo += new
    return found


def _goes_round(keeps_names: list[bool]) -> bool:
    """Tells whether of any two flows in a row around a ring at least one keeps the names of topics."""
    return all(keeps or keeps_names[at - 1] for at, keeps in enumerate(keeps_names))


def is_topic_name(name: str) -> bool:
    """Tells whether Kafka allows a topic of that name."""
    return 0 < len(name) <= LONGEST_TOPIC_NAME and name not in (".", "..") and set(name) <= TOPIC_CHARACTERS
