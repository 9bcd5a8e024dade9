"""A Produce request in pieces is, byte for byte, the one that kafka-python makes, and is sent without a copy."""

from __future__ import annotations

import random
import socket
from collections import deque
from typing import Any

import pytest
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.producer import ProduceRequest
from mirrorlake.partition_key import PartitionKey
from mirrorlake.protocol.batches.produce_request import COPIED_BYTES, ProduceInPieces
from mirrorlake.protocol.batches.record_batch import Sealed
from mirrorlake.protocol.network import frames
from mirrorlake.protocol.network.frames import VIEWED_BYTES, Frame, pieces_to_send, send_pieces

SIZES = (1, COPIED_BYTES - 1, COPIED_BYTES, 200_000)


def request(version: int, topics: list[Any]) -> Any:
    return ProduceRequest[version](transactional_id="flöw", acks=-1, timeout_ms=5_000, topic_data=topics)


def theirs(version: int, batches: dict[PartitionKey, bytes | Sealed]) -> Any:
    topic = ProduceRequest.TopicProduceData
    data = topic.PartitionProduceData
    return request(
        version,
        [
            topic(
                name=name,
                partition_data=[
                    data(index=index, records=bytes(batch)) for (of, index), batch in batches.items() if of == name
                ],
            )
            for name in dict.fromkeys(name for name, _ in batches)
        ],
    )


@pytest.mark.parametrize("version", [9, 11, 12])
def test_a_request_in_pieces_is_the_one_of_kafka_python(version: int) -> None:
    dice = random.Random(version)
    batches: dict[PartitionKey, bytes | Sealed] = {}
    for number in range(300):
        content = dice.randbytes(dice.choice(SIZES))
        key = (dice.choice(("a.t", "ä.ü", "x" * 200)), number)
        batches[key] = content if number % 3 else Sealed(bytearray(dice.randbytes(61)), memoryview(content))
    parsers = [KafkaProtocol(client_id="test") for _ in range(2)]
    parsers[0].send_request(ProduceInPieces(request(version, []), batches))
    parsers[0].send_request(theirs(version, batches))
    for _ in range(2):
        parsers[1].send_request(theirs(version, batches))
    pieces = pieces_to_send(parsers[0])
    assert b"".join(pieces) == b"".join(bytes(data) for data in parsers[1].bytes_to_send)
    assert not parsers[0].bytes_to_send
    large = [batch.records for batch in batches.values() if isinstance(batch, Sealed) and len(batch) > 2 * COPIED_BYTES]
    assert large
    assert {id(batch.obj) for batch in large} <= {id(piece.obj) for piece in pieces}, "records are not copied"


class Transport:
    def __init__(self, sock: socket.socket | None, pieces: list[memoryview]) -> None:
        self._sock, self._write_buffer = sock, deque(pieces)


def test_pieces_are_sent_in_order_as_far_as_the_socket_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "PIECES_AT_ONCE", 7)
    dice, (ours, theirs_) = random.Random(1), socket.socketpair()
    ours.setblocking(False)
    wanted = [dice.randbytes(dice.choice((0, 1, 3, 90_000))) for _ in range(60)]
    transport, received, counts = Transport(ours, [memoryview(piece) for piece in wanted]), b"", []
    while transport._write_buffer:
        count, error = send_pieces(transport)
        assert error is None
        counts.append(count)
        while len(received) < sum(counts):
            received += theirs_.recv(1 << 20)
    assert received == b"".join(wanted)
    assert len(counts) > 1, "the socket was full"
    ours.close()
    theirs_.close()
    for sock in (ours, None):
        _, error = send_pieces(Transport(sock, [memoryview(b"more")]))
        assert error is not None


@pytest.mark.parametrize("version", [12, 13])
def test_many_records_of_a_response_are_a_view_of_it_and_few_are_a_copy(version: int) -> None:
    topic = FetchResponse.FetchableTopicResponse
    many, few = bytes(VIEWED_BYTES), bytes(100)
    partitions = [
        topic.PartitionData(
            partition_index=index,
            error_code=0,
            high_watermark=1,
            last_stable_offset=1,
            log_start_offset=0,
            aborted_transactions=[],
            preferred_read_replica=-1,
            records=records,
        )
        for index, records in enumerate((many, few))
    ]
    answer = FetchResponse[version](
        throttle_time_ms=0, error_code=0, session_id=0, responses=[topic(topic="t", partitions=partitions)]
    )
    data = bytes(answer.encode())
    frame = Frame(len(data))
    frame.fill(memoryview(data))
    frame.seek(0)
    found = [one.records for one in FetchResponse[version].decode(frame).responses[0].partitions]
    assert [bytes(one) for one in found] == [many, few]
    assert [type(one) for one in found] == [memoryview, bytes]
    by_kafka_python = FetchResponse[version].decode(data).responses[0].partitions
    assert [type(one.records) for one in by_kafka_python] == [bytes, bytes]
