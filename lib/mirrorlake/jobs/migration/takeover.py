"""Takes a flow over from another mirror, such as MirrorMaker 2: infers positions and map from the contents of both
logs.

MirrorMaker 2 copies at least once, in order, and keeps no map. The take-over therefore reads both logs of each
partition. It hashes the timestamp, key, value and headers of each record, and aligns the two sequences
(`model/alignment.py`). The result is written as the first state of the flow: positions after the last copied record,
and runs marked as inferred. The mirror job continues from there, on the same remote topics.

The map is exact as far as contents distinguish records. Duplicates on the target remain. Missing records are recorded
as anomalies.
"""

from __future__ import annotations

import json
import logging
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.errors import ConfigurationError, MirrorlakeError, SourceError, TargetError, without_contents
from mirrorlake.gate import Gate, require
from mirrorlake.jobs.migration.finding import LogFinding, map_frame
from mirrorlake.jobs.migration.log_comparison import FOUND, GAPS_SHOWN, NO_RECORDS, compare, find, with_hash
from mirrorlake.jobs.mirror.planning.readiness import first_records, require_told
from mirrorlake.jobs.mirror.planning.start_offsets import first_positions
from mirrorlake.jobs.mirror.topics.own_topics import OwnTopics
from mirrorlake.ledger.anomaly import Anomaly
from mirrorlake.ledger.store import Ledger
from mirrorlake.log import ending, event
from mirrorlake.metrics import of_process
from mirrorlake.model.anomaly import AnomalyAction, AnomalyKind
from mirrorlake.model.run import Run
from mirrorlake.model.slot import NO_SLOT, TAKEN_OVER, ClosedFor, Position, merge_positions
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol import transaction
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.cluster import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Cluster,
)
from mirrorlake.protocol.connect_offsets import MirrorMaker
from mirrorlake.protocol.open_transactions import settled_ends
from mirrorlake.protocol.requests.metadata import Topic
from mirrorlake.spark.kafka_frames import log_records
from mirrorlake.spark.parallelism import copying_tasks
from mirrorlake.state import offset_syncs
from mirrorlake.state.closure import is_closed
from mirrorlake.state.generation import Beginning, begin_generation
from mirrorlake.state.whose import require_own

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TakeoverResult:
    """The result of a take-over, and the generation that it opened; 0 after a dry run, or if there is nothing to take
    over."""

    flow: str
    generation: int
    findings: tuple[LogFinding, ...]

    def table(self) -> pd.DataFrame:
        """Returns one row for each partition as a pandas frame, for display."""
        import pandas as pd

        hidden = ("gaps", "runs", "foreign_tail")
        columns = [name for name in LogFinding.__dataclass_fields__ if name not in hidden]
        return pd.DataFrame(
            [{**{name: getattr(found, name) for name in columns}, "runs": len(found.runs)} for found in self.findings],
            columns=[*columns, "runs"],
        )

    def to_json(self) -> dict[str, Any]:
        sums = {
            name: sum(getattr(found, name) for found in self.findings)
            for name in ("copied", "repeated", "missing", "foreign")
        }
        return {
            "flow": self.flow,
            "generation": self.generation,
            "partitions": len(self.findings),
            **sums,
            "runs": sum(len(found.runs) for found in self.findings),
        }


@dataclass(frozen=True)
class Compared:
    """The partitions whose logs are compared.

    Attributes:
        keys: on the source.
        remotes: remote topic of each topic of the flow.
        known: positions that the flow has mirrored itself.
        topics: topics of the flow, on the source.
        is_reopened: True for a flow that was handed back to MirrorMaker 2.
    """

    keys: list[PartitionKey]
    remotes: Mapping[str, str]
    known: Mapping[PartitionKey, Position]
    topics: Mapping[str, Topic]
    is_reopened: bool

    def remote(self, key: PartitionKey) -> PartitionKey:
        """Returns the remote partition of a source partition."""
        return self.remotes[key[0]], key[1]


class Takeover:
    """Takes a flow over from MirrorMaker 2, once.

    Args:
        spark: session that reads and compares the logs; the hashes and offsets of one partition (some 250 bytes a
            record) must fit into a worker's memory.
        flow: the flow, with MirrorMaker 2's names of topics.
        ledger: tables for the map and the anomalies.
        suite: path of the expectations for an inferred map.
        connector: name of MirrorMaker 2's source connector; see `MirrorMaker`.
    """

    def __init__(
        self,
        spark: SparkSession,
        flow: Flow,
        ledger: Ledger,
        suite: str | Path,
        connector: str = "",
    ) -> None:
        self.spark, self.flow, self.ledger = spark, flow, ledger
        self._gate = Gate(suite)
        self._target_admin = Admin(flow.target_connection, "target", flow.name)
        self._mirrormaker = MirrorMaker(flow, self._target_admin, connector)

    def run(self, *, dry_run: bool = False) -> TakeoverResult:
        """Compares the logs of every partition that is not mirrored yet, and opens the flow with the result.

        A flow that was handed back to MirrorMaker 2 is compared from the hand-back on, and opened again.

        Raises:
            ConfigurationError: others may write to the remote topics, so that contents can't show what was copied.
            TargetError: MirrorMaker 2 or another program still writes, or a remote topic has no record in common with
                its source.
            GateError: the inferred map fails the expectations; nothing is changed.
        """
        with ending(log, "takeover", flow=self.flow.name):
            return self._run(dry_run=dry_run)

    def _run(self, *, dry_run: bool) -> TakeoverResult:
        flow = self.flow
        if flow.topics_shared:
            back = flow.name_back
            why = f"the default, as {back} is enabled and names are kept" if flow.shares_by_default else "in the file"
            raise ConfigurationError(
                f"flow {flow.name}: others may write to its remote topics, too (mirrorlake.topics.shared: {why}), so "
                "mirrorlake can't recognise the copied records. If MirrorMaker 2 alone has written to them, repeat the "
                f"take-over with {back}.enabled = false, or with mirrorlake.topics.shared = false where both flows "
                "have different topics. Exclude topics to which others write (topics.exclude). A mirror job without a "
                "take-over would copy all records again"
            )
        client_id, timeout_ms = f"{flow.name}|takeover", flow.connect_timeout_ms
        source = Cluster(flow.source_connection, "source", client_id, timeout_ms).connect()
        target = Cluster(flow.target_connection, "target", client_id, timeout_ms).connect()
        try:
            self._mirrormaker.require_stopped(target)
            findings = self._compare(source, target)
            self._require_map(findings, target, dry_run=dry_run)
            is_due = findings or self._compared_now.is_reopened  # also a flow that had mirrored nothing
            generation = self._begin(source, target, findings) if is_due and not dry_run else 0
        finally:
            source.close()
            target.close()
        return TakeoverResult(flow.name, generation, tuple(findings))

    # -- comparing ----------------------------------------------------------------------------------

    def _compare(self, source: Cluster, target: Cluster) -> list[LogFinding]:
        flow, compared = self.flow, self._compared(source, target)
        self._compared_now, keys = compared, compared.keys
        if not keys:
            reason = "no remote topic holds records that are not known here"
            log.info(event("nothing_to_take_over", flow=flow.name, reason=reason))
            return []
        log.info(
            event("comparing_logs", flow=flow.name, topics=len({topic for topic, _ in keys}), partitions=len(keys))
        )
        first, end = self._source_bounds(source, compared)
        seen = self._seen(target, compared, first, end)
        nothing = find(NO_RECORDS, NO_RECORDS)
        findings = [
            self._finding(
                key,
                compared.remotes[key[0]],
                values={**seen.get(key, nothing)},
                mirrormaker_next=self._next_offsets.get(key),
                first=first[key],
                end=end[key],
                known=compared.known.get(key),
            )
            for key in keys
        ]
        self._require_on_source(findings, source, end)
        return findings

    def _compared(self, source: Cluster, target: Cluster) -> Compared:
        """Finds the partitions to compare: those that the target holds records of and the flow has not mirrored."""
        flow, timeout_ms = self.flow, self.flow.connect_timeout_ms
        topics = {name: topic for name, topic in source.refresh(None, timeout_ms).items() if flow.mirrors_topic(name)}
        unnamed = flow.unnamed(topics)
        if topics and len(unnamed) == len(topics):
            raise ConfigurationError(next(iter(unnamed.values())))
        for name, reason in unnamed.items():
            log.warning(event("topic_held", flow=flow.name, topic=name, reason=reason))
            del topics[name]
        remotes = flow.remote_topics(topics)
        there = target.refresh(remotes.values(), timeout_ms)
        counts = {
            name: min(topic.partitions, there[remotes[name]].partitions)
            for name, topic in sorted(topics.items())
            if remotes[name] in there
        }
        known, is_reopened = self._known(target)
        if not is_reopened:
            self._require_not_begun(target, remotes, there, known)
        if is_reopened:
            for (topic, _), position in known.items():
                remote = remotes.get(topic, "")
                self._require_same(position.topic_id, topics.get(topic), flow.source, topic)
                self._require_same(position.target_topic_id, there.get(remote), flow.target, remote)
        keys = [
            (topic, partition)
            for topic, count in counts.items()
            for partition in range(count)
            if (topic, partition) not in known or is_reopened
        ]
        self._topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        self._target_topic_ids = {name: topic.topic_id for name, topic in there.items()}
        self._ends = self._settled_ends(target, [(remotes[topic], partition) for topic, partition in keys])
        self._next_offsets = self._mirrormaker.positions()
        copied = known.keys() | self._next_offsets.keys()
        held = [key for key in keys if self._ends[remotes[key[0]], key[1]] > 0 or key in copied]
        return Compared(held, remotes, known, topics, is_reopened)

    def _require_not_begun(
        self,
        target: Cluster,
        remotes: Mapping[str, str],
        there: Mapping[str, Topic],
        known: Mapping[PartitionKey, Position],
    ) -> None:
        """Raises ConfigurationError if a mirror job has stored a start for a partition that MirrorMaker 2 has copied.

        The take-over would leave such partitions out, and the mirror job holds their topics for ever.
        """
        begun: dict[str, list[PartitionKey]] = {}
        for (topic, partition), position in known.items():
            remote = remotes.get(topic, "")
            if not position.downstream_next and remote in there and not self.flow.policy.is_heartbeats_topic(topic):
                begun.setdefault(topic, []).append((remote, partition))
        held, unread = first_records(target, begun, self.flow.connect_timeout_ms, {})
        require_told(self.flow, unread)
        if held:
            flow = self.flow
            way_out = (
                "Exclude such topics (topics.exclude), or delete their remote topics"
                if any(position.downstream_next for position in known.values())
                else f"It has mirrored nothing: delete {flow.offset_syncs_topic} there, and repeat the take-over"
            )
            raise ConfigurationError(
                f"flow {flow.name}: a mirror job was started before the take-over, and has stored start offsets, also "
                f"of topic {min(held)}, whose remote topic on cluster {flow.target} has records of MirrorMaker 2. "
                f"{way_out}"
            )

    def _require_same(self, before: str, now: Topic | None, cluster: str, name: str) -> None:
        """Raises TargetError if a topic is not the one of which the flow's map tells."""
        if before and now is not None and now.topic_id and now.topic_id != before:
            raise TargetError(
                f"flow {self.flow.name}: topic {name} on cluster {cluster} was created anew since the hand-back. The "
                "map of what was mirrored before is of another topic. Exclude the topic (topics.exclude)"
            )

    def _source_bounds(
        self, source: Cluster, compared: Compared
    ) -> tuple[dict[PartitionKey, int], dict[PartitionKey, int]]:
        """Returns from where to where the source's logs are read: up to where MirrorMaker 2 reads."""
        keys, timeout_ms = compared.keys, self.flow.connect_timeout_ms
        isolation = READ_COMMITTED if self.flow.mirrormaker.isolation == "read_committed" else READ_UNCOMMITTED
        end = source.call("listing offsets", lambda: source.list_offsets(keys, LATEST_TIMESTAMP, isolation), timeout_ms)
        starts = source.offsets(keys, EARLIEST_TIMESTAMP, timeout_ms)
        known = {key: position.upstream_next for key, position in compared.known.items()}
        return {key: max(offset, known.get(key, 0)) for key, offset in starts.items()}, end

    def _seen(
        self,
        target: Cluster,
        compared: Compared,
        first: Mapping[PartitionKey, int],
        end: Mapping[PartitionKey, int],
    ) -> dict[PartitionKey, dict[str, Any]]:
        """Compares the contents of the logs, and returns what they have in common, as `log_comparison.find` says it."""
        flow, keys, remotes = self.flow, compared.keys, compared.remotes
        stamped = self._stamped({remotes[topic] for topic, _ in keys})
        known = {compared.remote(key): compared.known[key].downstream_next for key in keys if key in compared.known}
        starts = target.offsets(list(map(compared.remote, keys)), EARLIEST_TIMESTAMP, flow.connect_timeout_ms)
        here = log_records(
            self.spark,
            flow.source_connection,
            start=first,
            end=end,
            isolation=flow.mirrormaker.isolation,
            names={topic: topic for topic, _ in keys},
        )
        there = log_records(
            self.spark,
            flow.target_connection,
            start={key: max(offset, known.get(key, 0)) for key, offset in starts.items()},
            end={key: self._ends[key] for key in starts},
            isolation="read_committed",
            names={remotes[topic]: topic for topic, _ in keys},
        )
        restamped = sorted(topic for topic, remote in remotes.items() if remote in stamped)
        one, other = (with_hash(side, restamped).groupBy("topic", "partition") for side in (here, there))
        try:
            rows = one.cogroup(other).applyInArrow(compare, FOUND).collect()
        except Exception as error:  # from Spark: a log can't be read, or a timestamp is out of range
            raise MirrorlakeError(
                f"flow {flow.name}: the logs can't be compared: {without_contents(error)}. Nothing was changed"
            ) from None
        return {(row["topic"], row["partition"]): json.loads(row["finding"]) for row in rows}

    def _require_on_source(self, findings: list[LogFinding], source: Cluster, end: Mapping[PartitionKey, int]) -> None:
        """Checks that the source still has, for committed readers, all that was copied from it.

        Raises:
            SourceError: a log ends before what was copied, or a transaction in there is still open.
        """
        flow = self.flow
        stable = source.offsets([found.key for found in findings], LATEST_TIMESTAMP, flow.connect_timeout_ms)
        ahead = next((found for found in findings if found.upstream_next > stable[found.key]), None)
        if ahead is None:
            return
        if ahead.upstream_next > end[ahead.key]:
            raise SourceError(
                f"flow {flow.name}, topic {ahead.topic}, partition {ahead.partition}: MirrorMaker 2 has copied up to "
                f"offset {ahead.upstream_next}, but the log of cluster {flow.source} ends at {end[ahead.key]}: the "
                "topic was created anew, or has lost records. Exclude the topic (topics.exclude), or delete the "
                "remote topic"
            )
        raise SourceError(
            f"flow {flow.name}, topic {ahead.topic}, partition {ahead.partition}: MirrorMaker 2 has copied up to "
            f"offset {ahead.upstream_next}, but the transaction at offset {stable[ahead.key]} on cluster "
            f"{flow.source} is still open. Repeat the take-over when the transaction has ended",
            retriable=True,
        )

    def _finding(
        self,
        key: PartitionKey,
        remote: str,
        values: dict[str, Any],
        mirrormaker_next: int | None,
        first: int,
        end: int,
        known: Position | None,
    ) -> LogFinding:
        """Builds the finding of one partition, whose source log was read from `first` to `end`."""
        runs = tuple(_run(key, remote, numbers) for numbers in values.pop("runs"))
        gaps = tuple(tuple(gap) for gap in values.pop("gaps"))
        if not runs:
            known_next = known.upstream_next if known else None
            next_offset = max(
                (offset for offset in (mirrormaker_next, known_next) if offset is not None),
                default=None,
            )
            values["upstream_next"] = self._next_without_match(
                key, remote, values=values, mirrormaker_next=next_offset, first=first, end=end
            )
            if next_offset is not None and values["upstream_next"] > next_offset:
                # retention deleted these records before MirrorMaker 2 copied them
                lost = values["upstream_next"] - next_offset
                gaps, values["missing"] = ((next_offset, first - 1, lost),), lost
        return LogFinding(*key, remote, mirrormaker_next=mirrormaker_next, gaps=gaps, runs=runs, **values)

    def _next_without_match(
        self,
        key: PartitionKey,
        remote: str,
        values: Mapping[str, Any],
        mirrormaker_next: int | None,
        first: int,
        end: int,
    ) -> int:
        """Returns the next source offset of a partition whose logs have no record in common, because the copied records
        expired."""
        if mirrormaker_next is not None and (
            not values["target_records"] or not values["source_records"] or mirrormaker_next <= first
        ):
            return max(mirrormaker_next, first)
        if not values["source_records"]:
            return end
        where = f"{remote}-{key[1]} on cluster {self.flow.target}"
        if values["target_records"]:
            raise TargetError(
                f"flow {self.flow.name}: none of the {values['target_records']} records of {where} is in "
                f"{key[0]}-{key[1]} on cluster {self.flow.source}. Either the remote topic is no copy, or its "
                "records were transformed, or its message.timestamp.type could not be read (needs DESCRIBE_CONFIGS). "
                "Exclude the topic (topics.exclude), or delete the remote topic"
            )
        raise TargetError(
            f"flow {self.flow.name}: all records of {where} have expired, and MirrorMaker 2 has left no offset of "
            "the partition. The take-over therefore does not know the start offset. Set "
            f"mirrorlake.start.topic.{key[0]} and delete the remote topic, or exclude the topic (topics.exclude)"
        )

    def _known(self, target: Cluster) -> tuple[dict[PartitionKey, Position], bool]:
        """Returns the positions that the flow has mirrored itself, and whether it was handed back since."""
        states = offset_syncs.read_all_states(
            target, self.flow.offset_syncs_topic, self.flow.connect_timeout_ms
        ).values()
        require_own(self.flow, states)
        return merge_positions(states), is_closed(states)

    def _settled_ends(self, target: Cluster, keys: list[PartitionKey]) -> dict[PartitionKey, int]:
        """Returns the ends of remote partitions; waits until none of them has an open transaction."""
        return settled_ends(
            target,
            dict.fromkeys(keys, sys.maxsize),
            f"flow {self.flow.name}: finding the ends of the remote topics",
            "MirrorMaker 2 still runs, or its last transaction has not timed out yet",
            self.flow.connect_timeout_ms,
        )

    def _stamped(self, remotes: set[str]) -> set[str]:
        """Returns the remote topics whose records have the target broker's timestamp."""
        configs = self._target_admin.configs(sorted(remotes))
        return {
            topic
            for topic, entries in configs.items()
            if "message.timestamp.type" in entries and entries["message.timestamp.type"].value == "LogAppendTime"
        }

    # -- gate and first state -----------------------------------------------------------------------

    def _require_map(self, findings: list[LogFinding], target: Cluster, *, dry_run: bool) -> None:
        """Evaluates the gate on the inferred map, and on the ends of the logs, which must be unchanged."""
        if not findings:
            return
        self._mirrormaker.require_stopped(target)
        now = self._settled_ends(target, sorted(self._ends))
        cycle_id = uuid.uuid4().hex
        results = self._gate.evaluate(map_frame(findings, self._ends, now), self.flow.name, cycle_id)
        if not dry_run:
            self.ledger.ensure_tables().append("expectation_results", results)
        require(
            results,
            f"flow {self.flow.name}, take-over {cycle_id}",
            "nothing was changed. If the target's logs have grown during the comparison, stop the program that "
            "writes to them",
        )

    def _begin(self, source: Cluster, target: Cluster, findings: list[LogFinding]) -> int:
        flow = self.flow
        transaction.require_transactions(target, flow.connect_timeout_ms, flow.transactional_id(0))
        slots = flow.slots_on(copying_tasks(self.spark))
        partitions = OwnTopics(flow, self._target_admin).ensure_offset_syncs(slots)
        positions = tuple(
            Position(
                *found.key,
                topic_id=self._topic_ids[found.topic],
                target_topic=found.target_topic,
                target_partition=found.partition,
                upstream_next=found.upstream_next,
                downstream_next=self._downstream_next(found),
                slot=NO_SLOT,
                target_topic_id=self._target_topic_ids[found.target_topic],
                epoch_from=TAKEN_OVER,
            )
            for found in findings
        )
        runs = tuple(run for found in findings for run in found.runs)
        mine = {found.key for found in findings}
        anomalies = [row for found in findings for row in self._anomalies(found)]
        self.ledger.append("anomalies", anomalies)  # first, as they can't be found once the flow is open

        def beginning(known: Mapping[PartitionKey, Position]) -> Beginning:
            """Returns what to begin with; what MirrorMaker 2 has not begun, starts as the configuration says."""
            starts = () if known else first_positions(source, flow, self._compared_now.topics)
            others = {key: one for one in starts if (key := (one.topic, one.partition)) not in mine}
            left = {key: offset for key, offset in self._next_offsets.items() if key in others}
            first = source.offsets(left, EARLIEST_TIMESTAMP, flow.connect_timeout_ms) if left else {}
            for key in first:
                begins = min(others[key].upstream_next, max(first[key], left[key]))
                others[key] = replace(others[key], upstream_next=begins)
            return Beginning((*positions, *others.values()), runs, reopens=ClosedFor.HANDBACK)

        generation = begin_generation(
            flow,
            source.cluster_id,
            target=target,
            slots=slots,
            beginning=beginning,
        )
        self.ledger.catch_up(flow, partitions)
        for row in anomalies:
            of_process().anomalies.labels(flow.name, row.kind).inc()
        log.info(
            event(
                "flow_taken_over",
                flow=flow.name,
                generation=generation,
                positions=len(positions),
                inferred_runs=len(runs),
            )
        )
        return generation

    def _downstream_next(self, found: LogFinding) -> int:
        """Returns the end of the map; without a map, all records on the target are older than the flow.

        Where MirrorMaker 2 has added none since a hand-back, the map from before it still ends there.
        """
        if found.runs:
            return found.runs[-1].downstream_end
        known = self._compared_now.known.get(found.key)
        if known is not None and found.upstream_next == known.upstream_next and known.downstream_next:
            return known.downstream_next
        return self._ends[found.target_topic, found.partition]

    def _anomalies(self, found: LogFinding) -> Iterator[Anomaly]:
        """Yields the anomalies of one partition."""

        def anomaly(kind: AnomalyKind, records: int, detail: str, **offsets: int) -> Anomaly:
            return Anomaly.of_flow(
                self.flow,
                kind,
                AnomalyAction.FOUND_AT_TAKEOVER,
                detail,
                topic=found.topic,
                partition=found.partition,
                records=records,
                **offsets,
            )

        for first, last, count in found.gaps:
            yield anomaly(
                AnomalyKind.MISSING,
                count,
                "on the source, and not on the target",
                from_offset=first,
                to_offset=last + 1,
            )
        unlisted = found.missing - sum(count for _, _, count in found.gaps)
        if unlisted:
            yield anomaly(AnomalyKind.MISSING, unlisted, f"in gaps after the first {GAPS_SHOWN}")
        if found.repeated:
            yield anomaly(AnomalyKind.REPEATED, found.repeated, "on the target more than once")
        if found.foreign:
            detail = "on the target, and not on the source: written by other producers, or deleted on the source since"
            yield anomaly(AnomalyKind.FOREIGN, found.foreign, detail)


def _run(key: PartitionKey, remote: str, numbers: Iterable[int]) -> Run:
    """Builds a run from a row of `log_comparison.find`; its digest is 0, as no batch was read."""
    upstream_start, upstream_end, downstream_start, downstream_end, records, size, first, last = numbers
    return Run(
        *key,
        target_topic=remote,
        target_partition=key[1],
        upstream_start=upstream_start,
        upstream_end=upstream_end,
        downstream_start=downstream_start,
        downstream_end=downstream_end,
        records=records,
        bytes=size,
        first_timestamp=first,
        last_timestamp=last,
        digest=0,
    )
