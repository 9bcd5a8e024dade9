"""The doctor's checks of one flow whose clusters answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from mirrorlake.config.flow import CREATION, Flow
from mirrorlake.errors import TargetError
from mirrorlake.jobs.inspection.finding import Check, DoctorFinding, ok, problem, warning
from mirrorlake.jobs.mirror.planning.source_topics import source_topics
from mirrorlake.model.slot import NO_STATE, ClosedFor, SlotState, merge_positions
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.group_requests import list_groups
from mirrorlake.protocol.probes.facts import (
    CREATE,
    DESCRIBE_CONFIGS,
    cluster_operations,
    log_dirs,
    newest_timestamps,
)
from mirrorlake.protocol.probes.permissions import denied_commits, denied_transactions
from mirrorlake.protocol.requests.metadata import DESCRIBE, READ, WRITE, Topic
from mirrorlake.protocol.transaction import TRANSACTION_LOG
from mirrorlake.state.closure import closed_for, promoted_topics
from mirrorlake.state.offset_syncs import foreign_records, read_all_states
from mirrorlake.state.pause import pause_topic, read_pause
from mirrorlake.state.whose import REMEDY, others

NAMES = {READ: "READ", WRITE: "WRITE", DESCRIBE: "DESCRIBE", DESCRIBE_CONFIGS: "DESCRIBE_CONFIGS", CREATE: "CREATE"}
MOST_GROUPS = 1_000  # whose permissions are tested
MOST_PARTITIONS = 2_000  # whose newest timestamps are read
NAMED = 5  # topics or groups that one finding names
SKEW_MS = 5_000
ROOM = 0.1  # share of a disk that should stay free

Looks = Iterator[DoctorFinding]


@dataclass(frozen=True)
class Peers:
    """A flow and its connected clusters; `timeout_ms` is the deadline of each request."""

    flow: Flow
    source: Cluster
    target: Cluster
    timeout_ms: int


def ids(at: Peers) -> Looks:
    """Compares the ids of both clusters."""
    flow, source, target, timeout_ms = at.flow, at.source, at.target, at.timeout_ms
    if source.cluster_id != target.cluster_id:
        yield ok(Check.CLUSTER_ID, flow.name, f"source {source.cluster_id}, target {target.cluster_id}")
        return
    if not flow.same_cluster_allowed:
        yield problem(
            Check.CLUSTER_ID,
            flow.name,
            f"{flow.source} and {flow.target} are the same Kafka cluster (id {source.cluster_id}): it would be "
            "mirrored into itself",
            "Correct one of the bootstrap.servers, or set mirrorlake.same.cluster.allowed = true if it is meant",
        )
        return
    topics = [name for name in source.refresh(None, timeout_ms) if flow.mirrors_topic(name)]
    unmoved = [name for name, remote in flow.remote_topics(topics).items() if name == remote]
    if unmoved:
        yield problem(
            Check.CLUSTER_ID,
            flow.name,
            f"topic{_s(unmoved)} {_some(unmoved)} would be mirrored into {'themselves' if unmoved[1:] else 'itself'}",
            "Rename remote topics by the replication policy, or exclude these topics (topics.exclude)",
        )
    else:
        yield ok(Check.CLUSTER_ID, flow.name, "one cluster on both ends, which the flow allows")


def topics(at: Peers) -> Looks:
    """Finds the flow's topics, and whether they can be mirrored under their remote names."""
    flow, source, timeout_ms = at.flow, at.source, at.timeout_ms
    there = source.refresh(None, timeout_ms)
    found = {name: topic for name, topic in there.items() if flow.mirrors_topic(name)}
    if not found:
        yield warning(
            Check.TOPICS,
            flow.name,
            f"none of the {len(there):,} topics that the principal sees on {flow.source} belongs to the flow",
            "Correct topics and topics.exclude, or grant DESCRIBE on the TOPICs",
        )
        return
    unnamed = flow.unnamed(found)
    for reason in list(unnamed.values())[:NAMED]:
        yield problem(Check.TOPICS, flow.name, reason, "Correct the replication policy, or exclude the topic")
    leaderless = sorted(name for name, topic in found.items() if -1 in topic.leaders.values())
    if leaderless:
        yield warning(
            Check.TOPICS,
            flow.name,
            f"topic{_s(leaderless)} {_some(leaderless)}: partitions without a leader on {flow.source}",
            "Bring their brokers back; the other partitions are mirrored meanwhile",
        )
    partitions = sum(topic.partitions for topic in found.values())
    yield ok(Check.TOPICS, flow.name, f"{len(found):,} topics, {partitions:,} partitions")


def source_permissions(at: Peers) -> Looks:
    """Compares what the principal may do on the source's topics with what the flow needs."""
    flow = at.flow
    found = source_topics(at.source, replace(flow, connect_timeout_ms=at.timeout_ms), _mirrored(at))
    needed = [DESCRIBE, READ, *([DESCRIBE_CONFIGS] if flow.sync_topic_configs_enabled else [])]
    yield from _lacking(flow, flow.source, found, needed)


def _mirrored(at: Peers) -> set[str]:
    """Returns the topics that the flow has mirrored and goes on to; none if its states can't be read (`state`)."""
    try:
        states = read_all_states(at.target, at.flow.offset_syncs_topic, at.timeout_ms).values()
    except TargetError:
        return set()
    return {topic for topic, _ in merge_positions(states)} - promoted_topics(states)


def target_permissions(at: Peers) -> Looks:
    """Compares what the principal may do on the target with what the flow needs: topics, transactions."""
    flow, source, target, timeout_ms = at.flow, at.source, at.target, at.timeout_ms
    here = [name for name in source.refresh(None, timeout_ms) if flow.mirrors_topic(name)]
    unnamed = flow.unnamed(here)
    named = [name for name in here if name not in unnamed]
    remote = set(flow.remote_topics(named).values())
    syncs, pauses = flow.offset_syncs_topic, pause_topic(flow.source)
    there = target.refresh([*sorted(remote), syncs, pauses], timeout_ms, operations=True)
    seen = {name: topic for name, topic in there.items() if topic.leaders or topic.operations}
    yield from _lacking(flow, flow.target, {name: seen[name] for name in seen if name in remote}, [WRITE, DESCRIBE])
    if syncs in seen:
        yield from _lacking(flow, flow.target, {syncs: seen[syncs]}, [READ, WRITE])
    if pauses in seen:
        yield from _lacking(flow, flow.target, {pauses: seen[pauses]}, [READ])
    missing = sorted(name for name in {*remote, syncs} if name not in seen)
    operations = cluster_operations(target, timeout_ms)
    if missing and operations is not None and CREATE not in operations:
        hidden = [name for name in missing if name in there]
        yield (problem if hidden else warning)(
            Check.PERMISSION,
            flow.name,
            f"{len(missing):,} topics are missing on {flow.target}, or the principal must not see them "
            f"({_some(missing)}), and it may not create topics on the CLUSTER",
            "Grant CREATE on the CLUSTER, or CREATE, DESCRIBE and WRITE on these TOPICs (docs/security.md)",
        )
    yield from _transactions(flow, target, timeout_ms)


def _transactions(flow: Flow, target: Cluster, timeout_ms: int) -> Looks:
    """Tests the transactional ids; where the cluster has had no transaction, the question would create a topic."""
    if TRANSACTION_LOG not in target.refresh([TRANSACTION_LOG], timeout_ms, operations=True):
        yield warning(
            Check.PERMISSION,
            flow.name,
            f"{flow.target} has had no transaction yet, so that transactional ids were not tested: it would create a "
            "topic",
            "Start the mirror job; its first start tests them before it creates anything of its own",
        )
        return
    denied = denied_transactions(target, [flow.transactional_id(0)], timeout_ms)
    if denied:
        yield problem(
            Check.PERMISSION,
            flow.name,
            f"the principal may not use TRANSACTIONAL_ID {denied[0]} on {flow.target}",
            f"Grant WRITE and DESCRIBE on TRANSACTIONAL_ID {flow.transactional_id(0)[:-1]} (prefixed)",
        )
    else:
        yield ok(Check.PERMISSION, flow.name, f"transactional ids may be used on {flow.target}")


def group_permissions(at: Peers) -> Looks:
    """Tests whether offsets of the flow's groups may be committed on the target."""
    flow, source, target, timeout_ms = at.flow, at.source, at.target, at.timeout_ms
    groups = sorted(name for name in list_groups(source, timeout_ms) if name in flow.groups)
    if not groups:
        yield warning(
            Check.PERMISSION,
            flow.name,
            f"no group that the principal sees on {flow.source} belongs to the flow",
            "Correct groups and groups.exclude, or grant DESCRIBE on the GROUPs, if groups should move",
        )
        return
    if not flow.sync_group_offsets_enabled:
        yield ok(Check.PERMISSION, flow.name, f"{len(groups):,} groups; sync.group.offsets.enabled is false")
        return
    offsets = "__consumer_offsets"
    if offsets not in target.refresh([offsets], timeout_ms, operations=True):
        yield warning(
            Check.PERMISSION,
            flow.name,
            f"{flow.target} has had no consumer group yet, so that commits were not tested: it would create a topic",
            "Run doctor again after the first cycle of the checkpoint job",
        )
        return
    names = [name for name in source.refresh(None, timeout_ms) if flow.mirrors_topic(name)]
    remote = sorted(flow.remote_topics(set(names) - flow.unnamed(names).keys()).values())[:1]
    denied = denied_commits(target, dict.fromkeys(groups[:MOST_GROUPS], remote), timeout_ms) if remote else {}
    if denied:
        yield problem(
            Check.PERMISSION,
            flow.name,
            f"{len(denied):,} of {min(len(groups), MOST_GROUPS):,} groups can't be moved on {flow.target}: "
            f"{next(iter(denied.values()))}",
            "Grant READ on the GROUPs and on the remote TOPICs there",
        )
    else:
        yield ok(Check.PERMISSION, flow.name, f"offsets of {len(groups):,} groups may be committed on {flow.target}")


def _lacking(flow: Flow, alias: str, found: dict[str, Topic], needed: list[int]) -> Looks:
    for operation in needed:
        lacking = sorted(name for name, topic in found.items() if not topic.allows(operation))
        if lacking:
            name = NAMES[operation]
            make = warning if operation == DESCRIBE_CONFIGS else problem
            yield make(
                Check.PERMISSION,
                flow.name,
                f"the principal lacks {name} on {len(lacking):,} of {len(found):,} TOPICs of {alias}: {_some(lacking)}",
                f"Grant {name} on these TOPICs",
            )
            return
    if found:
        named = ", ".join(NAMES[operation] for operation in needed)
        yield ok(Check.PERMISSION, flow.name, f"{named} on {len(found):,} topic{_s(list(found))} of {alias}")


def replication(at: Peers) -> Looks:
    """Compares replication factors with the number of brokers of the target."""
    flow, target = at.flow, at.target
    brokers = len(target.net.run(target.brokers))
    factors = {
        "replication.factor": flow.replication_factor,
        "offset-syncs.topic.replication.factor": flow.offset_syncs_replication_factor,
    }
    too_high = {name: factor for name, factor in factors.items() if factor > brokers}
    there = flow.offset_syncs_topic in target.topics
    for name, factor in too_high.items():
        if name.startswith("offset-syncs") and there:
            continue
        yield problem(
            Check.REPLICATION,
            flow.name,
            f"{name} is {factor}, but {flow.target} has {brokers} broker{'s' if brokers != 1 else ''}",
            f"Set {name} to at most {brokers}, or to -1 for the cluster's default"
            + (f". Where {CREATION}{name} is set, it is that one" if name == "replication.factor" else ""),
        )
    if not too_high:
        yield ok(Check.REPLICATION, flow.name, f"{brokers} broker{'s' if brokers != 1 else ''} on {flow.target}")


def state(at: Peers) -> Looks:
    """Reads the flow's states: whose they are, whether the flow is closed or paused."""
    flow, source, target, timeout_ms = at.flow, at.source, at.target, at.timeout_ms
    topic = flow.offset_syncs_topic
    try:
        states = list(read_all_states(target, topic, timeout_ms).values())
    except TargetError as error:
        if NO_STATE in error.message:
            yield _foreign(flow, f"topic {topic} on {flow.target} has records that are no states")
            return
        yield problem(Check.STATE, flow.name, error.message, "Grant READ on the TOPIC, or upgrade mirrorlake")
        return
    strays = foreign_records(target, topic, target.topics[topic].leaders, timeout_ms) if states else {}
    for slot, offset in strays.items():
        yield warning(
            Check.STATE,
            flow.name,
            f"another program has written to {flow.target}: {topic}-{slot}, offset {offset} is no state. All jobs pass "
            "over it",
            "Revoke that program's WRITE on the topic: nobody but the flow's own principal needs it",
        )
    pause = read_pause(target, flow, timeout_ms)
    if pause is not None:
        yield warning(Check.STATE, flow.name, str(pause), f"mirrorlake resume --flow '{flow.name}'")
    if not states:
        yield ok(Check.STATE, flow.name, "the flow has never run")
        return
    yield from _whose(flow, source, states)
    newest = max(states, key=lambda one: one.generation)
    if reason := closed_for(states):
        back = "notebooks/takeover.ipynb" if reason is ClosedFor.HANDBACK else "mirrorlake failback"
        yield warning(
            Check.STATE,
            flow.name,
            f"the flow is closed ({reason}, generation {newest.generation}): no job may mirror it",
            f"Open it again with {back} if it should go on",
        )
    if promoted := sorted(promoted_topics(states)):
        yield warning(
            Check.STATE,
            flow.name,
            f"topic{_s(promoted)} {_some(promoted)} were promoted, and are not mirrored",
            "Promote them on the flow back to open them",
        )
    committed_ms = max((one.created_ms for one in states if one.runs or one.gaps), default=0)
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(committed_ms / 1_000))
    last = f"last commit {moment} UTC" if committed_ms else "no commit since the job has started"
    yield ok(Check.STATE, flow.name, f"generation {newest.generation}, {newest.slots} slots, {last}")


def _whose(flow: Flow, source: Cluster, states: list[SlotState]) -> Looks:
    if what := others(flow, states):
        yield problem(Check.STATE, flow.name, what, REMEDY.format(source=flow.source))
        return
    for one in states:
        if one.source_cluster_id and one.source_cluster_id != source.cluster_id:
            yield problem(
                Check.CLUSTER_ID,
                flow.name,
                f"cluster {flow.source} has id {source.cluster_id}, but the records mirrored so far came from cluster "
                f"{one.source_cluster_id}",
                f"Correct {flow.source}.bootstrap.servers, or give the new cluster another alias",
            )
            return


def _foreign(flow: Flow, what: str) -> DoctorFinding:
    return problem(
        Check.STATE, flow.name, what, f"Give the source another alias than {flow.source}, so that its topic is another"
    )


def clock(at: Peers) -> Looks:
    """Looks for timestamps of the source that lie in the future of this machine's clock."""
    flow, source, timeout_ms = at.flow, at.source, at.timeout_ms
    found = source.refresh(None, timeout_ms)
    keys = [
        (name, index) for name, topic in sorted(found.items()) if flow.mirrors_topic(name) for index in topic.leaders
    ]
    newest = newest_timestamps(source, keys[:MOST_PARTITIONS], timeout_ms)
    if newest is None:
        yield ok(Check.CLOCK, flow.name, "the source does not tell its newest timestamps (Kafka 3.0 and later do)")
        return
    if not newest:
        yield ok(Check.CLOCK, flow.name, "the source has no record to compare with")
        return
    key, latest = max(newest.items(), key=lambda item: item[1])
    ahead_ms = latest - time.time() * 1_000
    if ahead_ms > SKEW_MS:
        yield warning(
            Check.CLOCK,
            flow.name,
            f"{key[0]}-{key[1]} has a record {ahead_ms / 1_000:,.0f} s in the future of this machine's clock",
            "Compare the clocks of this machine, the brokers and the producers (NTP). A target with "
            "message.timestamp.after.max.ms refuses records that are too far in the future",
        )
    else:
        yield ok(Check.CLOCK, flow.name, f"newest record of {len(newest):,} partitions is not in the future")


def space(at: Peers) -> Looks:
    """Compares the size of the flow's topics with the free space of the target's disks."""
    flow, source, target, timeout_ms = at.flow, at.source, at.target, at.timeout_ms
    dirs = [one for one in log_dirs(target, timeout_ms) if one.total_bytes > 0]
    if not dirs:
        yield warning(
            Check.SPACE,
            flow.name,
            f"the brokers of {flow.target} do not say how full their disks are (Kafka 3.3 and later do)",
            "Look at their disks",
        )
        return
    free, total = sum(one.usable_bytes for one in dirs), sum(one.total_bytes for one in dirs)
    wanted = {name: flow.policy.remote_topic(name) for name in source.topics if flow.mirrors_topic(name)}
    brokers = dict.fromkeys(wanted, 0)
    for one in log_dirs(source, timeout_ms):
        for name, count in one.topics.items():
            if name in brokers:
                brokers[name] += count
    remotes = set(wanted.values())
    there = sum(count for one in dirs for name, count in one.topics.items() if name in remotes)
    needed = max(0, sum(brokers.values()) - there)
    text = (
        f"disks of {flow.target}: {free / 2**30:,.1f} of {total / 2**30:,.1f} GiB free; topics of the flow take "
        f"{sum(brokers.values()) / 2**30:,.1f} GiB on {flow.source}, with their replicas"
    )
    if needed > free or free < ROOM * total:
        yield (problem if needed > free else warning)(
            Check.SPACE, flow.name, text, "Add disks, or shorten retention.ms of the topics before the first run"
        )
    else:
        yield ok(Check.SPACE, flow.name, text)


def _s(names: list[str]) -> str:
    return "s" if len(names) != 1 else ""


def _some(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


CHECKS: tuple[tuple[Check, Callable[[Peers], Looks]], ...] = (
    (Check.CLUSTER_ID, ids),
    (Check.TOPICS, topics),
    (Check.PERMISSION, source_permissions),
    (Check.PERMISSION, target_permissions),
    (Check.PERMISSION, group_permissions),
    (Check.STATE, state),
    (Check.REPLICATION, replication),
    (Check.CLOCK, clock),
    (Check.SPACE, space),
)
