"""Answers that say something else than the broker: errors, pauses, and record batches that lie.

Answers are decoded and encoded by kafka-python, in the version of the request. An answer that would not be encoded to
the same bytes is left alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse
from kafka.protocol.producer import AddPartitionsToTxnRequest, ProduceRequest, ProduceResponse
from kafka.protocol.producer import AddPartitionsToTxnResponse as AddedResponse

from mirrorlake.local.proxy.requests import API_VERSIONS, HEADER, LENGTH, Request

CODES = ("error_code", "partition_error_code")
# What an answer with an error does not tell.
BLANKS = {
    "records": b"",
    "base_offset": -1,
    "offset": -1,
    "producer_id": -1,
    "leader_id": -1,
    "node_id": -1,
    "committed_offset": -1,
}
HEADER_OF_BATCH = 61  # bytes before the records of a batch
LENGTH_IN_BATCH = 8  # where a batch says its length
OFFSET, MOVED_BITS = struct.Struct(">q"), 40


class UnalterableError(Exception):
    """Raised when an answer can't say what it should; it is passed on unchanged."""


def with_error(request: Request, answer: bytes, code: int, pick: int) -> bytes:
    """Puts an error code into an answer: into all of its entries (if `pick` is even), or into one of them."""

    def change(body: Any) -> None:
        entries = list(_entries(body))
        if not entries:
            raise UnalterableError("no error code")
        for entry in entries if pick % 2 == 0 else [entries[pick // 2 % len(entries)]]:
            _fail(entry, code)

    return _changed(request, answer, change)


def with_pause(request: Request, answer: bytes, pause_ms: int) -> bytes:
    """Asks the client to send nothing for a while."""

    def change(body: Any) -> None:
        if not _has(body, "throttle_time_ms", request.version):
            raise UnalterableError("it can't throttle")
        body.throttle_time_ms = pause_ms

    return _changed(request, answer, change)


def with_records(request: Request, answer: bytes, change_records: Callable[[bytearray], bytearray]) -> bytes:
    """Changes the records of the partitions in the answer to a Fetch request."""

    def change(body: Any) -> None:
        found = [
            partition
            for topic in body.responses
            for partition in topic.partitions
            if partition.records is not None and len(partition.records) > HEADER_OF_BATCH
        ]
        if not found:
            raise UnalterableError("no records")
        for partition in found:
            partition.records = bytes(change_records(bytearray(partition.records)))

    return _changed(request, answer, change)


def corrupted(records: bytearray, pick: int) -> bytearray:
    """Changes one byte behind the header of the first batch."""
    records[HEADER_OF_BATCH + pick % (len(records) - HEADER_OF_BATCH)] ^= 1 + pick % 255
    return records


def cut_off(records: bytearray, pick: int) -> bytearray:
    """Leaves out the end of the records, within a batch."""
    return records[: 1 + pick % (len(records) - 1)]


def lying(records: bytearray, pick: int) -> bytearray:
    """Changes the length that the first batch has by its header."""
    (length,) = LENGTH.unpack_from(records, LENGTH_IN_BATCH)
    LENGTH.pack_into(records, LENGTH_IN_BATCH, (length // 2, 2 * length, 0, -1, 2**31 - 1)[pick % 5])
    return records


def misplaced(records: bytearray, pick: int) -> bytearray:
    """Changes one bit of the first offset of the first batch, which no CRC covers."""
    (offset,) = OFFSET.unpack_from(records)
    OFFSET.pack_into(records, 0, offset ^ 1 << pick % MOVED_BITS)
    return records


def refusal(request: Request, code: int) -> bytes:
    """Makes the answer to a request that was not applied, as a broker that refuses it.

    Raises:
        UnalterableError: answers of this kind can't be made without the broker.
    """
    known = request.response_class
    if known is None or request.version > known.max_version:
        raise UnalterableError("unknown version")
    made = REFUSALS.get(request.api, _flat)(request, known)
    for entry in _entries(made):
        _fail(entry, code)
    header = LENGTH.pack(request.correlation_id) + (b"\0" if _is_flexible(request, known) else b"")
    payload = header + bytes(made.encode(version=request.version))
    return LENGTH.pack(len(payload)) + payload


def _flat(request: Request, response: Any) -> Any:
    return response[request.version]()


def _produce(request: Request, _response: Any) -> Any:
    asked = _decoded(request, ProduceRequest)
    answered = ProduceResponse.TopicProduceResponse
    return ProduceResponse[request.version](
        responses=[
            answered(
                name=topic.name,
                partition_responses=[
                    answered.PartitionProduceResponse(index=partition.index, log_append_time_ms=-1, log_start_offset=-1)
                    for partition in topic.partition_data
                ],
            )
            for topic in asked.topic_data
        ],
        throttle_time_ms=0,
    )


def _offset_commit(request: Request, _response: Any) -> Any:
    asked = _decoded(request, OffsetCommitRequest)
    answered = OffsetCommitResponse.OffsetCommitResponseTopic
    return OffsetCommitResponse[request.version](
        throttle_time_ms=0,
        topics=[
            answered(
                name=topic.name,
                partitions=[
                    answered.OffsetCommitResponsePartition(partition_index=partition.partition_index)
                    for partition in topic.partitions
                ],
            )
            for topic in asked.topics
        ],
    )


def _add_partitions(request: Request, _response: Any) -> Any:
    asked = _decoded(request, AddPartitionsToTxnRequest)
    topic = AddedResponse.AddPartitionsToTxnTopicResult
    return AddedResponse[request.version](
        throttle_time_ms=0,
        results_by_topic_v3_and_below=[
            topic(
                name=one.name,
                results_by_partition=[
                    topic.AddPartitionsToTxnPartitionResult(partition_index=index) for index in one.partitions
                ],
            )
            for one in asked.v3_and_below_topics
        ],
    )


REFUSALS: dict[str, Callable[[Request, Any], Any]] = {
    "Produce": _produce,
    "OffsetCommit": _offset_commit,
    "AddPartitionsToTxn": _add_partitions,
}


def _decoded(request: Request, kind: Any) -> Any:
    if request.version > kind.max_version:
        raise UnalterableError("unknown version")
    start = LENGTH.size + HEADER.size + len(request.client_id.encode())
    start += kind.flexible_version_q(request.version)  # an empty list of tags ends the header
    return kind.decode(request.frame[start:], version=request.version)


def _changed(request: Request, answer: bytes, change: Callable[[Any], None]) -> bytes:
    known = request.response_class
    if known is None or request.version > known.max_version:
        raise UnalterableError("unknown version")
    start = 2 * LENGTH.size + _is_flexible(request, known)
    try:
        body = known.decode(answer[start:], version=request.version)
        body._header = None  # otherwise kafka-python can't encode what it has decoded without a header
        is_faithful = bytes(body.encode(version=request.version)) == answer[start:]
    except Exception as error:  # kafka-python can't read it, whatever the reason
        raise UnalterableError(str(error)) from error
    if not is_faithful:
        raise UnalterableError("it would be encoded otherwise")
    change(body)
    payload = answer[LENGTH.size : start] + bytes(body.encode(version=request.version))
    return LENGTH.pack(len(payload)) + payload


def _is_flexible(request: Request, known: Any) -> bool:
    return request.key != API_VERSIONS and bool(known.flexible_version_q(request.version))


def _entries(body: Any) -> Iterator[Any]:
    """Yields the innermost parts of an answer that have an error code."""
    inner = [part for name in body._struct.fields for part in _parts(getattr(body, name, None))]
    below = [entry for part in inner for entry in _entries(part)]
    if below:
        yield from below
    elif any(name in body._struct.fields for name in CODES):
        yield body


def _parts(value: Any) -> list[Any]:
    values = value if isinstance(value, list | tuple) else [value]
    return [one for one in values if hasattr(one, "_struct")]


def _fail(entry: Any, code: int) -> None:
    for name in entry._struct.fields:
        if name in CODES:
            setattr(entry, name, code)
        elif name in BLANKS:
            setattr(entry, name, BLANKS[name])


def _has(body: Any, name: str, version: int) -> bool:
    field = body._struct.fields.get(name)
    return field is not None and bool(field.for_version_q(version))
