"""A connection yields the responses that were sent, for any fragmentation by the network."""

from __future__ import annotations

import contextlib
import socket

import kafka.errors
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.parser import KafkaProtocol
from mirrorlake.protocol.network.event_loop import EventLoop
from mirrorlake.protocol.network.frames import LEAST_ROOM_BYTES, Frames, Manager
from mirrorlake.protocol.network.response_error import may_pass


def asked(count: int) -> KafkaProtocol:
    parser = KafkaProtocol(client_id="test")
    for _ in range(count):
        parser.send_request(ApiVersionsRequest[0]())
    return parser


def answers(count: int) -> bytes:
    data = b""
    for number in range(1, count + 1):
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=number) for key in range(7 * number)
        ]
        response = ApiVersionsResponse[0](error_code=0, api_keys=keys)
        response.with_header(correlation_id=number)
        data += bytes(response.encode(header=True, framed=True))
    return data


@settings(deadline=None)
@given(st.lists(st.integers(1, 300), max_size=12))
def test_responses_are_whole_wherever_the_network_has_cut_them(sizes: list[int]) -> None:
    data, parser = answers(5), asked(5)
    expected = KafkaProtocol.receive_bytes(asked(5), data)
    frames, found, at = Frames(parser, 1 << 20), [], 0
    for size in [*sizes, len(data)]:
        found += frames.receive(memoryview(data)[at : at + size])
        at += size
    assert [(number, response.api_keys) for number, response in found] == [
        (number, response.api_keys) for number, response in expected
    ]
    assert len(found) == 5


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", (2_000).to_bytes(4, "big")])
def test_a_length_that_cannot_be_is_refused(length: bytes) -> None:
    with pytest.raises(kafka.errors.InvalidReceiveError):
        Frames(asked(1), 1_000).receive(memoryview(length + b"x"))


def test_a_response_that_is_damaged_ends_its_connection_and_is_asked_for_again() -> None:
    for damaged in (b"\0", (1).to_bytes(4, "big") + b"\0\0\x7f\xff\xff\xff"):
        with pytest.raises(kafka.errors.KafkaProtocolError) as found:
            Frames(asked(1), 1_000).receive(memoryview(len(damaged).to_bytes(4, "big") + damaged))
        assert may_pass(found.value)
    assert may_pass(kafka.errors.InvalidReceiveError("Invalid frame length: -1"))


class Transport:
    def __init__(self, sock: socket.socket | None) -> None:
        self._sock = sock


def test_a_bootstrap_server_that_failed_is_not_asked_again_before_all_the_others() -> None:
    with contextlib.closing(EventLoop()) as net:
        manager = Manager(net, bootstrap_servers=["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"])

        def offered() -> list[int]:
            return sorted(server.port for server in manager.cluster.bootstrap_brokers())

        first, second, third = manager.cluster.bootstrap_brokers()
        assert offered() == [1, 2, 3]
        manager.update_backoff(second.node_id)
        assert offered() == sorted({1, 2, 3} - {second.port})
        manager.update_backoff(first.node_id)
        assert offered() == [third.port]
        manager.update_backoff(third.node_id)
        assert offered() == [1, 2, 3]
        manager.close()


def test_what_a_socket_has_comes_in_one_piece_and_its_end_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    buffer, frames = memoryview(bytearray(4 * LEAST_ROOM_BYTES)), Frames(asked(0), 1 << 20)
    assert frames.receive_from(Transport(ours), buffer) == (b"", None)
    theirs.sendall(b"a" * 70_000)
    data, error = frames.receive_from(Transport(ours), buffer)
    assert (bytes(data), error) == (b"a" * 70_000, None)
    theirs.sendall(b"the end")
    theirs.close()
    data, error = frames.receive_from(Transport(ours), buffer)
    assert (bytes(data), error) == (b"the end", None), "what came before the end is not lost"
    data, error = frames.receive_from(Transport(ours), buffer)
    assert not data
    assert isinstance(error, kafka.errors.KafkaConnectionError)
    ours.close()
    assert isinstance(frames.receive_from(Transport(None), buffer)[1], kafka.errors.KafkaConnectionError)


@settings(deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=12))
def test_the_bulk_of_a_frame_goes_right_into_its_place_and_what_follows_is_not_lost(sizes: list[int]) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    data, frames, buffer = answers(6), Frames(asked(6), 1 << 20), memoryview(bytearray(LEAST_ROOM_BYTES + 100))
    found, at = [], 0
    for size in [*sizes, len(data)]:
        theirs.sendall(data[at : at + size])
        at += size
        received, error = frames.receive_from(Transport(ours), buffer)
        assert error is None
        found += frames.receive(received)
    ours.close()
    theirs.close()
    assert [number for number, _ in found] == [1, 2, 3, 4, 5, 6]
    assert [len(response.api_keys) for _, response in found] == [7 * number for number in range(1, 7)]


def test_a_response_that_is_complete_when_the_connection_ends_is_delivered() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    data, frames, buffer = answers(3), Frames(asked(3), 1 << 20), memoryview(bytearray(LEAST_ROOM_BYTES + 10))
    found, error, at = [], None, len(data) - 5
    theirs.sendall(data[:at])
    received, _ = frames.receive_from(Transport(ours), buffer)
    found += frames.receive(received)
    theirs.sendall(data[at:])
    theirs.close()
    while error is None:
        received, error = frames.receive_from(Transport(ours), buffer)
        found += frames.receive(received)
    ours.close()
    assert [number for number, _ in found] == [1, 2, 3]
