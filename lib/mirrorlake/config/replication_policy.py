"""How remote topics are called, and which topics never are: MirrorMaker 2's replication policies.

Sources: `DefaultReplicationPolicy`, `IdentityReplicationPolicy` and `ReplicationPolicy` of connect-mirror-client 4.3.0;
KIP-1074 for what counts as internal since 4.0.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass

from mirrorlake.config.name_filter import compile_patterns
from mirrorlake.errors import ConfigurationError

HEARTBEATS = "heartbeats"
GROUP = re.compile(r"\$(?:(\d+)|\{(\w+)\})")


@dataclass(frozen=True)
class DefaultReplicationPolicy:
    """Remote topics are called `<source alias><separator><topic>`.

    Every name with a separator in it looks remote to this policy, as it does in MirrorMaker 2: the text before the
    first one is taken for an alias. That matters for cycles only: a topic whose first part, or any later one, is the
    target's alias stays.
    """

    source: str
    separator: str = "."
    internal_separator: str = "."

    @property
    def puts_alias_in_front(self) -> bool:
        """True if a remote name tells where a topic came from; derived classes call topics what they like."""
        return type(self) is DefaultReplicationPolicy

    def remote_topic(self, topic: str) -> str:
        """The name of `topic` on the target (formatRemoteTopic)."""
        return f"{self.source}{self.separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """The alias a remote topic came from, None for a local one. Trailing separators do not count."""
        before, _, after = topic.partition(self.separator)
        return before if after.replace(self.separator, "") else None

    def upstream_topic(self, topic: str) -> str | None:
        """The name of a remote topic one hop back, None for a local one."""
        return None if self.topic_source(topic) is None else topic.partition(self.separator)[2]

    def original_topic(self, topic: str) -> str:
        """The name a topic had where it was first written."""
        upstream = self.upstream_topic(topic)
        return topic if upstream in (None, topic) else self.original_topic(upstream)

    def is_heartbeats_topic(self, topic: str) -> bool:
        return self.original_topic(topic) == HEARTBEATS

    def checkpoints_topic(self) -> str:
        """MirrorMaker 2's topic for checkpoints of this policy's source, on the target."""
        return self.internal_separator.join((self.source, "checkpoints", "internal"))

    def offset_syncs_topic(self, alias: str) -> str:
        """MirrorMaker 2's topic for offset syncs with the cluster of that alias."""
        return self.internal_separator.join(("mm2-offset-syncs", alias, "internal"))

    def is_internal_topic(self, topic: str) -> bool:
        """Topics of Kafka, of MirrorMaker 2 and of mirrorlake, which are never mirrored."""
        is_checkpoints = topic.endswith(f"{self.internal_separator}checkpoints{self.internal_separator}internal")
        is_mm2 = topic.startswith("mm2") and topic.endswith(f"{self.internal_separator}internal")
        is_ours = topic.startswith("mirrorlake.") and topic.endswith(".internal")
        return topic.startswith(("__", ".")) or is_mm2 or is_checkpoints or is_ours

    def is_cycle(self, topic: str, target: str) -> bool:
        """True if the topic has come from, or through, the target."""
        if self.topic_source(topic) == target:
            return True
        upstream = self.upstream_topic(topic)
        return upstream not in (None, topic) and self.is_cycle(upstream, target)


@dataclass(frozen=True)
class IdentityReplicationPolicy(DefaultReplicationPolicy):
    """Remote topics keep their names, for one-way flows; only heartbeats get the source's alias. Names can't show
    cycles."""

    def remote_topic(self, topic: str) -> str:
        return super().remote_topic(topic) if self._looks_like_heartbeats(topic) else topic

    def topic_source(self, topic: str) -> str | None:
        return super().topic_source(topic) if self._looks_like_heartbeats(topic) else self.source

    def upstream_topic(self, topic: str) -> str | None:
        return super().upstream_topic(topic) if self._looks_like_heartbeats(topic) else topic

    @staticmethod
    def _looks_like_heartbeats(topic: str) -> bool:
        return topic.endswith(HEARTBEATS)


@dataclass(frozen=True)
class RenameReplicationPolicy(IdentityReplicationPolicy):
    """Remote topics are called what `replacement` makes of those that `regex` matches whole (RegexRouter of Kafka
    Connect); others keep their names. Both are Java's: `$1` and `${name}` stand for groups."""

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


def find_policy(name: str) -> type[DefaultReplicationPolicy]:
    """The policy class of that name: one of POLICIES, with or without a package as MirrorMaker 2's files have it, or an
    own one as `package.module.Class`, which must derive from one of them.

    Raises:
        ConfigurationError: there is no such class, or it is no policy.
    """
    module, _, simple = name.rpartition(".")
    if simple in POLICIES:
        return POLICIES[simple]
    why = ""
    try:
        found = getattr(importlib.import_module(module), simple) if module else None
    except (ImportError, AttributeError) as error:
        found, why = None, f" ({error})"
    if not (isinstance(found, type) and issubclass(found, DefaultReplicationPolicy)):
        raise ConfigurationError(
            f"property replication.policy.class is '{name}'{why}; supported are {', '.join(POLICIES)}, and "
            "package.module.Class of a Python class derived from one of them"
        )
    return found
