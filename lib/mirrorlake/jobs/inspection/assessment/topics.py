"""The topics of a source as a flow would mirror them: sizes, compaction, transactions, and what is left out and why."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from mirrorlake.config.flow import Flow
from mirrorlake.errors import MirrorlakeError
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.batches.record_batch import TIMESTAMP_TYPE, Batch
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, Cluster
from mirrorlake.protocol.log_reader import read_stretch
from mirrorlake.protocol.probes.facts import log_dirs
from mirrorlake.protocol.requests.metadata import READ, Topic

SAMPLED = 200  # topics of which one batch is read
LOOK_BACK = 3  # offsets; behind a transaction's last record there is its marker
SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TopicAssessment:
    """One topic of the source.

    Attributes:
        topic: its name.
        remote_topic: its name on the target; empty if it is not mirrored.
        partitions: the number of its partitions.
        offsets: the offsets that its logs hold: records, markers, and records that compaction has removed.
        size: bytes of one copy of its logs; None if it is not known.
        is_estimated: the size is computed from one batch, as the brokers do not list sizes to this principal.
        cleanup_policy: `delete`, `compact`, or both; empty if it is not known.
        transactions: whether the newest batch that was read belongs to a transaction; None if none was read.
        format: how its records are copied: `as is`, or why batches must be opened; empty if none was read.
        left_out: why it is not mirrored; empty if it is.
    """

    topic: str
    remote_topic: str
    partitions: int
    offsets: int
    size: int | None = None
    is_estimated: bool = False
    cleanup_policy: str = ""
    transactions: bool | None = None
    format: str = ""
    left_out: str = ""


def why_left_out(flow: Flow, name: str, topic: Topic, unnamed: Mapping[str, str]) -> str:
    """Returns the reason for which a flow does not mirror a topic; empty if it does."""
    if flow.policy.is_internal_topic(name):
        return "internal: a topic of Kafka, MirrorMaker 2 or mirrorlake"
    if name in flow.dead_letters_on_source:
        return "it has the dead letters of another flow"
    if flow.has_come_through_target(name):
        return f"it has come from {flow.target}"
    if not flow.mirrors_topic(name):
        return "topics does not name it, or topics.exclude does"
    if name in unnamed:
        return unnamed[name]
    if not topic.allows(READ):
        return "the principal needs READ on the TOPIC"
    if flow.is_paused(name):
        return "paused by the property file"
    return ""


def assess_topics(flow: Flow, source: Cluster, timeout_ms: int) -> list[TopicAssessment]:
    """Looks at each topic that the principal may see.

    Raises:
        SourceError: the source can't be read.
    """
    there = source.refresh(None, timeout_ms, operations=True)
    mirrored = [name for name in there if flow.mirrors_topic(name)]
    unnamed = flow.unnamed(mirrored)
    reasons = {name: why_left_out(flow, name, topic, unnamed) for name, topic in there.items()}
    taken = [name for name, reason in reasons.items() if not reason]
    ends = extents(source, there, taken, timeout_ms)
    batches = _sample(source, ends, timeout_ms)
    sizes = _sizes(source, timeout_ms)
    policies = _cleanup_policies(flow, taken)
    held = Counter[str]()
    for (name, _), (first, end) in ends.items():
        held[name] += end - first
    found = []
    for name in sorted(there, key=lambda name: (bool(reasons[name]), name)):
        offsets = held[name]
        batch = batches.get(name)
        size, is_estimated = sizes.get(name), False
        if size is None and batch is not None and batch.records:
            size, is_estimated = int(len(batch.raw) / batch.records * offsets), True
        if size is None and name in taken and not offsets:
            size = 0
        found.append(
            TopicAssessment(
                name,
                "" if reasons[name] else flow.policy.remote_topic(name),
                there[name].partitions,
                offsets,
                size,
                is_estimated,
                policies.get(name, ""),
                None if batch is None else batch.is_transactional,
                _format(flow, name, batch, policies.get(name, "")),
                reasons[name],
            )
        )
    return found


def extents(
    source: Cluster, topics: Mapping[str, Topic], names: Iterable[str], timeout_ms: int
) -> dict[PartitionKey, tuple[int, int]]:
    """Returns first offset and last stable offset of each partition of some topics; leaves out silent leaders."""
    keys = [(name, index) for name in names for index in topics[name].leaders]
    if not keys:
        return {}
    stable, _ = source.stable_ends(keys, timeout_ms)
    first = source.offsets(list(stable), EARLIEST_TIMESTAMP, timeout_ms) if stable else {}
    return {key: (min(first[key], end), end) for key, (end, _) in stable.items() if key in first}


def _sample(source: Cluster, ends: Mapping[PartitionKey, tuple[int, int]], timeout_ms: int) -> dict[str, Batch]:
    """Reads one of the newest batches of each topic that has some; of SAMPLED topics if there are more."""
    newest: dict[str, PartitionKey] = {}
    for key, (first, end) in ends.items():
        known = newest.get(key[0])
        if end > first and (known is None or end - first > ends[known][1] - ends[known][0]):
            newest[key[0]] = key
    names = sorted(newest)
    if len(names) > SAMPLED:
        names = random.sample(names, SAMPLED)
    found = {}
    for name in names:
        key = newest[name]
        first, end = ends[key]
        start = max(first, end - LOOK_BACK)
        try:
            batch = source.call(f"reading {key[0]}-{key[1]}", partial(_last, source, key, start, end), timeout_ms)
        except MirrorlakeError:  # the topic may be deleted, or denied; it is assessed without a batch
            continue
        if batch is not None:
            found[name] = batch
    return found


async def _last(source: Cluster, key: PartitionKey, start: int, end: int) -> Batch | None:
    found = None
    async for batch, _ in read_stretch(source, key, start=start, end=end, max_bytes=SAMPLE_BYTES, even_damaged=True):
        found = found if batch.is_control and found is not None else batch
    return None if found is None or found.is_control else found


def _sizes(source: Cluster, timeout_ms: int) -> dict[str, int]:
    """Returns the bytes of one copy of each topic: the largest replica of each partition; none if the principal may
    not ask."""
    try:
        dirs = log_dirs(source, timeout_ms)
    except MirrorlakeError:
        return {}
    largest: dict[PartitionKey, int] = {}
    for one in dirs:
        for key, size in one.sizes.items():
            largest[key] = max(size, largest.get(key, 0))
    found: dict[str, int] = {}
    for (topic, _), size in largest.items():
        found[topic] = found.get(topic, 0) + size
    return found


def _cleanup_policies(flow: Flow, names: Iterable[str]) -> dict[str, str]:
    try:
        configs = Admin(flow.source_connection, "source", flow.name).configs(names)
    except MirrorlakeError:
        return {}
    return {
        name: entries["cleanup.policy"].value or "" for name, entries in configs.items() if "cleanup.policy" in entries
    }


def _format(flow: Flow, name: str, batch: Batch | None, cleanup_policy: str) -> str:
    if flow.transform_of(name) is not None:
        return "transformed record by record"
    if batch is None:
        return ""
    if batch.magic < 2:
        return f"opened: message format v{batch.magic}"
    if batch.attributes & TIMESTAMP_TYPE:
        return "opened: timestamps of the broker (LogAppendTime)"
    if "compact" in cleanup_policy:
        return "as is; opened where compaction has left holes"
    return "as is"
