"""Planned changes of the target's configuration and ACLs, from the metadata of both clusters."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any
from unittest.mock import Mock, patch

import pytest
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.errors import ConfigurationError, TargetError
from mirrorlake.jobs.mirror.topics.change_maker import ChangeMaker
from mirrorlake.jobs.mirror.topics.own_topics import OwnTopics
from mirrorlake.protocol.acls import GROUP, Acl, acl_changes, equal_acls
from mirrorlake.protocol.admin import DESCRIBED_AT_ONCE, RECORDS_AT_ONCE, Admin
from mirrorlake.protocol.requests.grouping import portions
from mirrorlake.protocol.topic_changes import (
    REMOTE_CONFIG,
    TIMESTAMP_BOUNDS,
    Change,
    ChangeKind,
    Entry,
    config_changes,
    configs_set,
    creation,
    growth,
    largest_message,
    overrides_ended,
)

BASE = {
    "clusters": "a, b",
    "a.bootstrap.servers": "h1:1",
    "b.bootstrap.servers": "h3:3",
    "a->b.enabled": "true",
    "a->b.sync.topic.acls.enabled": "true",
}
IN_STEP = {name: Entry(value, own=True) for name, value in REMOTE_CONFIG.items()}


def flow(**changes: str) -> Flow:
    return Flow.from_properties(Properties({**BASE, **changes}), "a->b")


def changes(
    source: dict[str, Entry], target: dict[str, Entry], **properties: str
) -> list[tuple[str, str | None, str | None]]:
    return [
        (str(change.name), change.before, change.after)
        for change in config_changes(flow(**properties), "t", "a.t", source, {**IN_STEP, **target})
    ]


def own(value: str) -> Entry:
    return Entry(value, own=True)


def default(value: str) -> Entry:
    return Entry(value, default=True)


def test_what_a_topic_sets_itself_is_set_and_what_it_does_not_is_reset() -> None:
    source = {"retention.ms": own("1000"), "segment.ms": default("9"), "cleanup.policy": own("compact")}
    target = {"retention.ms": default("7"), "segment.ms": own("5"), "cleanup.policy": own("compact")}
    assert changes(source, target) == [("retention.ms", None, "1000"), ("segment.ms", "5", None)]


def test_excluded_fixed_and_static_properties_are_left_alone() -> None:
    source = {
        "min.insync.replicas": own("2"),
        "unclean.leader.election.enable": own("true"),
        "secret": Entry("x", own=True, fixed=True),
        "segment.bytes": Entry("1", static=True),
        "retention.ms": own("4"),
    }
    assert changes(source, {}) == [("retention.ms", None, "4")]
    assert changes(source, {}, **{"config.properties.exclude": "retention.*"}) == [
        ("min.insync.replicas", None, "2"),
        ("unclean.leader.election.enable", None, "true"),
    ]


def test_a_value_that_the_sources_broker_file_sets_again_ends_one_that_the_topic_had() -> None:
    source = {name: Entry("7", static=True) for name in ("retention.ms", "follower.replication.throttled.replicas")}
    source |= {"retention.bytes": own("5"), "compression.type": Entry("lz4", static=True)}
    target = {name: own("1") for name in source}
    found = [*overrides_ended(flow(), "t", "a.t", source, target)]
    assert [(change.kind, change.name, change.before, change.after) for change in found] == [
        (ChangeKind.RESET_CONFIG, "retention.ms", "1", None)
    ]
    assert not [*overrides_ended(flow(), "t", "a.t", source, dict.fromkeys(source, default("7")))]
    assert not [*overrides_ended(flow(**{"sync.topic.configs.enabled": "false"}), "t", "a.t", source, target)]


def test_the_sources_defaults_are_copied_when_asked() -> None:
    assert changes(
        {"retention.ms": default("77")}, {"retention.ms": default("5")}, **{"use.defaults.from": "source"}
    ) == [("retention.ms", None, "77")]


def test_a_property_that_the_target_does_not_know_is_left_out_under_intersection() -> None:
    source = {"confluent.tier.enable": own("true"), "retention.ms": own("4")}
    assert changes(source, {"retention.ms": default("1")}) == [
        ("confluent.tier.enable", None, "true"),
        ("retention.ms", None, "4"),
    ]
    assert changes(source, {"retention.ms": default("1")}, **{"mirrorlake.topic.configs": "intersection"}) == [
        ("retention.ms", None, "4")
    ]


def test_what_would_break_mirroring_is_raised_whatever_is_asked() -> None:
    target = {
        "message.timestamp.type": own("LogAppendTime"),
        "compression.type": default("producer"),
        "message.timestamp.before.max.ms": own("1000"),
    }
    wanted = [
        ("message.timestamp.before.max.ms", "1000", str(2**63 - 1)),
        ("message.timestamp.type", "LogAppendTime", "CreateTime"),
    ]
    for properties in ({}, {"sync.topic.configs.enabled": "false"}):
        assert changes({"compression.type": own("zstd")}, target, **properties) == wanted


@pytest.mark.parametrize(
    ("source", "target", "after"),
    [
        (default("1048588"), default("1048588"), None),
        (default("1048588"), own("500"), "1048588"),
        (own("2000000"), default("1048588"), "2000000"),
        (default("1048588"), default("1000"), "1048588"),
        (Entry("9000000", static=True), default("1048588"), "9000000"),
        (own("500"), default("1048588"), "500"),
        (default("1048588"), own("2000000"), "2000000"),  # raised for what a transform makes: the remedy stays
    ],
)
def test_the_largest_message_of_the_source_always_fits(source: Entry, target: Entry, after: str | None) -> None:
    found = changes({"max.message.bytes": source}, {"max.message.bytes": target})
    effective = found[0][2] if found else target.value
    assert int(effective or 1048588) >= int(source.value or 0)
    if after is not None:
        assert effective in (after, None)


def test_a_new_topic_is_created_with_the_sources_configuration_and_what_mirroring_needs() -> None:
    source = {
        "retention.ms": own("5"),
        "segment.ms": default("9"),
        "compression.type": own("gzip"),
        "max.message.bytes": Entry("3000000", static=True),
    }
    change, config = creation(
        flow(**{"target.topic.creation.min.insync.replicas": "2", "target.topic.creation.partitions": "6"}),
        "t",
        "a.t",
        3,
        source,
    )
    assert config == {"retention.ms": "5", "max.message.bytes": "3000000", "min.insync.replicas": "2", **REMOTE_CONFIG}
    assert (change.after, "replication factor 2" in str(change.note)) == ("6", True)


def test_a_new_topic_has_from_the_beginning_what_both_clusters_know() -> None:
    source = {"retention.ms": own("-1"), "cleanup.policy": own("compact"), "vendor.only": own("x")}
    known = [*REMOTE_CONFIG, "retention.ms", "cleanup.policy"]
    _, config = creation(flow(**{"mirrorlake.topic.configs": "intersection"}), "t", "a.t", 3, source, known)
    assert config == {"retention.ms": "-1", "cleanup.policy": "compact", **REMOTE_CONFIG}, (
        "with the target's retention, old records would be deleted before the next comparison"
    )


def test_what_mirrorlake_has_set_is_known_from_the_creation_of_a_topic_on() -> None:
    source = {"retention.ms": own("3600000"), "cleanup.policy": own("compact,delete"), "segment.ms": own("9")}
    created, config = creation(flow(), "t", "a.t", 3, source)
    changes = [
        asdict(created),
        asdict(Change(ChangeKind.SET_CONFIG, "t", "a.t", "retention.ms", "3600000", "7200000")),
        asdict(Change(ChangeKind.RESET_CONFIG, "t", "a.t", "segment.ms", "9", None)),
        asdict(Change(ChangeKind.SET_CONFIG, "u", "a.u", "segment.ms", None, "5")),
    ]
    expected = {("a.t", name): value for name, value in config.items() if name != "segment.ms"}
    assert configs_set(changes[:1]) == expected | {("a.t", "segment.ms"): "9"}
    assert configs_set(changes) == expected | {("a.t", "retention.ms"): "7200000", ("a.u", "segment.ms"): "5"}
    anew = configs_set([*changes, asdict(creation(flow(), "t", "a.t", 3, {})[0])])
    assert ("a.t", "retention.ms") not in anew, "it was deleted and created anew"


def test_topics_grow_and_never_shrink() -> None:
    assert [(change.before, change.after) for change in growth("t", "a.t", 2, 5)] == [("2", "5")]
    assert not list(growth("t", "a.t", 5, 2))


def acl(
    name: str,
    operation: str = "READ",
    permission: str = "ALLOW",
    pattern: str = "LITERAL",
    principal: str = "User:CN=x, OU=y",
) -> Acl:
    return Acl(name, pattern, principal, "*", operation, permission)


def acls(
    source: list[Acl], target: list[Acl] | None = None, given: list[Acl] | None = None, **properties: str
) -> list[tuple[str, str]]:
    found = acl_changes(flow(**properties), source, target or [], given or [], ["orders", "payments"])
    return [(change.kind.value, str(change.after or change.before)) for change in found]


def test_reading_is_passed_on_and_writing_never() -> None:
    source = [
        acl("orders", operation)
        for operation in ("READ", "WRITE", "ALTER", "DELETE", "CREATE", "ALTER_CONFIGS", "DESCRIBE")
    ]
    assert acls(source) == [
        ("create_acl", str(acl("a.orders", "DESCRIBE"))),
        ("create_acl", str(acl("a.orders", "READ"))),
    ]
    assert acls([acl("orders", "ALL")]) == [("create_acl", str(acl("a.orders", "READ")))]


def test_who_may_not_read_may_not_read_the_copy_and_the_mirror_is_never_locked_out() -> None:
    assert acls([acl("orders", "ALL", "DENY"), acl("orders", "WRITE", "DENY")]) == [
        ("create_acl", str(acl("a.orders", "READ", "DENY")))
    ]


def test_one_who_is_denied_what_everybody_is_allowed_is_denied_it_after_a_failover_too() -> None:
    everybody, mallory = "User:*", "User:mallory"
    reads = acl("orders", principal=everybody)
    joins = replace(acl("*", principal=everybody), resource=GROUP)
    denied = replace(acl("payments", permission="DENY", principal=mallory), resource=GROUP)
    found = set(equal_acls(flow(), [reads, joins, denied], ["orders"]))
    assert found == {replace(reads, name="a.orders"), joins, denied}


def test_prefixes_and_the_wildcard_are_carried_over_where_they_mean_the_same() -> None:
    assert acls([acl("ord", pattern="PREFIXED"), acl("nothing", pattern="PREFIXED")]) == [
        ("create_acl", str(acl("a.ord", pattern="PREFIXED")))
    ]
    assert acls([acl("*")]) == [("create_acl", str(acl("a.", pattern="PREFIXED")))]
    identity = {"replication.policy.class": "IdentityReplicationPolicy"}
    assert acls([acl("ord", pattern="PREFIXED")], **identity) == [("create_acl", str(acl("orders")))], (
        "the prefix may cover topics of the target's own"
    )
    assert acls([acl("*")], **identity) == [("create_acl", str(acl("orders"))), ("create_acl", str(acl("payments")))]


def test_a_prefix_that_also_covers_topics_of_another_cluster_becomes_rights_on_single_topics() -> None:
    literal = [("create_acl", str(acl("a-orders"))), ("create_acl", str(acl("a-payments")))]
    near = {"clusters": "a, b, a-east", "replication.policy.separator": "-"}
    assert acls([acl("*")], **near) == literal, "a- is the beginning of a-east-orders, too"
    near["clusters"] = "a, b, a-o"
    assert acls([acl("or", pattern="PREFIXED")], **near) == [("create_acl", str(acl("a-or", pattern="PREFIXED")))]
    near["clusters"] = "a, b, a-or"
    assert acls([acl("or", pattern="PREFIXED")], **near) == literal[:1]
    near["clusters"] = "a, b, c"
    assert acls([acl("*")], **near) == [("create_acl", str(acl("a-", pattern="PREFIXED")))]


def test_a_remote_name_that_no_topic_can_have_gives_nobody_anything_and_stops_no_other_right() -> None:
    rename = {"topics.rename.regex": r"(.*)ments", "topics.rename.replacement": "all $1"}
    assert acls([acl("orders"), acl("payments")], **rename) == [("create_acl", str(acl("orders")))]


def test_topics_that_are_not_mirrored_give_nobody_anything() -> None:
    assert acls([acl("other")], topics="orders") == []


def test_what_is_denied_stays_denied_as_long_as_the_source_denies_it() -> None:
    """The remote topic of one that is gone, or is not mirrored any more, keeps its records."""
    prefixed = acl("secret", permission="DENY", pattern="PREFIXED")
    literal = acl("gone", permission="DENY")
    for source, given in ((prefixed, replace(prefixed, name="a.secret")), (literal, replace(literal, name="a.gone"))):
        assert acls([source], [given], [given], topics="orders") == []
        of_another = replace(source, principal="User:z")
        assert acls([of_another], [given], [given], topics="orders") == [("delete_acl", str(given))]
        assert acls([], [given], [given], topics="orders") == [("delete_acl", str(given))]
    identity = {"replication.policy.class": "IdentityReplicationPolicy"}
    there = acl("secret.1", permission="DENY")
    assert acls([prefixed], [there], [there], **identity) == []
    assert ("delete_acl", str(there)) in acls([literal], [there], [there], **identity)
    allowed = acl("gone")
    assert acls([], [replace(allowed, name="a.gone")], [replace(allowed, name="a.gone")])[0][0] == "delete_acl"


def test_only_what_was_given_here_is_taken_back() -> None:
    mine, theirs = acl("a.orders"), acl("a.payments", principal="User:z")
    assert acls([], [mine, theirs], [mine]) == [("delete_acl", str(mine))]
    assert acls([acl("orders")], [mine], [mine]) == []


@pytest.mark.parametrize(("configs", "tries"), [("intersection", 2), ("all", 1)])
def test_a_value_that_the_target_refuses_holds_no_new_topic_under_intersection(configs: str, tries: int) -> None:
    source = {"remote.storage.enable": own("true"), "max.message.bytes": own("2000000"), "retention.ms": own("-1")}
    chosen = flow(**{"mirrorlake.topic.configs": configs})
    change, config = creation(chosen, "t", "a.t", 1, source, [*REMOTE_CONFIG, *source])
    tried = list[dict[str, str]]()

    def create(topics: Any) -> dict[str, TargetError]:
        tried.extend(dict(topic.config) for topic in topics)
        is_refused = "remote.storage.enable" in tried[-1]
        return {"a.t": TargetError("tiered storage is disabled")} if is_refused else {}

    altered = Mock(return_value={})
    refused = ChangeMaker(Mock(create=create, alter_configs=altered), Mock()).make(chosen, [change], {"a.t": config})
    assert (len(tried), bool(refused)) == (tries, configs == "all")
    if tries == 2:
        assert tried[1] == {"max.message.bytes": "2000000", **REMOTE_CONFIG}
        left_out = {name: value for name, value in config.items() if name not in tried[1]}
        assert [call.args for call in altered.mock_calls] == [({"a.t": left_out},)], "before any record is copied"


@pytest.mark.parametrize("configs", ["all", "intersection"])
def test_a_target_before_kafka_3_6_of_which_nothing_is_known_yet_gets_topics_that_it_understands(configs: str) -> None:
    source = {"cleanup.policy": own("compact")}
    chosen = flow(**{"mirrorlake.topic.configs": configs})
    change, config = creation(chosen, "t", "a.t", 1, source)
    made = list[dict[str, str]]()

    def create(topics: Any) -> dict[str, TargetError]:
        (topic,) = topics
        for name in topic.config:
            if name in TIMESTAMP_BOUNDS:
                return {"a.t": TargetError(f"Unknown topic config name: {name}")}
        made.append(dict(topic.config))
        return {}

    assert not ChangeMaker(Mock(create=create), Mock()).make(chosen, [change], {"a.t": config})
    assert made == [
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "message.timestamp.type": "CreateTime",
            "message.timestamp.difference.max.ms": str(2**63 - 1),
        }
    ]


def test_topics_that_are_merged_take_the_largest_message_of_all() -> None:
    assert largest_message([{"max.message.bytes": own("5")}, {}, {"max.message.bytes": default("7")}]) == {
        "max.message.bytes": default("7")
    }
    assert largest_message([{}]) == {}


def test_an_access_right_that_covers_no_topic_stops_no_other_one() -> None:
    odd = [acl("orders payments"), acl("orders "), acl("orders\n"), replace(acl("orders"), host="h 1")]
    revoked = acl("a.payments", principal="User:z")
    assert acls([*odd, acl("orders")], [revoked], [revoked]) == [
        ("create_acl", str(acl("a.orders"))),
        ("delete_acl", str(revoked)),
    ]


def test_who_may_read_a_topic_that_is_held_may_read_no_other_one_of_the_same_remote_name() -> None:
    rename = {"topics.rename.regex": r".*\.orders", "topics.rename.replacement": "all"}
    given = [acl("us.orders", principal="User:bob"), acl("eu.orders", principal="User:ann")]
    found = [str(change.after) for change in acl_changes(flow(**rename), given, [], [], ["eu.orders"])]
    assert found == [str(acl("all", principal="User:ann"))]
    kept = acl("all", principal="User:ann")
    assert [*acl_changes(flow(**rename), given[1:], [kept], [kept], ["x"])] == [], "a topic that is gone takes no right"


def test_an_access_right_survives_its_description() -> None:
    for right in (
        acl("a.orders"),
        acl("x", "ALL", "DENY", "PREFIXED", "User:CN=a from b on c, O=d"),
        acl("a.orders", principal="User:a\nb"),
    ):
        assert Acl.parse(str(right)) == right


class Syncs:
    """Administers a target whose offset-syncs topic has this configuration, as far as the principal may see it."""

    def __init__(self, **config: str) -> None:
        self.config = {name.replace("_", "."): own(value) for name, value in config.items()}

    def partitions(self) -> dict[str, int]:
        return {flow().offset_syncs_topic: 2}

    def configs(self, topics: list[str]) -> dict[str, dict[str, Entry]]:
        return dict.fromkeys(topics, self.config) if self.config else {}


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        ({"cleanup_policy": "delete", "retention_ms": "-1", "retention_bytes": "-1"}, None),
        ({"cleanup_policy": "compact", "retention_ms": "-1"}, "cleanup.policy = compact, so"),
        ({"cleanup_policy": "delete", "retention_ms": "604800000", "retention_bytes": "9"}, "retention.bytes = 9, so"),
    ],
)
def test_states_are_not_written_as_changes_to_a_topic_that_loses_their_snapshots(
    config: dict[str, str], wrong: str | None
) -> None:
    target: Any = Syncs(**config)
    changed = {"mirrorlake.state.changes.enabled": "true"}
    for setting, loses_states in (("", wrong is not None), ("false", False)):
        by_default = {name: setting for name in changed if setting}
        own = OwnTopics(flow(**by_default), target)
        assert own.ensure_offset_syncs(1) == 2, "a flow that went on before goes on"
        assert own.loses_states == loses_states
    own = OwnTopics(flow(**changed), target)
    if wrong is None:
        assert own.ensure_offset_syncs(1) == 2
    else:
        with pytest.raises(ConfigurationError, match=wrong):
            own.ensure_offset_syncs(1)


def test_states_are_written_as_changes_to_a_topic_that_may_not_be_described_only_if_the_file_asks_for_it() -> None:
    target: Any = Syncs()  # compacted, perhaps: the snapshot of changes would be gone at the next start
    for given, loses_states in ((dict[str, str](), True), ({"mirrorlake.state.changes.enabled": "true"}, False)):
        own = OwnTopics(flow(**given), target)
        assert own.ensure_offset_syncs(1) == 2
        assert own.loses_states == loses_states


@pytest.mark.parametrize(
    ("sizes", "portions_"),
    [
        ([], []),
        ([1] * 3, [[1, 1, 1]]),
        ([RECORDS_AT_ONCE, 1], [[RECORDS_AT_ONCE], [1]]),
        ([RECORDS_AT_ONCE - 1, 1, 1], [[RECORDS_AT_ONCE - 1, 1], [1]]),
        ([2 * RECORDS_AT_ONCE, 1], [[2 * RECORDS_AT_ONCE], [1]]),
    ],
)
def test_an_administrative_request_has_no_more_than_a_controller_takes(
    sizes: list[int], portions_: list[list[int]]
) -> None:
    assert [*portions(sizes, lambda size: size, RECORDS_AT_ONCE)] == portions_


def test_configurations_are_described_in_portions_that_come_through_a_slow_line() -> None:
    assert [*portions(range(5), lambda _: 1, at_most=2)] == [[0, 1], [2, 3], [4]]
    asked = list[int]()
    admin, topics = object.__new__(Admin), [f"t{number}" for number in range(DESCRIBED_AT_ONCE + 1)]

    def describe(resources: list[Any], **_: Any) -> dict[Any, Any]:
        asked.append(len(resources))
        return dict.fromkeys(resources)

    with patch.object(Admin, "client", Mock(describe_configs=describe)):
        assert [topic for topic, _ in admin._described(topics)] == topics
    assert asked == [DESCRIBED_AT_ONCE, 1]
