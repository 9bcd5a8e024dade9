"""The faults of single requests that the proxy makes, as a client of a real broker meets them."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.producer import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)
from mirrorlake.config.connection import Connection
from mirrorlake.errors import TargetError
from mirrorlake.jobs.mirror.topics import topology
from mirrorlake.local.cluster import LocalCluster, running
from mirrorlake.local.proxy.control import NetworkLine, Proxy, proxied
from mirrorlake.local.proxy.faults import Fault, Rule
from mirrorlake.protocol import admin, transaction
from mirrorlake.protocol.batches.record_batch import read_log
from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.group_offsets import commit_group_offsets, group_offsets
from mirrorlake.protocol.group_requests import (
    delete_group,
    idle_groups,
    list_groups,
)
from mirrorlake.protocol.log_reader import read_stretch
from mirrorlake.protocol.network.response_error import ResponseError

from tests.world import World, config_of, eventually, set_config

COORDINATOR_AWAY = 15
NOT_LEADER, NOT_COORDINATOR, NOT_CONTROLLER = 6, 16, 41
LIES = [Fault.CORRUPTED, Fault.CUT_OFF, Fault.LYING_LENGTH, Fault.MISPLACED]


@pytest.fixture(scope="module")
def cluster(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster("requests", tmp_path_factory.mktemp("requests"), root / ".local/jars/kafka", proxied=True)
    with running(made):
        client = AdminClient({"bootstrap.servers": made.bootstrap_servers})
        client.create_topics([NewTopic("t", 1, 1)])["t"].result()
        producer = Producer({"bootstrap.servers": made.bootstrap_servers, "log_level": 0})
        for number in range(50):
            producer.produce("t", str(number) * 20, partition=0)
        assert producer.flush(30) == 0
        yield made


@pytest.fixture(scope="module")
def proxy(cluster: LocalCluster) -> Iterator[Proxy]:
    with proxied(cluster, knows_requests=True) as made:
        yield made


class Client:
    """One connection through the proxy."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._socket = socket.create_connection(("127.0.0.1", cluster.brokers[0].proxy_port))
        self._socket.settimeout(10)
        self._number = 0

    def send(self, request: Any) -> None:
        self._number += 1
        request.with_header(correlation_id=self._number, client_id="tests")
        self._socket.sendall(request.encode(header=True, framed=True))

    def receive(self, response: Any) -> Any:
        """Receives one answer, which must be that of the last request."""
        size = self._socket.recv(4, socket.MSG_WAITALL)
        if len(size) < 4:
            raise ConnectionResetError
        payload = self._socket.recv(struct.unpack(">i", size)[0], socket.MSG_WAITALL)
        answer = response.decode(payload, header=True)
        assert answer.header.correlation_id == self._number
        return answer

    def ask(self, request: Any, response: Any) -> Any:
        self.send(request)
        return self.receive(response)

    def assert_silent(self) -> None:
        self._socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            self._socket.recv(1)

    def assert_cut(self, within: int = 0) -> None:
        """Asserts that the connection is closed, after some bytes at most."""
        got = 0
        with contextlib.suppress(ConnectionResetError):
            while piece := self._socket.recv(1 << 16):
                got += len(piece)
        assert (got > 0) == (within > 0), got


@pytest.fixture
def client(cluster: LocalCluster, proxy: Proxy) -> Client:
    proxy.faults()
    return Client(cluster)


def end_offsets() -> Any:
    topic = ListOffsetsRequest.ListOffsetsTopic
    partition = topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    topics = [topic(name="t", partitions=[partition])]
    return ListOffsetsRequest[5](replica_id=-1, isolation_level=0, topics=topics)


def fetch() -> Any:
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=0,
        log_start_offset=-1,
        partition_max_bytes=1 << 20,
        last_fetched_epoch=-1,
    )
    return FetchRequest[12](
        replica_id=-1,
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic="t", partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
    )


def begin(client: Client, name: str) -> Any:
    request = InitProducerIdRequest[5](
        transactional_id=name, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    answers = []

    def attempt() -> bool:
        answers.append(client.ask(request, InitProducerIdResponse[5]))
        return answers[-1].error_code == 0

    eventually(attempt, what="a producer id")
    return answers[-1]


def produce(cluster: LocalCluster, name: str, producer: Any) -> Any:
    """Makes the request that writes one batch in a transaction."""
    fetched = Client(cluster).ask(fetch(), FetchResponse[12]).responses[0].partitions[0].records
    batch = next(iter(read_log(fetched)))
    sealed = batch.sealed(producer.producer_id, producer.producer_epoch, 0)
    topic = ProduceRequest.TopicProduceData
    data = topic.PartitionProduceData(index=0, records=bytes(sealed))
    topics = [topic(name="t", partition_data=[data])]
    return ProduceRequest[12](transactional_id=name, acks=-1, timeout_ms=5_000, topic_data=topics)


def end(name: str, producer: Any, *, committed: bool) -> Any:
    return EndTxnRequest[5](
        transactional_id=name,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=committed,
    )


def made(proxy: Proxy) -> list[tuple[str, Fault]]:
    _, faults = proxy.faults()
    return [*faults]


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (Fault.LOST, Client.assert_silent),
        (Fault.HALF_OPEN, Client.assert_silent),
        (Fault.CUT_BEFORE, Client.assert_cut),
        (Fault.CUT_WITHIN, Client.assert_cut),
        (Fault.CUT_AFTER, Client.assert_cut),
        (Fault.CUT_WITHIN_ANSWER, lambda client: client.assert_cut(within=1)),
    ],
)
def test_a_request_without_a_whole_answer_ends_its_connection_and_no_other(
    client: Client, cluster: LocalCluster, proxy: Proxy, fault: Fault, seen: Callable[[Client], None]
) -> None:
    proxy.arm([Rule("ListOffsets", fault, skip=1)])
    assert client.ask(end_offsets(), ListOffsetsResponse[5]).topics[0].partitions[0].offset >= 50
    client.send(end_offsets())
    seen(client)
    assert Client(cluster).ask(end_offsets(), ListOffsetsResponse[5]).topics[0].partitions[0].offset >= 50
    assert made(proxy) == [("ListOffsets", fault)]


def test_answers_say_errors_and_pauses_in_the_order_of_the_requests(client: Client, proxy: Proxy) -> None:
    proxy.arm(
        [
            Rule("ListOffsets", Fault.REFUSED, code=NOT_LEADER),
            Rule("ListOffsets", Fault.THROTTLED, skip=1, delay_ms=700),
            Rule("ListOffsets", Fault.DELAYED, skip=2, delay_ms=50),
        ]
    )
    refused, paused, plain = (client.ask(end_offsets(), ListOffsetsResponse[5]) for _ in range(3))
    assert (refused.topics[0].partitions[0].error_code, refused.topics[0].partitions[0].offset) == (NOT_LEADER, -1)
    assert (paused.throttle_time_ms, plain.throttle_time_ms) == (700, 0)
    assert paused.topics[0].partitions[0].offset == plain.topics[0].partitions[0].offset >= 50
    assert len(made(proxy)) == 3


@pytest.mark.parametrize("fault", LIES)
def test_fetched_records_lie(client: Client, proxy: Proxy, fault: Fault) -> None:
    proxy.arm([Rule("Fetch", fault, pick=7)])
    lie, truth = (client.ask(fetch(), FetchResponse[12]).responses[0].partitions[0].records for _ in range(2))
    assert bytes(lie) != bytes(truth)
    assert made(proxy) == [("Fetch", fault)]


def test_what_is_refused_was_not_applied_and_what_is_misreported_was(
    client: Client, cluster: LocalCluster, proxy: Proxy
) -> None:
    producer = begin(client, "refusals")
    writing = produce(cluster, "refusals", producer)
    proxy.arm(
        [
            Rule("Produce", Fault.REFUSED, code=NOT_LEADER),
            Rule("EndTxn", Fault.REFUSED, code=NOT_COORDINATOR),
            Rule("EndTxn", Fault.MISREPORTED, skip=1, code=NOT_COORDINATOR),
        ]
    )
    refused, written = (client.ask(writing, ProduceResponse[12]).responses[0].partition_responses[0] for _ in range(2))
    assert (refused.error_code, refused.base_offset, written.error_code) == (NOT_LEADER, -1, 0)
    ending = end("refusals", producer, committed=True)
    refused, misreported = (client.ask(ending, EndTxnResponse[5]) for _ in range(2))
    assert refused.error_code == misreported.error_code == NOT_COORDINATOR
    eventually(lambda: client.ask(ending, EndTxnResponse[5]).error_code == 0, what="that it is committed already")
    assert client.ask(end("refusals", producer, committed=False), EndTxnResponse[5]).error_code != 0
    assert len(made(proxy)) == 3


def test_an_end_of_a_transaction_that_arrives_late_or_twice_ends_no_later_one(
    client: Client, cluster: LocalCluster, proxy: Proxy
) -> None:
    for fault in (Fault.LATE, Fault.DOUBLED):
        connection, name = Client(cluster), f"again-{fault}"
        producer = begin(connection, name)
        assert connection.ask(produce(cluster, name, producer), ProduceResponse[12])
        proxy.arm([Rule("EndTxn", fault, delay_ms=1_500)])
        connection.send(end(name, producer, committed=True))
        if fault is Fault.DOUBLED:
            assert connection.receive(EndTxnResponse[5]).error_code == 0
        later = Client(cluster)
        newer = begin(later, name)
        written = later.ask(produce(cluster, name, newer), ProduceResponse[12])
        assert written.responses[0].partition_responses[0].error_code == 0
        eventually(lambda: not proxy.traffic().late_requests, what="the late request")
        assert later.ask(end(name, newer, committed=True), EndTxnResponse[5]).error_code == 0
        assert made(proxy) == [("EndTxn", fault)]


@pytest.fixture
def world(cluster: LocalCluster, tmp_path: Path) -> World:
    """A flow from the cluster to itself; source and target are behind the proxy."""
    made = World(cluster.proxied_servers, cluster.proxied_servers, tmp_path)
    made.write_config(**{"mirrorlake.same.cluster.allowed": "true", "mirrorlake.on.loss": "continue"})
    return made


@pytest.mark.parametrize("fault", LIES)
def test_records_that_a_line_has_damaged_are_fetched_again_and_are_no_loss(
    world: World, proxy: Proxy, fault: Fault
) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 500, 1)
    at: list[str] = []

    def damage(step: str) -> None:
        if step in ("task.initialised", "task.compared") and step not in at:  # the state's Fetch, then the data's
            at.append(step)
            proxy.arm([Rule("Fetch", fault, pick=4321 + skip, skip=skip) for skip in range(1 + len(at))])

    proxy.faults()
    assert world.disturbed_job(damage, parallelism=1).run(None).records == 500
    assert [(api, fault) for api, fault in made(proxy) if api == "Fetch"] == [("Fetch", fault)]
    world.assert_equal(topic)
    assert not world.gaps(topic)


def test_a_checkpoint_job_waits_for_clusters_that_are_out_of_reach_for_longer_than_it_takes_to_connect(
    world: World, proxy: Proxy
) -> None:
    # An administrative request that is lost takes 30 s by itself.
    world.write_config(**{"mirrorlake.connect.timeout.ms": "1500", "mirrorlake.retry.timeout.ms": "150000"})
    topic = world.topic(partitions=1)
    world.produce(topic, 100, 1)
    world.mirror()
    group = world.commit("g", {(topic, 0): 40})
    try:
        with world.checkpointing():
            eventually(lambda: world.committed(group).get((world.remote(topic), 0), (0, ""))[0] == 40)
            proxy.line(NetworkLine(is_open=False))
            proxy.cut()
            eventually(lambda: sum("retrying" in line for line in world.lines) > 1, what="a second retry")
            proxy.line(NetworkLine())
            world.commit("g", {(topic, 0): 70})
            eventually(lambda: world.committed(group)[world.remote(topic), 0][0] == 70)
    finally:
        proxy.line(NetworkLine())


def test_a_lost_answer_to_an_administrative_request_costs_one_attempt(
    cluster: LocalCluster, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "SOCKET_TIMEOUT_MS", 2_000)
    target = admin.Admin(Connection("t", (("bootstrap.servers", cluster.proxied_servers),)), "target", "tests")
    assert "t" in target.configs(["t"])
    proxy.arm([Rule("DescribeConfigs", Fault.LOST), Rule("DescribeConfigs", Fault.HALF_OPEN, skip=1)])
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(TargetError, match="_TIMED_OUT") as error:
            target.configs(["t"])
        assert error.value.retriable
    assert time.monotonic() - began < admin.REQUEST_TIMEOUT_S, "a request was waited for until its own end"
    assert "t" in target.configs(["t"])
    proxy.faults()


def test_a_lost_answer_to_an_administrative_request_leaves_a_job_time_to_start(
    cluster: LocalCluster, proxy: Proxy
) -> None:
    connection = Connection("t", (("bootstrap.servers", cluster.proxied_servers),))
    target = admin.Admin(connection, "target", "tests", start_timeout_ms=6_000)
    assert "t" in target.configs(["t"])
    proxy.arm([Rule("DescribeConfigs", Fault.HALF_OPEN)])
    began = time.monotonic()
    with pytest.raises(TargetError, match="_TIMED_OUT"):
        target.configs(["t"])
    assert "t" in target.configs(["t"])
    assert time.monotonic() - began < 6
    proxy.faults()


@pytest.mark.parametrize(
    "fault",
    [Fault.REFUSED, Fault.CUT_BEFORE, Fault.CUT_WITHIN, Fault.CUT_AFTER, Fault.CUT_WITHIN_ANSWER],
    ids=str,
)
def test_a_coordinator_that_is_none_any_more_or_is_cut_off_is_looked_up_again(
    cluster: LocalCluster, proxy: Proxy, fault: Fault
) -> None:
    connection = Connection("t", (("bootstrap.servers", cluster.proxied_servers),))
    with closing(Cluster(connection, "target", "tests").connect()) as target:
        assert idle_groups(target, ["moved"], 10_000) == {"moved": True}
        proxy.faults()
        proxy.arm([Rule("DescribeGroups", fault, code=NOT_COORDINATOR)])
        assert idle_groups(target, ["moved"], 10_000) == {"moved": True}
        sent, made_now = proxy.faults()
        assert made_now["DescribeGroups", fault] == 1
        assert (sent["DescribeGroups"], sent["FindCoordinator"]) == (2, 2)


def test_groups_are_deleted_where_they_are_and_members_keep_them(cluster: LocalCluster) -> None:
    servers, timeout_ms = cluster.bootstrap_servers, 10_000
    with closing(Cluster(Connection("t", (("bootstrap.servers", servers),)), "target", "tests").connect()) as target:
        commit_group_offsets(target, {"left": {("t", 0): (7, "")}}, timeout_ms)
        assert group_offsets(target, ["left"], timeout_ms)["left"]
        delete_group(target, "left", timeout_ms)
        assert "left" not in list_groups(target, timeout_ms)
        delete_group(target, "left", timeout_ms)
        for protocol in ("classic", "consumer"):
            member = Consumer(
                {"bootstrap.servers": servers, "group.id": protocol, "group.protocol": protocol, "log_level": 0}
            )
            with closing(member):
                member.subscribe(["t"])
                eventually(lambda one=member: one.poll(0.1) is None and one.assignment(), what="the assignment")
                assert idle_groups(target, [protocol, "none"], timeout_ms) == {protocol: False, "none": True}
                with pytest.raises(TargetError, match="NonEmptyGroup"):
                    delete_group(target, protocol, timeout_ms)
            eventually(lambda name=protocol: idle_groups(target, [name], timeout_ms)[name], what="the member's end")


def test_partitions_that_another_job_has_added_are_no_final_error(cluster: LocalCluster) -> None:
    target = admin.Admin(Connection("t", (("bootstrap.servers", cluster.bootstrap_servers),)), "target", "tests")
    refused = target.grow({"t": 1})["t"]
    assert refused.retriable, refused.message


def test_a_first_contact_repeats_requests_that_get_no_answer(cluster: LocalCluster, proxy: Proxy) -> None:
    connection = Connection("t", (("bootstrap.servers", cluster.proxied_servers),))
    proxy.faults()
    proxy.arm(
        [
            Rule("ApiVersions", Fault.LOST),  # of the first connection
            Rule("Metadata", Fault.HALF_OPEN),  # over the next one
            Rule("Metadata", Fault.LOST, skip=2),  # of the broker's own connection
        ]
    )
    with contextlib.closing(Cluster(connection, "target", "tests", connect_timeout_ms=6_000).connect()) as found:
        assert found.cluster_id
    assert len(made(proxy)) == 3


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_WITHIN_ANSWER, Fault.REFUSED])
def test_a_target_whose_transaction_log_exists_is_not_refused_for_good_while_its_coordinator_is_away(
    cluster: LocalCluster, proxy: Proxy, fault: Fault
) -> None:
    connection = Connection("t", (("bootstrap.servers", cluster.proxied_servers),))
    with contextlib.closing(Cluster(connection, "target", "tests").connect()) as target:
        proxy.arm([Rule("FindCoordinator", fault, code=COORDINATOR_AWAY) for _ in range(50)])
        with pytest.raises(TargetError, match=r"finding the transaction coordinator.*retried for 500 ms") as error:
            transaction.require_transactions(target, 500, "some-id")
        assert error.value.retriable
        proxy.arm([])
        transaction.require_transactions(target, 10_000, "some-id")
    proxy.faults()


def test_a_job_that_starts_repeats_what_fails_and_may_pass(world: World, proxy: Proxy) -> None:
    world.write_config(**{"mirrorlake.connect.timeout.ms": "3000"})
    topic = world.topic(partitions=1)
    world.produce(topic, 100, 1)
    group = world.commit("g", {(topic, 0): 40})
    proxy.faults()
    unexpected = Rule("Produce", Fault.MISREPORTED, code=-1)  # in answer to the opening state
    proxy.arm([Rule("CreateTopics", Fault.MISREPORTED, code=NOT_CONTROLLER), unexpected])
    assert world.mirror().records == 100
    assert made(proxy) == [("CreateTopics", Fault.MISREPORTED), ("Produce", Fault.MISREPORTED)]
    before = sum("retrying" in line for line in world.lines)
    codes = (NOT_LEADER, -1)
    proxy.arm([Rule("ListOffsets", Fault.REFUSED, code=code) for code in 7 * codes])  # for longer than one request
    world.checkpoint()
    assert sum("retrying" in line for line in world.lines) == before + 1
    assert world.committed(group)[world.remote(topic), 0][0] == 40


def a_mirrored_and_a_new_topic(world: World, beside_the_proxy: AdminClient) -> tuple[str, str]:
    """Makes two topics of 100 records, the second of which no job has seen."""
    there, new = world.topic("there", 1), f"{world.alias}-new"
    world.produce(there, 100, 1)
    assert world.mirror().records == 100
    beside_the_proxy.create_topics([NewTopic(new, 1, 1)])[new].result()
    world.produce(new, 100, 1)
    return there, new


def test_topics_are_mirrored_while_no_other_can_be_created_as_the_controller_is_away_also_by_a_job_that_starts(
    cluster: LocalCluster, world: World, proxy: Proxy
) -> None:
    beside_the_proxy = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    there, new = a_mirrored_and_a_new_topic(world, beside_the_proxy)
    proxy.arm([Rule("CreateTopics", Fault.CUT_BEFORE, skip=skip) for skip in range(200)])
    for seed in (2, 3):
        proxy.faults()
        began, mirrored = time.monotonic(), len(world.target_records(there)[0])
        with world.mirroring():
            for more in range(5):
                world.produce(there, 20, 1, seed=10 * seed + more)
                wanted = mirrored + 20 * (more + 1)
                eventually(lambda count=wanted: len(world.target_records(there)[0]) == count, 60)
            eventually(lambda: world.metric("held_topics") == 1)
        sent, cut = proxy.faults()
        assert not [line for line in world.lines if "topics_not_in_step" in line or "retrying" in line]
        assert [*cut] == [("CreateTopics", Fault.CUT_BEFORE)]
        assert sent["CreateTopics"] <= 2 + (time.monotonic() - began) / topology.AGAIN_S
        set_config(beside_the_proxy, there, "retention.ms", "5000000")  # a change that the next start is to make
    assert config_of(beside_the_proxy, world.remote(there))["retention.ms"] != "5000000"
    proxy.arm([])
    world.mirror()
    assert config_of(beside_the_proxy, world.remote(there))["retention.ms"] == "5000000"
    assert world.assert_equal(there, new) == 400
    held = [row for row in world.rows("anomalies") if row["kind"] == "held"]
    assert {row["topic"] for row in held} == {new}


def test_a_remote_topic_that_needs_a_change_waits_for_the_controller_while_the_others_go_on(
    cluster: LocalCluster, world: World, proxy: Proxy
) -> None:
    """Also in a run that ends with the source's end, which lets no partition linger."""
    world.write_config(**{"mirrorlake.linger.ms": "60000"})
    beside_the_proxy = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    known = world.topic("known", 1)
    world.produce(known, 50, 1)
    assert world.mirror().records == 50
    there, new = a_mirrored_and_a_new_topic(world, beside_the_proxy)
    remote = NewTopic(world.remote(new), 1, 1, config={"compression.type": "gzip"})
    beside_the_proxy.create_topics([remote])[remote.topic].result()
    set_config(beside_the_proxy, world.remote(known), "compression.type", "gzip")
    for topic in (there, known):
        world.produce(topic, 100, 1, seed=2)
    requests = "CreateTopics", "IncrementalAlterConfigs"
    proxy.arm([Rule(request, Fault.CUT_BEFORE, skip=skip) for request in requests for skip in range(100)])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(world.mirror)
        eventually(lambda: len(world.target_records(there)[0]) == 200, what="the other topic")
        assert not running.done()
        assert [len(world.target_records(topic).get(0, ())) for topic in (known, new)] == [50, 0]
        proxy.arm([])
        assert running.result(60).records == 300
    for topic in (known, new):
        assert config_of(beside_the_proxy, world.remote(topic))["compression.type"] == "producer"
    assert world.assert_equal(there, known, new) == 450


def test_a_topic_that_needs_more_brokers_than_there_are_is_asked_for_after_a_pause(
    cluster: LocalCluster, world: World, proxy: Proxy
) -> None:
    world.write_config(**{"replication.factor": "3", "offset-syncs.topic.replication.factor": "1"})
    there, new = world.topic("there", 1), world.topic("new", 1)
    remote = world.remote(there)
    world.target_admin.create_topics([NewTopic(remote, 1, 1)])[remote].result()
    proxy.faults()
    began = time.monotonic()
    with world.mirroring(interval_s=0.1):
        for seed in range(5):
            world.produce(there, 20, 1, seed=seed)
            eventually(lambda count=20 * (seed + 1): len(world.target_records(there)[0]) == count)
        eventually(lambda: world.metric("held_topics") == 1)
    sent, _ = proxy.faults()
    assert sent["CreateTopics"] <= 3 + (time.monotonic() - began) / topology.AGAIN_S
    assert new in {row["topic"] for row in world.rows("anomalies") if row["kind"] == "held"}


def test_behind_an_administrative_request_without_an_answer_no_more_are_sent(
    cluster: LocalCluster, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "RECORDS_AT_ONCE", 2)
    connection = Connection("t", (("bootstrap.servers", cluster.proxied_servers),))
    target = admin.Admin(connection, "target", "tests", start_timeout_ms=3_000)
    proxy.arm([Rule("CreateTopics", Fault.LOST, skip=skip) for skip in range(3)])
    proxy.faults()
    refusals = target.create([admin.NewTopic(f"behind-{number}", 1, 1) for number in range(3)])
    assert refusals.keys() == {"behind-0", "behind-1", "behind-2"}
    sent, _ = proxy.faults()
    assert sent["CreateTopics"] == 1
    proxy.arm([])


def test_a_controller_that_loses_requests_costs_one_time_out_and_a_topic_is_made_soon_after_it_answers_again(
    cluster: LocalCluster, world: World, proxy: Proxy
) -> None:
    world.write_config(**{"mirrorlake.connect.timeout.ms": "12000"})  # half of it is the time-out of a request
    there, new = a_mirrored_and_a_new_topic(world, AdminClient({"bootstrap.servers": cluster.bootstrap_servers}))
    proxy.arm([Rule("CreateTopics", Fault.LOST, skip=skip) for skip in range(100)])
    proxy.faults()
    with world.mirroring():
        eventually(lambda: world.metric("held_topics") == 1)
        for more in range(20):
            before = world.batches
            world.produce(there, 20, 1, seed=more + 2)
            eventually(lambda count=before: world.batches > count)
        proxy.arm([])
        eventually(lambda: world.metric("held_topics") == 0, 30)
    world.mirror()
    assert world.assert_equal(there, new) == 600


def test_a_damaged_batch_is_an_error_where_its_contents_count(cluster: LocalCluster, proxy: Proxy) -> None:
    connection = Connection("t", (("bootstrap.servers", cluster.proxied_servers),))
    with contextlib.closing(Cluster(connection, "target", "tests").connect()) as reader:
        reader.refresh(["t"], 10_000)

        async def read() -> list[int]:
            stretch = read_stretch(reader, ("t", 0), start=0, end=50, max_bytes=1 << 20)
            return [batch.base_offset async for batch, _ in stretch]

        proxy.arm([Rule("Fetch", Fault.CORRUPTED, pick=7)])
        with pytest.raises(ResponseError, match="damaged") as error:
            reader.net.run(read)
        assert error.value.retriable
        assert reader.net.run(read)[0] == 0


def test_a_log_is_read_on_after_an_unexpected_error_of_its_leader(cluster: LocalCluster, proxy: Proxy) -> None:
    connection = Connection("t", (("bootstrap.servers", cluster.proxied_servers),))
    with closing(Cluster(connection, "target", "tests").connect()) as reader:
        reader.refresh(["t"], 10_000)

        async def read() -> list[int]:
            stretch = read_stretch(reader, ("t", 0), start=0, end=50, max_bytes=1 << 20)
            return [batch.base_offset async for batch, _ in stretch]

        proxy.faults()
        proxy.arm([Rule("Fetch", Fault.REFUSED, code=-1)])
        assert reader.call("reading", read, 10_000)[0] == 0
        assert made(proxy) == [("Fetch", Fault.REFUSED)]
