"""Compares the two logs of a partition by hashes of their records."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrorlake.model.alignment import Match, align, chain

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame

FOUND = "topic STRING, partition INT, finding STRING"
GAPS_SHOWN = 100  # per partition
NO_RECORDS = {name: np.empty(0, np.int64) for name in ("offset", "hash", "timestamp", "bytes")}


def with_hash(records: DataFrame, stamped: Iterable[str] = ()) -> DataFrame:
    """Hashes records.

    The columns are topic, partition, offset, hash (of key, value, headers and timestamp), timestamp (ms) and bytes (of
    key and value).

    Args:
        records: rows of Spark's Kafka source, with headers.
        stamped: topics whose copies have other timestamps; their hashes leave the timestamp out.
    """
    from pyspark.sql import functions as F

    nothing = F.lit(b"").cast("binary")
    length = {
        name: F.coalesce(F.octet_length(name), F.lit(-1)) for name in ("key", "value")
    }  # distinguishes null from empty, and key from value
    timestamp = F.unix_millis("timestamp")
    said = (
        F.when(F.col("topic").isin(*stamped), F.lit(0)).otherwise(timestamp)
        if (stamped := list(stamped))
        else timestamp
    )
    content: list[Column | str] = [
        length["key"],
        F.coalesce("key", nothing),
        length["value"],
        F.coalesce("value", nothing),
        F.coalesce(F.size("headers"), F.lit(-1)),
        "headers",
        said,
    ]
    size = F.greatest(length["key"], F.lit(0)) + F.greatest(length["value"], F.lit(0))
    return records.select(
        "topic",
        "partition",
        "offset",
        F.xxhash64(*content).alias("hash"),
        timestamp.alias("timestamp"),
        size.cast("long").alias("bytes"),
    )


def compare(key: tuple[Any, ...], source: pa.Table, copy: pa.Table) -> pa.Table:
    """Compares the logs of one partition; returns one row, whose finding is JSON (see `find`)."""
    import pyarrow as pa

    finding = find(_columns(source), _columns(copy))
    return pa.table(
        {
            "topic": [str(key[0])],
            "partition": pa.array([int(str(key[1]))], pa.int32()),
            "finding": [json.dumps(finding)],
        }
    )


def find(source: Mapping[str, NDArray[Any]], copy: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Compares two logs, each with columns offset, hash, timestamp and bytes, in the order of offsets.

    Returns:
        upstream_next (after the last record that both have; 0 if there is none), the counts of `finding.LogFinding`,
        gaps, and runs: the four offsets, records, bytes, first and last timestamp of each.
    """
    matches = align(source["hash"].view(np.uint64), copy["hash"].view(np.uint64))
    kept = chain(matches)
    upstream, downstream = _places(kept)
    matched = sum(match.count for match in matches)
    is_there = np.isin(source["hash"], copy["hash"])
    between = (
        (one.source_end, other.source) for one, other in itertools.pairwise(kept) if other.source > one.source_end
    )
    gaps = [(start, end, count) for start, end in between if (count := int(np.count_nonzero(~is_there[start:end])))]
    return {
        "upstream_next": int(source["offset"][upstream[-1]]) + 1 if len(upstream) else 0,
        "copied": len(upstream),
        "repeated": matched - len(upstream),
        "missing": sum(count for _, _, count in gaps),
        "foreign": int(np.count_nonzero(~np.isin(copy["hash"], source["hash"]))),
        "foreign_tail": len(copy["offset"]) - max((match.copy + match.count for match in matches), default=0),
        "source_records": len(source["offset"]),
        "target_records": len(copy["offset"]),
        "gaps": [
            (int(source["offset"][start]), int(source["offset"][end - 1]), count)
            for start, end, count in gaps[:GAPS_SHOWN]
        ],
        "runs": list(_runs({name: values[upstream] for name, values in source.items()}, copy["offset"][downstream])),
    }


def _places(matches: list[Match]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the indices of all matched records in the source and in the copy."""
    if not matches:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return (
        np.concatenate([np.arange(match.source, match.source + match.count) for match in matches]),
        np.concatenate([np.arange(match.copy, match.copy + match.count) for match in matches]),
    )


def _runs(source: Mapping[str, NDArray[Any]], downstream: NDArray[np.int64]) -> Iterable[tuple[int, ...]]:
    """Cuts pairs of records into runs, wherever either side skips an offset."""
    if not len(downstream):
        return
    upstream = source["offset"]
    starts = np.concatenate([[0], np.flatnonzero((np.diff(upstream) != 1) | (np.diff(downstream) != 1)) + 1])
    lengths = np.diff(np.append(starts, len(upstream)))
    columns = (
        upstream[starts],
        upstream[starts] + lengths,
        downstream[starts],
        downstream[starts] + lengths,
        lengths,
        np.add.reduceat(source["bytes"], starts),
        np.minimum.reduceat(source["timestamp"], starts),
        np.maximum.reduceat(source["timestamp"], starts),
    )
    yield from zip(*(column.tolist() for column in columns), strict=True)


def _columns(table: pa.Table) -> dict[str, NDArray[Any]]:
    """Returns the columns of a log as arrays, in the order of offsets."""
    arrays = {name: table.column(name).to_numpy() for name in ("offset", "hash", "timestamp", "bytes")}
    order = np.argsort(arrays["offset"], kind="stable")
    return {name: values[order] for name, values in arrays.items()}
