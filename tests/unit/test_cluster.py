"""A cluster as one process sees it: metadata, the line to it, and states that are read in one round trip."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError, KafkaError
from kafka.future import Future
from kafka.net import inet
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from mirrorlake.config.connection import Connection
from mirrorlake.errors import SourceError, TargetError
from mirrorlake.model.changes import as_written
from mirrorlake.model.run import Run
from mirrorlake.model.slot import Position, SlotState
from mirrorlake.protocol.batches.messages import encode_message
from mirrorlake.protocol.cluster import EARLIEST_TIMESTAMP, Cluster
from mirrorlake.protocol.error_codes import ErrorCode
from mirrorlake.protocol.group_offsets import commit_group_offsets, group_offsets
from mirrorlake.protocol.network import frames, network_client, socket_options
from mirrorlake.protocol.network.response_error import ResponseError
from mirrorlake.protocol.requests.fetch import Fetched, fetch_request
from mirrorlake.protocol.requests.metadata import Topic
from mirrorlake.protocol.transaction import Producer
from mirrorlake.state.offset_syncs import (
    TOPIC_CONFIG,
    UNASKED_BYTES,
    encode,
    foreign_records,
    read_states_and_ends,
    topic_config,
)


def topic(leaders: dict[int, int], epochs: dict[int, int], topic_id: str = "x") -> Topic:
    return Topic("t", topic_id, leaders, None, epochs)


def test_metadata_of_a_broker_that_is_behind_take_no_leader_back() -> None:
    known, late = topic({0: 1, 1: 2}, {0: 5, 1: 3}), topic({0: 3, 1: 1, 2: 1}, {0: 4, 1: 4, 2: 0})
    assert late.not_older_than(known) == topic({0: 1, 1: 1, 2: 1}, {0: 5, 1: 4, 2: 0})


def test_a_topic_that_was_created_anew_begins_with_its_own_epochs() -> None:
    known, new = topic({0: 1}, {0: 5}), topic({0: 2}, {0: 0}, "y")
    assert new.not_older_than(known) == new


def test_a_majority_of_replicas_acknowledges_a_state() -> None:
    found = {factor: topic_config(factor).get("min.insync.replicas") for factor in (-1, 1, 2, 3, 4, 5)}
    assert found == {-1: None, 1: "1", 2: "1", 3: "2", 4: "3", 5: "3"}
    assert topic_config(3).items() > TOPIC_CONFIG.items()


def test_a_group_id_is_one_line_of_what_a_request_is_called() -> None:
    """Errors keep line ends, so a name with some would look like lines of its own."""
    called: list[str] = []

    class Silent:
        def call(self, what: str, *_: object) -> dict[str, object]:
            called.append(what)
            return {}

    group_offsets(Silent(), ["a\nERROR b"], 1)  # type: ignore[arg-type]
    commit_group_offsets(Silent(), {"a\nERROR b": {}}, 1)  # type: ignore[arg-type]
    assert [r"GROUP a\nERROR b" in what and "\n" not in what for what in called] == [True, True]


def test_there_are_as_many_connections_as_the_round_trip_asks_for_unless_their_number_is_set() -> None:
    cluster = Cluster(Connection("a", (("bootstrap.servers", "localhost:1"),)), "source", "tests")
    found = {}
    for ms in (float("inf"), 1, 19, 20, 100, 1_000):
        cluster.round_trip_s = ms / 1_000
        found[ms] = cluster.connections()
        assert (cluster.is_far, cluster.connections(3)) == (20 <= ms < float("inf"), 3)
    assert found == {float("inf"): 1, 1: 1, 19: 1, 20: 1, 100: 4, 1_000: 8}
    cluster.close()


def test_the_receive_buffer_is_set_only_where_the_system_allows_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rmem_max"
    monkeypatch.setattr(socket_options, "LARGEST_RECEIVE_BUFFER", file)

    def is_set() -> bool:
        return socket.SO_RCVBUF in {
            option for level, option, _ in socket_options.socket_options() if level == socket.SOL_SOCKET
        }

    assert not is_set(), "not Linux"
    for most, expected in (("212992\n", False), ("4194304\n", True), ("", False)):
        file.write_text(most)
        assert is_set() == expected


def test_of_coroutines_that_run_together_all_end_before_an_error_is_raised() -> None:
    cluster = Cluster(Connection("a", (("bootstrap.servers", "localhost:1"),)), "source", "tests")
    ended: list[int] = []
    most = at_once = 0

    async def one(number: int) -> int:
        nonlocal most, at_once
        at_once += 1
        most = max(most, at_once)
        await cluster.net.sleep(0.001)
        at_once -= 1
        ended.append(number)
        if number == 1:
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match="1"):
        cluster.net.run(lambda: cluster.each([lambda n=n: one(n) for n in range(7)], 3))
    assert (sorted(ended), most) == ([*range(7)], 3)
    assert cluster.net.run(lambda: cluster.together(lambda: one(5), lambda: one(2))) == [5, 2]
    cluster.close()


def test_an_address_that_leads_nowhere_does_not_keep_a_client_from_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        socket.create_connection(full.getsockname()),  # its queue has room for one, so others get no answer
        socket.create_server(("127.0.0.1", 0)) as live,
    ):
        addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", one.getsockname()) for one in (full, live)]
        monkeypatch.setattr(inet.socket, "getaddrinfo", lambda *_: addresses)
        connection = Connection("a", (("bootstrap.servers", "several:1"),))
        with pytest.raises(SourceError, match="can't be reached"):
            Cluster(connection, "source", "tests", 2_500).connect()
        live.settimeout(0)
        live.accept()[0].close()


def test_an_address_that_takes_connections_and_ends_them_is_tried_less_often_and_others_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A load balancer without a broker behind it, one of two addresses that a broker advertises."""
    tries = {"ending": 0, "live": 0}

    def close_each(listener: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()
                tries[name] += 1

    with socket.create_server(("127.0.0.1", 0)) as ending, socket.create_server(("127.0.0.1", 0)) as live:
        for name, listener in (("ending", ending), ("live", live)):
            threading.Thread(target=close_each, args=(listener, name), daemon=True).start()
        addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", one.getsockname()) for one in (ending, live)]
        monkeypatch.setattr(inet.socket, "getaddrinfo", lambda host, *_: addresses if host == "several" else [])
        cluster = Cluster(Connection("a", (("bootstrap.servers", "nowhere:1"),)), "source", "tests", 500)
        cluster._manager.cluster._brokers = {5: MetadataResponse.MetadataResponseBroker(5, "several", 1, None)}

        async def asked_for(seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                with contextlib.suppress(KafkaError):
                    await cluster.ask(MetadataRequest(), 5)
                await cluster.net.sleep(0.001)

        cluster.net.run(lambda: asked_for(1.0))
        cluster.close()
        for listener in (ending, live):
            listener.shutdown(socket.SHUT_RDWR)
    assert 1 <= tries["live"] <= tries["ending"] <= 5, "the pauses are 50, 100, 200 and 400 ms"


def test_a_tls_handshake_that_is_cut_short_is_repeated_by_a_job_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load balancer without a broker behind it takes connections, and closes them."""
    monkeypatch.setattr(network_client, "SECOND_OPINION_S", 0.5)

    def close_each() -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=close_each, daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        connection = Connection("a", (("bootstrap.servers", address), ("security.protocol", "SSL")))
        with pytest.raises(SourceError, match="can't be reached") as found:
            Cluster(connection, "source", "tests", 500).connect(again=True)
        assert found.value.retriable
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("cause", ["name", "files", "reset"])
def test_whatever_prevents_a_connection_is_an_error_of_the_connection(
    cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An advertised name that can't be one, no free file, or a reset before the handshake: others may work later."""

    def fails(*_: object, **__: object) -> None:
        raise {"files": OSError(errno.EMFILE, "too many"), "reset": ConnectionResetError("reset")}[cause]

    if cause == "files":
        monkeypatch.setattr(frames.KafkaNetSocket, "socket", fails)
    monkeypatch.setattr(frames, "TlsTransport", fails)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        connection = Connection("a", (("bootstrap.servers", f"127.0.0.1:{port}"), ("security.protocol", "SSL")))
        cluster = Cluster(connection, "source", "tests", 500)
        host = "kafka..svc" if cause == "name" else "127.0.0.1"
        cluster._manager.cluster._brokers = {5: MetadataResponse.MetadataResponseBroker(5, host, port, None)}
        with pytest.raises(KafkaConnectionError, match="unable to connect"):
            cluster.net.run(lambda: cluster.ask(MetadataRequest(), 5))
        cluster.close()


def test_the_reason_that_is_given_for_one_cluster_is_not_that_of_another_in_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bootstrap(_: object, timeout_ms: int) -> None:
        log = logging.getLogger("kafka.test")
        log.error("Connection lost: refused")
        other = threading.Thread(target=log.error, args=("Connection lost: CERTIFICATE_VERIFY_FAILED",))
        other.start()
        other.join()
        raise KafkaConnectionError("time-out")

    monkeypatch.setattr(frames.Manager, "bootstrap", bootstrap)
    cluster = Cluster(Connection("a", (("bootstrap.servers", "127.0.0.1:1"),)), "source", "tests", 500)
    with pytest.raises(SourceError, match="refused") as found:
        cluster.connect(again=True)
    assert found.value.retriable
    cluster.close()


def test_a_topic_that_was_deleted_is_asked_for_by_name() -> None:
    assert fetch_request({}, {("t", 0): 5}, 13, 1, {("t", 0): 1}, 1, 1, {}).API_VERSION == 12


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_cluster_that_never_answered_is_closed_with_all_that_was_open(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener takes connections, and neither requests nor a handshake; what is not sent yet stays unsent."""
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        before = len(os.listdir("/proc/self/fd"))
        connection = Connection("a", (("bootstrap.servers", address), ("security.protocol", protocol)))
        one = Cluster(connection, "source", "tests")
        other = Cluster(connection, "target", "tests", net=one.net)
        for cluster in (one, other):
            cluster._manager.bootstrap_async(10_000)
            for _ in range(20):
                cluster.net.poll(timeout_ms=5)
            written = 0
            for conn in cluster._manager._conns.values():
                if conn.transport is not None:  # as if the broker had answered first, and then stopped
                    conn._init_future.success(True)
                    conn.transport.write(bytes(64 << 20))
                    written += 1
            assert written == (protocol == "PLAINTEXT"), "a handshake that is not over has no transport"
        one.close()
        other.net.poll(timeout_ms=10)  # the other one still uses the loop
        assert len(os.listdir("/proc/self/fd")) > before
        other.close()
        other.close()
        assert len(os.listdir("/proc/self/fd")) == before
    del one, other, cluster
    gc.collect()
    assert not ignored


class StateLog(Cluster):
    """A target with one slot, whose states are at given offsets; the answers to Fetch requests end at `shown`."""

    def __init__(self, generations: dict[int, int], shown: list[int]) -> None:
        super().__init__(Connection("b", (("bootstrap.servers", "localhost:1"),)), "target", "tests")
        self.generations, self.shown = generations, shown

    def leader(self, _topic: str, _partition: int) -> int:
        return 1

    async def list_offsets(self, partitions: Any, at: int, isolation: int = 1) -> Any:
        return dict.fromkeys(partitions, 0 if at == EARLIEST_TIMESTAMP else max(self.generations) + 1)

    def fetch(self, _node: int, offsets: Any, *_: Any, **__: Any) -> Any:
        ((start, end),) = ((offset, self.shown.pop(0)) for offset in offsets.values())
        raw = b"".join(
            offset.to_bytes(8, "big") + bytes(encode(SlotState("a", "b", "id", 0, 1, generation, "x", 1, 0), 0))[8:]
            for offset, generation in self.generations.items()
            if start <= offset < end
        )
        return Future().success([Fetched("t", 0, 0, 0, end, [], raw)])

    def fetched(self, response: Any) -> Any:
        return iter(response)


@pytest.mark.parametrize(("early", "fetches"), [(15, 1), (13, 2)], ids=["same_end", "leader_is_behind"])
def test_a_state_counts_only_if_the_leader_names_the_same_end_in_both_answers(early: int, fetches: int) -> None:
    target = StateLog({8: 1, 12: 2, 14: 3}, [15, early, 15])
    states, ends = read_states_and_ends(target, "t", [0], 1_000)
    assert (states[0].generation, ends, len(target.shown)) == (3, {0: 15}, 2)
    states, ends = read_states_and_ends(target, "t", [0], 1_000)
    assert (states[0].generation, ends, len(target.shown)) == (3, {0: 15}, 2 - fetches)
    target.close()


class ChangesLog(Cluster):
    """A target with one slot, whose states are at even offsets; it notes from where on they are fetched."""

    def __init__(self, records: list[bytes]) -> None:
        super().__init__(Connection("b", (("bootstrap.servers", "localhost:1"),)), "target", "tests")
        self.records, self.starts = records, list[int]()
        self.topics, self.first = {"t": topic({0: 1}, {0: 5})}, 0

    async def list_offsets(self, partitions: Any, at: int, isolation: int = 1) -> Any:
        return dict.fromkeys(partitions, self.first if at == EARLIEST_TIMESTAMP else 2 * len(self.records) - 1)

    def fetch(self, _node: int, offsets: Any, *_: Any, **__: Any) -> Any:
        (start,) = offsets.values()
        self.starts.append(start)
        assert start >= self.first, "the offset is out of range"
        raw = b"".join(record for at, record in enumerate(self.records) if 2 * at >= start)
        return Future().success([Fetched("t", 0, 0, 0, 2 * len(self.records) - 1, [], raw)])

    def fetched(self, response: Any) -> Any:
        return iter(response)


def test_changes_are_read_once_and_again_from_their_snapshot_on_after_an_election(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, positions = ChangesLog([]), (Position("t", 0, "id", "b.t", 0, 0, 0, 0),)

    def write(upstream_next: int, epoch: int) -> None:
        """Appends a state, as a task does that has read the one before."""
        before = read_states_and_ends(target, "t", [0], 1_000)[0].get(0)
        downstream_end = upstream_next + 4
        offsets = upstream_next - 1, upstream_next, downstream_end - 1, downstream_end
        run = Run("t", 0, "b.t", 0, *offsets, records=1, bytes=9, first_timestamp=0, last_timestamp=0, digest=1)
        moved = replace(positions[0], upstream_next=upstream_next, downstream_next=downstream_end)
        state = SlotState("a", "b", "id", 0, 1, 1, "x", 1, epoch, positions, created_ms=0)
        state = replace(state, positions=(moved,), runs=(run,)) if before else state
        record = encode(as_written(before, state) if before else state, 0)
        target.records.append((2 * len(target.records)).to_bytes(8, "big") + bytes(record)[8:])

    for number in range(12):
        write(number, number)
    del target.starts[:]
    decode, decoded = SlotState.from_json, list[bytes]()
    monkeypatch.setattr(SlotState, "from_json", lambda value: decoded.append(value) or decode(value))  # type: ignore[func-returns-value]
    (state,) = read_states_and_ends(target, "t", [0], 1_000)[0].values()
    assert len(decoded) == 1, "what was read before is not decoded again"
    assert (state.number, state.snapshot, state.positions[0].upstream_next, target.starts) == (11, 0, 11, [13])
    assert read_states_and_ends(target, "t", [0], 1_000)[0][0] is state, "nothing has changed"
    del target.starts[:]
    target.topics = {"t": topic({0: 1}, {0: 6})}  # the log may have lost its end, and may have the same one again
    again = read_states_and_ends(target, "t", [0], 1_000)[0][0]
    assert (again, target.starts) == (state, [15, 0])
    target.first = 4
    target.states_seen.clear()
    with pytest.raises(TargetError, match=r"t-0: .* snapshot at offset 0, which is missing. Records .* were deleted"):
        read_states_and_ends(target, "t", [0], 1_000)
    target.first = 0
    del target.records[6], target.starts[:]
    target.states_seen.clear()
    with pytest.raises(TargetError, match="t-0: the state at offset 14 is number 7 behind the snapshot at offset 0"):
        read_states_and_ends(target, "t", [0], 1_000)
    target.close()


def test_a_large_snapshot_near_the_end_is_not_fetched_again_and_again() -> None:
    positions = tuple(Position(f"topic-{number}", 0, "id", f"b.topic-{number}", 0, 0, 0, 0) for number in range(3_000))
    first = SlotState("a", "b", "id", 0, 1, 1, "x", 1, 0, positions)
    changes = as_written(replace(first, snapshot=0), replace(first, producer_epoch=1))
    records = [at.to_bytes(8, "big") + encode(state, 0)[8:] for at, state in ((0, first), (2, changes))]
    assert len(first.to_json()) > UNASKED_BYTES
    target = ChangesLog(records)
    assert read_states_and_ends(target, "t", [0], 1_000)[0][0].number == 1
    del target.starts[:]
    assert read_states_and_ends(target, "t", [0], 1_000)[0][0].positions == positions
    assert not target.starts
    assert foreign_records(target, "t", [0], 1_000) == {}
    stray = encode_message(Producer("id", 1, 0), 0, timestamp=0, key=b"other", value=b"{}")
    for at in range(4, 24, 2):  # more than are looked at first
        target.records.append(at.to_bytes(8, "big") + bytes(stray)[8:])
        assert read_states_and_ends(target, "t", [0], 1_000)[0][0].positions == positions, "it is no state"
    assert foreign_records(target, "t", [0], 1_000) == {0: 22}
    target.close()


def test_offsets_that_this_principal_may_not_see_any_more_are_an_error_of_their_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(Connection("a", (("bootstrap.servers", "127.0.0.1:1"),)), "source", "tests", 500)
    denied = ResponseError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t-0")

    async def listed(*_: Any, **__: Any) -> tuple[dict[Any, Any], dict[Any, Exception]]:
        return {}, {("t", 0): denied}

    monkeypatch.setattr(cluster, "_list_each", listed)
    with contextlib.closing(cluster), pytest.raises(SourceError, match=r"cluster a: listing offsets .*lacks a permiss"):
        cluster.high_watermarks([("t", 0)])


class Revoked(Cluster):
    """A cluster with two topics, whose principal may not describe the first one any more."""

    def max_version(self, *_: Any) -> int:
        return 12

    async def send_any(self, request: Any, timeout_ms: int | None = None) -> Any:
        here = SimpleNamespace(partition_index=0, leader_id=2, leader_epoch=6)
        found = {
            "hidden": {"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic_id": None, "partitions": []},
            "seen": {"error_code": 0, "topic_id": "x", "partitions": [here]},
        }
        topics = [SimpleNamespace(name=one.name, **found[one.name], authorized_operations=()) for one in request.topics]
        return SimpleNamespace(topics=topics, cluster_id="c", brokers=[2])


def test_a_topic_that_may_not_be_described_any_more_does_not_keep_the_leaders_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Revoked(Connection("a", (("bootstrap.servers", "localhost:1"),)), "source", "tests")
    monkeypatch.setattr(cluster._manager.cluster, "update_metadata", lambda _: None)
    cluster.topics = {name: topic({0: 1}, {0: 5}) for name in ("hidden", "seen")}
    asked = []

    async def attempt() -> int:
        asked.append(cluster.leader("seen", 0))
        if asked[-1] == 1:
            raise ResponseError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return asked[-1]

    assert cluster.call("asking", attempt, 1_000) == 2
    assert asked == [1, 2]
    cluster.close()


def test_the_offsets_of_a_wide_group_are_committed_in_portions_that_a_coordinator_takes() -> None:
    """A broker refuses 300 positions with metadata of 4,000 bytes at once, as their batch is above 1 MiB."""
    wide = {("t", index): (index, "é" * 2_000) for index in range(300)} | {("u", 0): (7, "x" * (1 << 20))}
    sent = list[dict[Any, Any]]()

    class Coordinator:
        max_version = staticmethod(lambda *_: 4)
        is_silent = staticmethod(lambda _: False)

        async def send_any(self, request: Any) -> Any:
            of_all = [SimpleNamespace(error_code=0, key=key, node_id=1) for key in request.coordinator_keys]
            return SimpleNamespace(coordinators=of_all)

        def send(self, request: Any, node: int) -> Any:
            sent.append(
                {
                    (topic.name, one.partition_index): (one.committed_offset, one.committed_metadata)
                    for topic in request.topics
                    for one in topic.partitions
                }
            )
            return Future().success(SimpleNamespace(topics=[]))

        async def answer(self, future: Any, _: int) -> Any:
            return await future

        def call(self, what: str, make: Any, timeout_ms: int) -> Any:
            return asyncio.run(make())

    commit_group_offsets(Coordinator(), {"g": wide, "small": {("t", 0): (1, "")}}, 1)  # type: ignore[arg-type]
    *portions, small = sent
    assert {key: place for portion in portions for key, place in portion.items()} == wide
    assert sum(map(len, portions)) == len(wide)
    assert small == {("t", 0): (1, "")}
    sizes = [sum(len(metadata.encode()) for _, metadata in portion.values()) for portion in portions[:-1]]
    assert 3 < len(sizes) < 9
    assert max(sizes) < 256 << 10


def test_the_reason_of_a_failed_contact_is_not_hidden_by_a_last_attempt_that_had_no_time() -> None:
    causes = network_client._Causes()
    for message in (
        "Connection lost: answered 500",
        "Connection lost: KafkaTimeoutError: Timeout during ApiVersions check",
    ):
        causes.emit(logging.LogRecord("kafka", logging.ERROR, "", 0, message, (), None))
    assert causes.reasons == ["answered 500"]
    causes.messages.pop(0)
    assert causes.reasons == ["KafkaTimeoutError: Timeout during ApiVersions check"]
