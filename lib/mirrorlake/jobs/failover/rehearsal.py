"""Rehearsal: checks, by the records on the target, that each counterpart is what the map says. Only reads.

With the source alive, the record at the group's position is read on both sides and compared. Without it, the record on
the target is compared with its run in the ledger: by its timestamp and, if the run is small enough, by the digest of
the whole run. The mirror job computed this digest while copying.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mirrorlake.config.flow import Flow
from mirrorlake.jobs.failover.plan import Line
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.messages import Message, read_messages
from mirrorlake.protocol.cluster import READ_COMMITTED, READ_UNCOMMITTED, Cluster
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.protocol.log_reader import read_stretch
from mirrorlake.protocol.network.response_error import ResponseError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Proof(StrEnum):
    """The result of checking one offset; a reason follows DIFFERS and GONE."""

    SAME = "same record"
    DIGEST = "same digest"
    BOUNDS = "within bounds"
    END = "at the end"
    DIFFERS = "differs"
    GONE = "gone"


DIGEST_BYTES = 16 << 20
FETCH_BYTES = 1 << 20


class Rehearsal:
    """Checks lines of a plan.

    Args:
        flow: flow of the map.
        target: target cluster.
        bounds: log start offsets, last stable offsets and high watermarks of the target's partitions. A record behind
            the last stable offset may be one of the flow: other programs' open transactions begin before it.
        source: source cluster; None if it is dead.
        source_ends: last stable offsets of the source's partitions.
    """

    def __init__(
        self,
        flow: Flow,
        target: Cluster,
        bounds: Mapping[PartitionKey, tuple[int, int, int]],
        source: Cluster | None,
        source_ends: Mapping[PartitionKey, int],
    ) -> None:
        self._flow, self._target, self._bounds = flow, target, bounds
        self._source, self._source_ends = source, source_ends
        self._proven: dict[tuple[str, int, int, int | None], str] = {}
        self._digests: dict[tuple[PartitionKey, int], str | None] = {}

    def prove(self, line: Line, run: Mapping[str, Any] | None) -> str:
        """Checks the record at a line's downstream offset.

        Args:
            line: line with a downstream offset.
            run: the row of offset_syncs that contains that offset; None past the last run, or if another flow has the
                run.

        Returns:
            A value of `Proof`. It begins with DIFFERS or GONE if the map is not confirmed.
        """
        assert line.target_topic is not None
        assert line.target_partition is not None
        assert line.downstream_offset is not None
        asked = (line.target_topic, line.target_partition, line.downstream_offset, line.upstream_offset)
        if asked not in self._proven:
            try:
                self._proven[asked] = self._prove(
                    line, (line.target_topic, line.target_partition), line.downstream_offset, run
                )
            except UnicodeDecodeError:  # the key of a header: kafka-python reads text only
                self._proven[asked] = Proof.BOUNDS
        return self._proven[asked]

    def _prove(self, line: Line, key: PartitionKey, place: int, run: Mapping[str, Any] | None) -> str:
        _, stable_end, end = self._bounds.get(key, (0, 0, 0))
        if place > end:
            return f"{Proof.DIFFERS}: {key[0]}-{key[1]} ends at {end} on the target, before {place}"
        if line.piece_start is None:
            return Proof.END
        isolation = READ_COMMITTED if place < stable_end else READ_UNCOMMITTED
        there = self._first(self._target, key, place, end, isolation)
        if there is None or there[0] != place:
            return f"{Proof.GONE}: the target has no record at {place} any more (retention or compaction)"
        if (
            self._source is not None
            and (str(line.topic), int(line.partition or 0)) in self._source_ends
            and self._flow.transform_of(str(line.topic)) is None
            and (upstream := self._upstream(line, place)) is not None
        ):
            return self._compare(line, upstream, there, is_inferred=bool(run and run["inferred"]))
        return self._hold_against(run, key, there)

    @staticmethod
    def _upstream(line: Line, place: int) -> int | None:
        """Returns the source offset of the record at the counterpart, if it is in the piece that was used."""
        if line.piece_start is None or line.piece_to_start is None or line.upstream_offset is None:
            return None
        at = max(line.upstream_offset, line.piece_start)
        return at if place == line.piece_to_start + at - line.piece_start else None

    def _compare(self, line: Line, upstream: int, there: Message, *, is_inferred: bool) -> str:
        assert self._source is not None
        key = (str(line.topic), int(line.partition or 0))
        here = self._first(self._source, key, upstream, self._source_ends.get(key, upstream))
        if here is None or here[0] != upstream:
            return f"{Proof.GONE}: the source has no record at {upstream} any more (retention or compaction)"
        kept = 2 if is_inferred else 1  # what was taken over may have timestamps of its own
        return (
            Proof.SAME
            if here[kept:] == there[kept:]
            else f"{Proof.DIFFERS}: the record at {there[0]} on the target is not the one at {upstream} on the source"
        )

    def _hold_against(self, run: Mapping[str, Any] | None, key: PartitionKey, there: Message) -> str:
        if run is None or not run["downstream_start"] <= there[0] < run["downstream_end"]:
            # if both sides have written at once, the offset may be in a later piece than the one that was used
            return Proof.BOUNDS
        if (
            run["last_timestamp"] is not None and not run["inferred"] and there[1] > run["last_timestamp"]
        ):  # first_timestamp is the minimum over the batches' first records, so it is no lower bound
            return (
                f"{Proof.DIFFERS}: the timestamp of the record at {there[0]} on the target is {there[1]}, later than "
                "every timestamp of its run"
            )
        if run["digest"] is None or run["bytes"] > DIGEST_BYTES or self._flow.transform_of(run["topic"]) is not None:
            return Proof.BOUNDS
        place = (key, run["downstream_start"])
        if run["downstream_end"] > self._bounds[key][1]:  # an open transaction of others is in the way
            return Proof.BOUNDS
        if place not in self._digests:  # many groups share a run
            self._digests[place] = self._digest(*place, run["downstream_end"])
        found = self._digests[place]
        if found is None:
            return Proof.BOUNDS
        if found == run["digest"]:
            return Proof.DIGEST
        return (
            f"{Proof.DIFFERS}: offsets {run['downstream_start']} to {run['downstream_end']} on the target have "
            f"digest {found}, but the run has {run['digest']}"
        )

    def _first(
        self, cluster: Cluster, key: PartitionKey, at: int, end: int, isolation: int = READ_COMMITTED
    ) -> Message | None:
        async def read() -> Message | None:
            with _nothing_if_deleted():
                async for batch, is_aborted in read_stretch(cluster, key, at, end, FETCH_BYTES, isolation):
                    if is_aborted or batch.is_control:
                        continue
                    for message in read_messages(batch):
                        if message.offset >= at:
                            return message
            return None

        return (
            cluster.call(f"reading {key[0]}-{key[1]} at offset {at} (needs READ)", read, self._flow.connect_timeout_ms)
            if at < end
            else None
        )

    def _digest(self, key: PartitionKey, start: int, end: int) -> str | None:
        """Computes the digest of the batches between two offsets; None if the batches don't begin and end there
        (compaction)."""

        async def read() -> str | None:
            digest, at = 0, start
            with _nothing_if_deleted():
                async for batch, is_aborted in read_stretch(self._target, key, start, end, FETCH_BYTES):
                    if is_aborted or batch.is_control or batch.base_offset != at or not batch.passes_unopened:
                        return None
                    digest, at = batch.extend_digest(digest), batch.end_offset
            return f"{digest:08x}" if at == end else None

        return self._target.call(
            f"reading {key[0]}-{key[1]} from offset {start} (needs READ)", read, self._flow.connect_timeout_ms
        )


@contextlib.contextmanager
def _nothing_if_deleted() -> Iterator[None]:
    """Ends a block where the log begins behind the offset that is read: retention has deleted it."""
    try:
        yield
    except ResponseError as error:
        if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
            raise


def runs_of(offset_syncs: DataFrame, lines: list[Line]) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Reads the rows of offset_syncs that lines use, by topic, partition and downstream_start.

    Where a remote topic was created anew, the row of its last log counts. last_timestamp is in ms since the epoch.
    """
    from pyspark.sql import functions as F

    chosen = sorted(
        {
            (str(line.topic), int(line.partition or 0), line.piece_to_start)
            for line in lines
            if line.piece_to_start is not None
        }
    )
    if not chosen:
        return {}
    wanted = offset_syncs.sparkSession.createDataFrame(chosen, "topic STRING, partition INT, downstream_start BIGINT")
    rows = offset_syncs.join(F.broadcast(wanted), ["topic", "partition", "downstream_start"]).withColumns(
        {"last_timestamp": F.unix_millis("last_timestamp")}
    )
    found = sorted(rows.collect(), key=lambda row: row["incarnation"] or 0)
    return {(row["topic"], row["partition"], row["downstream_start"]): row.asDict() for row in found}
