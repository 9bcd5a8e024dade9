"""Topic sync on real brokers: configuration, ACLs, and one bad topic that does not stop the others."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from mirrorlake.errors import ConfigurationError, TargetError
from mirrorlake.jobs.mirror.planning import planner
from mirrorlake.jobs.mirror.topics.change_maker import ChangeMaker
from mirrorlake.jobs.mirror.topics.topics_job import TopologyResult, keep_in_step
from mirrorlake.local.cluster import LocalCluster, running
from mirrorlake.model.slot import SlotState
from mirrorlake.protocol.admin import Admin
from mirrorlake.protocol.topic_changes import Change, ChangeKind

from tests.moving import IDENTITY, both_ways, failover
from tests.world import World, config_of, eventually, now_ms, read_committed, set_config


@pytest.fixture
def world(plain_world: World) -> World:
    return plain_world


def keep(world: World, *, dry_run: bool = False) -> TopologyResult:
    return keep_in_step(world.config, world.flow, world.ledger, dry_run=dry_run)


def rows(world: World) -> list[tuple[str, str, str | None, str | None, str | None, str]]:
    found = world.rows("topology_changes")
    found.sort(key=lambda row: (row["changed_at"], row["name"] or ""))
    return [
        (row["kind"], row["target_topic"], row["name"], row["before"], row["after"], row["outcome"]) for row in found
    ]


def test_a_dry_run_shows_everything_and_changes_nothing(world: World) -> None:
    topic = world.topic("plain", 3, {"retention.ms": "7200000"})
    result = keep(world, dry_run=True)
    assert result.to_json() == {
        "flow": world.flow_name,
        "topics": 1,
        "changes": 1,
        "planned": 1,
        "applied": 0,
        "refused": 0,
    }
    assert "retention.ms=7200000" in result.table().loc[0, "note"]
    assert world.remote(topic) not in world.target_admin.list_topics(timeout=10).topics
    assert rows(world) == []


def test_a_topic_that_can_have_no_remote_name_is_left_out_and_the_others_are_kept_in_step(world: World) -> None:
    world.write_config(
        **{"topics.rename.regex": f"{world.alias}-(long)", "topics.rename.replacement": "$1" + "x" * 249}
    )
    topic, long = world.topic("plain", 2), world.topic("long", 1)
    assert keep(world).to_json()["topics"] == 1
    eventually(lambda: world.remote(topic) in world.target_admin.list_topics(timeout=10).topics)
    assert any("topic_held" in line and long in line for line in world.lines)


def test_topics_are_created_grown_and_configured_and_every_change_is_a_row(world: World) -> None:
    topic = world.topic(
        "plain",
        2,
        {
            "retention.ms": "7200000",
            "cleanup.policy": "compact",
            "max.message.bytes": "2000000",
            "min.insync.replicas": "1",
        },
    )
    assert keep(world).to_json()["applied"] == 1
    remote = world.remote(topic)
    eventually(lambda: config_of(world.target_admin, remote)["retention.ms"] == "7200000")
    found = config_of(world.target_admin, remote)
    assert (found["cleanup.policy"], found["max.message.bytes"], found["compression.type"]) == (
        "compact",
        "2000000",
        "producer",
    )
    set_config(world.source_admin, topic, "retention.ms", "3600000")
    set_config(world.source_admin, topic, "cleanup.policy", None)
    set_config(world.target_admin, remote, "segment.ms", "999999")
    set_config(world.target_admin, remote, "min.insync.replicas", "1")
    eventually(
        lambda: (
            config_of(world.target_admin, remote)["segment.ms"] == "999999"
            and config_of(world.source_admin, topic)["cleanup.policy"] == "delete"
        )
    )
    keep(world)
    assert rows(world)[1:] == [
        ("reset_config", remote, "cleanup.policy", "compact", None, "applied"),
        ("set_config", remote, "retention.ms", "7200000", "3600000", "applied"),
        ("reset_config", remote, "segment.ms", "999999", None, "applied"),
    ], "edits on the target are overwritten, but for excluded properties"
    eventually(lambda: config_of(world.target_admin, remote)["retention.ms"] == "3600000")
    assert keep(world).to_json()["changes"] == 0, "what is in step stays untouched"


def test_the_mirror_keeps_configuration_in_step_while_it_runs(world: World) -> None:
    topic = world.topic("plain", 1)
    world.produce(topic, 10, 1)
    world.write_config(**{"sync.topic.configs.interval.seconds": "2"})
    world.mirror()
    set_config(world.source_admin, topic, "retention.ms", "5000000")
    with world.mirroring():
        eventually(lambda: config_of(world.target_admin, world.remote(topic))["retention.ms"] == "5000000")


def test_a_remote_topic_that_would_stamp_records_anew_is_corrected_before_anything_is_copied(world: World) -> None:
    topic = world.topic("plain", 1)
    world.produce(topic, 50, 1)
    world.target_admin.create_topics(
        [NewTopic(world.remote(topic), 1, 1, config={"message.timestamp.type": "LogAppendTime"})]
    )[world.remote(topic)].result()
    eventually(lambda: world.remote(topic) in world.target_admin.list_topics(timeout=5).topics)
    world.mirror()
    world.assert_equal(topic)
    assert (
        "set_config",
        world.remote(topic),
        "message.timestamp.type",
        "LogAppendTime",
        "CreateTime",
        "applied",
    ) in rows(world)


def test_a_property_that_the_target_refuses_keeps_no_other_away_and_costs_no_request_for_each_topic(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [f"{world.alias}.{number}" for number in range(5)]
    for future in world.target_admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        future.result()
    wanted = {"flush.ms": "60001", "no.such.property": "1", "retention.ms": "7200001"}
    changes = [
        Change(ChangeKind.SET_CONFIG, topic=None, target_topic=topic, name=name, after=value)
        for topic in topics
        for name, value in wanted.items()
    ]
    target, requests = Admin(world.flow.target_connection, "target", world.flow_name), list[object]()
    alter = target.alter_configs
    monkeypatch.setattr(target, "alter_configs", lambda values: requests.append(values) or alter(values))
    refused = ChangeMaker(target, world.ledger).make(world.flow, changes, {})
    assert {(change.target_topic, change.name) for change in refused} == {
        (topic, "no.such.property") for topic in topics
    }
    assert len(requests) == 1 + len(wanted)
    for topic in topics:
        eventually(
            lambda topic=topic: (
                config_of(world.target_admin, topic).items() >= {("flush.ms", "60001"), ("retention.ms", "7200001")}
            )
        )


@pytest.mark.parametrize("is_synced", ["true", "false"])
def test_a_remote_topic_that_begins_to_stamp_records_anew_gets_none_before_it_is_corrected(
    world: World, is_synced: str
) -> None:
    world.write_config(**{"sync.topic.configs.enabled": is_synced})
    latest = "message.timestamp.after.max.ms"
    topic = world.topic("plain", 1, {latest: str(2**63 - 1)})
    world.produce(topic, 50, 1)
    with world.mirroring():
        eventually(lambda: len(world.target_records(topic)[0]) == 50)
        set_config(world.target_admin, world.remote(topic), "message.timestamp.type", "LogAppendTime")
        stamps = "message.timestamp.type"
        eventually(lambda: config_of(world.target_admin, world.remote(topic))[stamps] == "LogAppendTime")
        world.produce(topic, 50, 1, seed=2)
        eventually(lambda: len(world.target_records(topic)[0]) == 100)
        set_config(world.target_admin, world.remote(topic), latest, "3600000")
        eventually(lambda: config_of(world.target_admin, world.remote(topic))[latest] == "3600000")
        producer = Producer({"bootstrap.servers": world.source_servers, "log_level": 0})
        producer.produce(topic, b"of the future", timestamp=now_ms() + 7_200_000)
        assert producer.flush(30) == 0
        eventually(lambda: len(world.target_records(topic)[0]) == 101)
    for said in ("replaces the timestamps of records", "refuses records for their timestamps"):
        assert said in "".join(world.lines)
    world.assert_equal(topic)


def test_the_first_of_the_topics_that_share_a_remote_topic_decides_about_it_also_when_another_one_is_added(
    world: World,
) -> None:
    remote = f"{world.alias}-all"
    world.write_config(
        **{
            "topics.rename.regex": r".*\.orders",
            "topics.rename.replacement": remote,
            "mirrorlake.topics.shared": "true",
        }
    )
    for names in ("ab", "c"):
        for name in names:
            set_config(world.source_admin, world.topic(f"{name}.orders", 1), "retention.ms", f"{500 - ord(name)}000000")
        world.mirror()
        assert config_of(world.target_admin, remote)["retention.ms"] == f"{500 - ord('a')}000000"
    assert not [row for row in rows(world) if row[2] == "retention.ms"]


def test_what_a_remote_topic_was_created_with_stays_whatever_the_source_has(world: World) -> None:
    topic = world.topic("plain", 1, {"retention.ms": "7200000"})
    world.write_config(**{"target.topic.creation.retention.ms": "-1"})
    assert keep(world).to_json()["applied"] == 1
    remote = world.remote(topic)
    eventually(lambda: config_of(world.target_admin, remote)["retention.ms"] == "-1")
    assert keep(world).to_json()["changes"] == 0
    assert config_of(world.target_admin, remote)["retention.ms"] == "-1"


def test_a_clock_that_is_hours_ahead_stops_no_mirror_whatever_version_has_created_its_topics(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, bound = world.topic("plain", 1), "message.timestamp.after.max.ms"

    def copies_with_a_clock_two_hours_ahead() -> None:
        world.produce(topic, 50, 1, seed=len(world.lines))
        now, now_ns = time.time, time.time_ns
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda: now() + 7_200)
            patched.setattr(time, "time_ns", lambda: now_ns() + 7_200 * 10**9)
            assert world.mirror().records == 50

    copies_with_a_clock_two_hours_ahead()
    set_config(world.target_admin, world.flow.offset_syncs_topic, bound, None)
    eventually(lambda: config_of(world.target_admin, world.flow.offset_syncs_topic)[bound] == "3600000")
    copies_with_a_clock_two_hours_ahead()
    assert world.assert_equal(topic) == 100


def test_records_of_others_in_one_remote_topic_hold_back_that_topic_only(world: World) -> None:
    good, bad = world.topic("good", 1), world.topic("bad", 1)
    world.produce(good, 50, 1)
    world.produce(bad, 50, 1)
    stranger = World(world.target_servers, world.source_servers, world.directory / "stranger")
    world.target_admin.create_topics([NewTopic(world.remote(bad), 1, 1)])[world.remote(bad)].result()
    eventually(lambda: world.remote(bad) in world.target_admin.list_topics(timeout=5).topics)
    stranger.produce(world.remote(bad), 5, 1)
    assert world.mirror().records == 50
    world.assert_equal(good)
    held = world.rows("anomalies")
    assert [(row["kind"], row["topic"], row["action"]) for row in held] == [("held", bad, "the others go on")]
    assert f"WARNING topic_held flow={world.flow_name} topic={bad} " in "".join(world.lines)


def test_a_remote_topic_that_is_deleted_as_it_held_records_of_others_is_created_again_while_the_job_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "RETRY_HELD_S", 1.0)
    good, bad = world.topic("good", 1), world.topic("bad", 1)
    for topic in (good, bad):
        world.produce(topic, 50, 1)
    stranger = World(world.target_servers, world.source_servers, world.directory / "stranger")
    world.target_admin.create_topics([NewTopic(world.remote(bad), 1, 1)])[world.remote(bad)].result()
    eventually(lambda: world.remote(bad) in world.target_admin.list_topics(timeout=5).topics)
    stranger.produce(world.remote(bad), 5, 1)
    with world.mirroring():
        eventually(lambda: any("topic_held" in line for line in world.lines))
        world.target_admin.delete_topics([world.remote(bad)])[world.remote(bad)].result()
        eventually(lambda: world.metric("held_topics") == 0, what="the topic is mirrored")
        eventually(lambda: len(world.target_records(bad)[0]) == 50)
    world.assert_equal(good, bad)


@pytest.fixture(scope="module")
def authorized(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LocalCluster]]:
    """Starts two clusters with an authorizer that allows everything that no ACL denies."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    base, jars = tmp_path_factory.mktemp("authorized"), root / ".local/jars/kafka"
    with (
        running(LocalCluster("source", base / "source", jars, properties=properties)) as source,
        running(LocalCluster("target", base / "target", jars, properties=properties)) as target,
    ):
        yield {"source": source, "target": target}


@pytest.fixture
def guarded(authorized: dict[str, LocalCluster], spark: object, warehouse: str, tmp_path: Path) -> World:
    return World(
        authorized["source"].bootstrap_servers,
        authorized["target"].bootstrap_servers,
        tmp_path,
        spark,
        warehouse,
        {"sync.topic.acls.enabled": "true"},
    )


def binding(
    topic: str,
    operation: AclOperation,
    principal: str = "User:ann",
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> AclBinding:
    return AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, principal, "*", operation, permission)


def bindings(admin: AdminClient, topic: str) -> set[tuple[str, str, str]]:
    everything = AclBindingFilter(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    return {
        (acl.principal, acl.operation.name, acl.permission_type.name)
        for acl in admin.describe_acls(everything).result()
    }


def test_who_may_read_may_read_the_copy_and_loses_that_when_it_is_revoked(guarded: World) -> None:
    topic = guarded.topic("plain", 1)
    everyone = binding(topic, AclOperation.ALL, "User:*")
    given = [
        binding(topic, AclOperation.READ),
        binding(topic, AclOperation.WRITE),
        everyone,
        binding(topic, AclOperation.READ, "User:bob", AclPermissionType.DENY),
    ]
    for future in guarded.source_admin.create_acls(given).values():
        future.result()
    remote = guarded.remote(topic)
    theirs = binding(remote, AclOperation.READ, "User:operator")
    next(iter(guarded.target_admin.create_acls([theirs]).values())).result()
    wanted = {
        ("User:ann", "READ", "ALLOW"),
        ("User:*", "READ", "ALLOW"),
        ("User:bob", "READ", "DENY"),
        ("User:operator", "READ", "ALLOW"),
    }
    eventually(lambda: len(bindings(guarded.source_admin, topic)) == 4)
    keep(guarded)
    eventually(lambda: bindings(guarded.target_admin, remote) == wanted)
    revoked = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:ann",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    next(iter(guarded.source_admin.delete_acls([revoked]).values())).result()
    eventually(lambda: len(bindings(guarded.source_admin, topic)) == 3)
    keep(guarded)
    eventually(lambda: bindings(guarded.target_admin, remote) == wanted - {("User:ann", "READ", "ALLOW")})
    assert [row[0] for row in rows(guarded)].count("delete_acl") == 1


def test_a_right_that_is_revoked_is_not_given_again_by_the_flow_back_under_the_same_names(guarded: World) -> None:
    """Whichever of both looks first; a right that somebody gives on the other side goes the other way."""
    back = both_ways(guarded, **IDENTITY, **{"sync.topic.acls.enabled": "true"})
    topic, (here, there) = guarded.topic("both", 1), (guarded.source_admin, guarded.target_admin)
    ann, bob = binding(topic, AclOperation.READ), binding(topic, AclOperation.READ, "User:bob")
    everyone = binding(topic, AclOperation.ALL, "User:*")  # the jobs as well
    guarded.mirror()
    back.mirror()  # both flows are open
    for admin, one in ((here, ann), (here, everyone), (there, bob), (there, everyone)):
        next(iter(admin.create_acls([one]).values())).result()
    others = {("User:*", "ALL", "ALLOW"), ("User:*", "READ", "ALLOW")}
    both = others | {("User:ann", "READ", "ALLOW"), ("User:bob", "READ", "ALLOW")}
    for world in (guarded, back, guarded):
        keep(world)
    eventually(lambda: bindings(here, topic) == bindings(there, topic) == both)
    for admin, one in ((here, "User:ann"), (there, "User:bob")):
        revoked = AclBindingFilter(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, one, "*", AclOperation.READ, AclPermissionType.ALLOW
        )
        next(iter(admin.delete_acls([revoked]).values())).result()
    eventually(lambda: bindings(here, topic) | bindings(there, topic) == both)
    for world in (back, guarded, back):
        keep(world)
    eventually(lambda: bindings(here, topic) == bindings(there, topic) == others)


def test_remote_topics_are_read_only_for_others_until_they_are_promoted_and_a_promotion_says_which_it_cannot_open(
    guarded: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    promoted, kept = guarded.topic("promoted", 1), guarded.topic("kept", 1)
    remotes = {topic: guarded.remote(topic) for topic in (promoted, kept)}
    guarded.write_config(
        **{"sync.topic.acls.enabled": "false", "mirrorlake.remote.topics.writer": "User:ANONYMOUS"}
    )  # the principal of this test
    for topic in remotes:
        guarded.produce(topic, 10, 1)
    theirs = [
        binding(remote, operation, principal)
        for remote in remotes.values()
        for principal, operation in (("User:ANONYMOUS", AclOperation.ALL), ("User:app", AclOperation.WRITE))
    ]
    for future in guarded.target_admin.create_acls(theirs).values():
        future.result()
    denial = ("User:app", "WRITE", "DENY")
    eventually(lambda: all(len(bindings(guarded.target_admin, remote)) == 2 for remote in remotes.values()))
    assert guarded.mirror().records == 20
    for remote in remotes.values():
        eventually(lambda remote=remote: denial in bindings(guarded.target_admin, remote))

    readers = guarded.commit("readers", {(promoted, 0): 5})
    with monkeypatch.context() as patched:
        patched.setattr(Admin, "delete_acls", lambda _, acls: {acl: TargetError("needs ALTER") for acl in acls})
        with pytest.raises(
            TargetError,
            match=r"the flow is closed \(generation \d+\), but 1 ACLs still deny .* DENY WRITE to User:app .*: needs "
            r"ALTER\. Delete them \(kafka-acls\.sh .* --remove .* run this again",
        ):
            failover(guarded, mode="promote", topics=promoted, signed_by="ann")
    assert guarded.committed(readers) == {(remotes[promoted], 0): (5, "")}
    assert [row["outcome"] for row in guarded.table("failovers") if row["source"] == guarded.alias] == ["committed"]
    assert denial in bindings(guarded.target_admin, remotes[promoted])
    failover(guarded, mode="promote", topics=promoted, partial="true", close="true", signed_by="ann")

    eventually(lambda: denial not in bindings(guarded.target_admin, remotes[promoted]))
    keep(guarded)  # the sync does not deny it again
    assert denial not in bindings(guarded.target_admin, remotes[promoted])
    assert denial in bindings(guarded.target_admin, remotes[kept])
    guarded.write_config(**{"sync.topic.acls.enabled": "true", "mirrorlake.remote.topics.writer": ""})
    keep(guarded)
    eventually(lambda: denial not in bindings(guarded.target_admin, remotes[kept]))


def test_a_flow_that_was_failed_over_changes_nothing_on_its_target(guarded: World) -> None:
    topic = guarded.topic("plain", 1, {"retention.ms": "7200000"})
    guarded.produce(topic, 20, 1)
    guarded.mirror()
    remote = guarded.remote(topic)
    failover(guarded, mode="promote", signed_by="ann", close="true")
    set_config(guarded.target_admin, remote, "retention.ms", "3600000")
    eventually(lambda: config_of(guarded.target_admin, remote)["retention.ms"] == "3600000")
    guarded.write_config(**{"emit.heartbeats.enabled": "true"})

    def heartbeats() -> list[object]:
        if "heartbeats" not in guarded.target_admin.list_topics(timeout=10).topics:
            return []
        return [one for one in read_committed(guarded.target_servers, "heartbeats")[0] if guarded.alias in str(one)]

    before = heartbeats()
    for start in (guarded.mirror, lambda: keep(guarded)):
        with pytest.raises(ConfigurationError, match="was failed over"):
            start()
    assert config_of(guarded.target_admin, remote)["retention.ms"] == "3600000"
    assert heartbeats() == before


def test_with_the_ledger_lost_a_failover_lists_what_still_denies_writing_with_the_command_that_ends_it(
    guarded: World, root: Path
) -> None:
    topic = guarded.topic("denied", 1)
    remote, app = guarded.remote(topic), f"User:app-{guarded.alias}"
    guarded.write_config(**{"sync.topic.acls.enabled": "false", "mirrorlake.remote.topics.writer": "User:ANONYMOUS"})
    guarded.produce(topic, 10, 1)
    theirs = [binding(remote, AclOperation.ALL, "User:ANONYMOUS"), binding(remote, AclOperation.WRITE, app)]
    for future in guarded.target_admin.create_acls(theirs).values():
        future.result()
    eventually(lambda: len(bindings(guarded.target_admin, remote)) == 2)
    guarded.mirror()
    denial = (app, "WRITE", "DENY")
    eventually(lambda: denial in bindings(guarded.target_admin, remote))
    guarded.commit("readers", {(topic, 0): 5})
    assert failover(guarded).access == (), "a run deletes what the ledger knows"
    guarded.spark.sql(f"DELETE FROM {guarded.ledger.table('topology_changes')} WHERE source = '{guarded.alias}'")
    (left,) = failover(guarded, mode="promote", signed_by="ann").access
    assert (left.kind, left.principal) == ("denial", app)
    assert left.missing == f"DENY WRITE to {app} from * on LITERAL {remote}"
    assert denial in bindings(guarded.target_admin, remote), "it may be an operator's"
    run_tool(left.command, guarded.target_servers, root / ".local/jars/kafka")
    eventually(lambda: denial not in bindings(guarded.target_admin, remote))


def run_tool(command: str, servers: str, jars: Path) -> None:
    """Runs a command of Kafka's tools, as an operator would, on another cluster."""
    words = shlex.split(command)
    words[words.index("--bootstrap-server") + 1] = servers
    main = {"kafka-acls.sh": "org.apache.kafka.tools.AclCommand", "kafka-configs.sh": "kafka.admin.ConfigCommand"}
    subprocess.run(
        ["java", "-Xmx256m", "-cp", f"{jars}/*", main[words[0]], *words[1:]],
        check=True,
        capture_output=True,
        timeout=120,
    )


def test_access_that_principals_have_on_the_source_only_is_listed_with_its_command_and_given_at_a_failover(
    guarded: World, root: Path
) -> None:
    topic, jars = guarded.topic("access", 1), root / ".local/jars/kafka"
    group, remote = f"{guarded.alias}-readers", guarded.remote(topic)
    guarded.produce(topic, 20, 1)
    guarded.commit("readers", {(topic, 0): 5})

    def on(kind: ResourceType, name: str, principal: str, operation: AclOperation, *, prefixed: bool = False) -> None:
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        given = AclBinding(kind, name, pattern, principal, "*", operation, AclPermissionType.ALLOW)
        next(iter(guarded.source_admin.create_acls([given]).values())).result()

    writer, us, stranger = f"User:w-{guarded.alias}", "User:ANONYMOUS", "User:stranger"
    for principal, operation in ((writer, AclOperation.WRITE), (us, AclOperation.ALL)):
        on(ResourceType.TOPIC, topic, principal, operation)
    for principal, operation in ((writer, AclOperation.READ), (us, AclOperation.ALL), (stranger, AclOperation.READ)):
        on(ResourceType.GROUP, group, principal, operation)
    on(ResourceType.TRANSACTIONAL_ID, f"{guarded.alias}-tx", writer, AclOperation.WRITE, prefixed=True)
    user = writer.removeprefix("User:")
    password = UserScramCredentialUpsertion(user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192), b"canary")
    guarded.source_admin.alter_user_scram_credentials([password])[user].result()
    servers = guarded.source_servers
    quota = (
        "kafka-configs.sh --bootstrap-server x --alter --entity-type users --add-config 'producer_byte_rate=1048576'"
    )
    run_tool(f"{quota} --entity-name {user}", servers, jars)
    guarded.write_config(**{"sync.topic.acls.enabled": "false"})  # it would give this test's own principal READ only
    guarded.mirror()

    planned = failover(guarded, mode="plan")

    listed = {(one.kind.value, one.principal, one.missing): one.command for one in planned.access}
    name = f"PREFIXED {guarded.alias}-tx"
    assert {*listed} == {
        ("acl", writer, f"ALLOW WRITE to {writer} from * on LITERAL {remote}"),
        ("acl", us, f"ALLOW ALL to {us} from * on LITERAL {remote}"),
        ("acl", writer, f"ALLOW READ to {writer} from * on GROUP LITERAL {group}"),
        ("acl", us, f"ALLOW ALL to {us} from * on GROUP LITERAL {group}"),
        ("acl", writer, f"ALLOW WRITE to {writer} from * on TRANSACTIONAL_ID {name}"),
        ("quota", f"user {user}", "producer_byte_rate=1048576"),
        ("scram_user", writer, "SCRAM-SHA-512"),
    }
    assert planned.go
    assert planned.to_json()["access_missing"] == 7
    assert "canary" not in str(planned.access_table().to_dict())
    # The commands are those of Kafka's tools: one of each kind, as an operator would run it.
    theirs = listed["acl", writer, f"ALLOW WRITE to {writer} from * on TRANSACTIONAL_ID {name}"]
    run_tool(theirs, guarded.target_servers, jars)

    given = failover(guarded, mode="rehearse", access="apply")

    assert {one.outcome for one in given.access} == {"applied", ""}
    assert sorted(row[0] for row in rows(guarded) if row[0] in ("grant_access", "set_quota")) == [
        *["grant_access"] * 4,
        "set_quota",
    ]
    guarded.write_config(**{"sync.topic.acls.enabled": "true"})
    keep(guarded)  # the sync of ACLs takes back nothing of this
    left = failover(guarded, mode="plan").access
    assert [(one.kind, one.principal) for one in left] == [("scram_user", writer)]
    assert left[0].command.endswith(f"--entity-type users --entity-name {user}")


def test_a_permission_that_is_missing_for_one_topic_holds_back_that_topic_until_it_is_granted(guarded: World) -> None:
    good, bad = guarded.topic("good", 1), guarded.topic("bad", 1)
    for topic in (good, bad):
        guarded.produce(topic, 60, 1)
    guarded.write_config(**{"sync.topic.acls.enabled": "false"})
    seen = binding(
        bad, AclOperation.DESCRIBE, "User:ANONYMOUS"
    )  # without DESCRIBE, a topic looks as if it did not exist
    next(iter(guarded.source_admin.create_acls([seen]).values())).result()
    eventually(lambda: bindings(guarded.source_admin, bad))
    assert guarded.mirror().records == 60
    assert "needs READ" in "".join(guarded.lines)
    held = guarded.rows("anomalies")
    assert [(row["kind"], row["topic"]) for row in held] == [("held", bad)]
    everything = AclBindingFilter(
        ResourceType.TOPIC, bad, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    next(iter(guarded.source_admin.delete_acls([everything]).values())).result()
    eventually(lambda: not bindings(guarded.source_admin, bad))
    assert guarded.mirror().records == 60
    guarded.assert_equal(good, bad)


def test_without_an_authorizer_access_rights_are_left_alone(world: World) -> None:
    topic = world.topic(partitions=1)
    world.produce(topic, 20, 1)
    world.write_config(**{"sync.topic.acls.enabled": "true"})
    assert world.mirror().records == 20
    assert [row for row in world.rows("topology_changes") if row["kind"].endswith("acl")] == []


def test_states_are_changes_where_the_topic_keeps_them_and_one_that_was_deleted_is_named(world: World) -> None:
    world.audits_trace = False  # states are deleted
    topic, syncs = world.topic(partitions=2), world.flow.offset_syncs_topic

    def last_state(copied: int = 100) -> tuple[int, int, int]:
        """Copies some records; returns the offset, the number and the positions of the state that this leaves."""
        world.produce(topic, copied, 2, seed=len(world.lines))
        assert world.mirror().records == copied
        offset, (_, value, *_) = read_committed(world.target_servers, syncs)[0][-1]
        state = SlotState.from_json(value)
        return offset, state.number, len(state.positions)

    def delete_before(offset: int) -> None:
        (future,) = world.target_admin.delete_records([TopicPartition(syncs, 0, offset)]).values()
        future.result()

    world.write_config(mirrorlake_slots="1")
    assert last_state()[1:] == (1, 2), "new partitions"
    assert last_state()[1:] == (1, 0)
    set_config(world.target_admin, syncs, "retention.ms", "604800000")
    offset, *found = last_state()
    assert found == [0, 2]
    assert sum(f"states_not_kept flow={world.flow_name} topic={syncs}" in line for line in world.lines) == 1
    delete_before(offset)
    set_config(world.target_admin, syncs, "retention.ms", "-1")
    offset, *found = last_state()
    assert found == [1, 0], "one that is whole is enough"
    delete_before(offset)
    copied = world.target_records(topic)
    assert sum(map(len, copied.values())) == 400
    with pytest.raises(TargetError, match=rf"{syncs}-0: the state at offset {offset} has changes since the snapshot"):
        world.mirror()
    assert world.target_records(topic) == copied
    world.target_admin.delete_topics([syncs])[syncs].result()  # flows of local records would miss its snapshot
