from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from mirrorlake.config.name_filter import NameFilter, split_list
from mirrorlake.config.properties import Properties
from mirrorlake.config.replication_policy import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    RenameReplicationPolicy,
    find_policy,
    policy_warnings,
    read_policy,
)
from mirrorlake.errors import ConfigurationError


@pytest.mark.parametrize(
    ("include", "exclude", "taken", "left"),
    [
        ((".*",), (), ["a", "a.b", "ä"], []),
        ((), (), [], ["a", ""]),
        (("orders", "pay.*"), (), ["orders", "payments"], ["order", "orders2", "xpay"]),
        (
            (".*",),
            (r"mm2.*\.internal", r".*\.replica", "__.*"),
            ["x.internal", "a"],
            ["mm2-offsets.a.internal", "b.replica", "__consumer_offsets"],
        ),
        (("a.b",), (), ["a.b", "axb"], ["aab2"]),
        ((r"\Qa.b\E",), (), ["a.b"], ["axb"]),
        (("(?i)Orders",), (), ["ORDERS"], []),
        ((r"\p{Lu}\w+",), (), ["Orders"], ["orders"]),
        (("[a-z&&[^x]]+",), (), ["abc"], ["axc"]),
        (("a++b",), (), ["aab"], ["ab\n"]),
    ],
)
def test_a_name_is_taken_if_an_include_matches_it_whole_and_no_exclude_does(
    include: tuple[str, ...], exclude: tuple[str, ...], taken: list[str], left: list[str]
) -> None:
    names = NameFilter("topics", include, exclude)
    assert [name for name in taken + left if name in names] == taken
    assert [name for name in taken + left if name in pickle.loads(pickle.dumps(names))] == taken


def test_a_bad_regex_is_refused_with_the_property_and_the_pattern() -> None:
    with pytest.raises(
        ConfigurationError, match=r"property groups\.exclude: 'a, \(b' is not a valid regular expression"
    ):
        NameFilter("groups", (".*",), ("a", "(b"))


def test_a_comma_always_separates() -> None:
    assert split_list(" a , b,, c ") == ("a", "b", "c")
    for cut in ("a[0-9{1,2}", "a[0-9]{1,2}", "b, pii-[0-9]{1,3}, __.*"):
        with pytest.raises(ConfigurationError, match="a comma always separates two patterns"):
            NameFilter("topics", (".*",), split_list(cut))


@pytest.mark.parametrize("pattern", ["a{", "a{x}", "(?:abc){e<=1}", "a{,2}", r"[\]]{1", "[a[b]{]{", r"\Q{\E{"])
def test_a_brace_that_java_refuses_is_refused(pattern: str) -> None:
    """The regex package would take it as text, or match approximately."""
    with pytest.raises(ConfigurationError, match="unfinished repetition"):
        NameFilter("topics", (pattern,))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("a{2}", "aa"),
        ("a{2,}", "aaa"),
        ("a{1,2}+b", "aab"),
        ("[{]a", "{a"),
        ("[a[{]]b", "{b"),
        (r"\{a}", "{a}"),
        (r"\Q{a\E}", "{a}"),
        (r"\p{Lower}\P{Lower}", "aB"),
        ("[]{]", "{"),
    ],
)
def test_a_brace_that_java_takes_is_taken(pattern: str, name: str) -> None:
    assert name in NameFilter("topics", (pattern,))


def test_default_policy_names_as_mirrormaker_does() -> None:
    policy = DefaultReplicationPolicy("us-west")
    assert policy.remote_topic("orders") == "us-west.orders"
    sources = {"a.b": "a", "a.b.c": "a", "a.": None, "a..": None, ".b": "", "a": None}
    assert {topic: policy.topic_source(topic) for topic in sources} == sources
    assert policy.upstream_topic("a.b.c") == "b.c"
    assert policy.original_topic("a.b.c") == "c"
    assert policy.is_heartbeats_topic("a.b.heartbeats")
    assert not policy.is_heartbeats_topic("source1-heartbeats")


def test_a_custom_separator_also_names_internal_topics() -> None:
    policy = DefaultReplicationPolicy("A", "__", "__")
    assert policy.remote_topic("t") == "A__t"
    assert policy.is_internal_topic("A__checkpoints__internal")
    assert policy.is_internal_topic("mm2-offset-syncs__B__internal")
    assert not policy.is_internal_topic("A.checkpoints.internal")
    assert policy.is_internal_topic("mirrorlake.dead-letters.A"), "what could not be masked goes to no third cluster"


@pytest.mark.parametrize(
    "topic",
    [
        "__consumer_offsets",
        ".hidden",
        "mm2-configs.a.internal",
        "a.checkpoints.internal",
        "mirrorlake.offset-syncs.a.internal",
    ],
)
def test_internal_topics_are_recognised(topic: str) -> None:
    assert DefaultReplicationPolicy("a").is_internal_topic(topic)


@pytest.mark.parametrize("topic", ["x.internal", "x-internal", "checkpoints.internal", "mirrorlake", "orders"])
def test_ordinary_topics_are_not_internal(topic: str) -> None:
    assert not DefaultReplicationPolicy("a").is_internal_topic(topic)


def test_a_topic_that_came_through_the_target_is_a_cycle() -> None:
    policy = DefaultReplicationPolicy("a")
    assert [policy.is_cycle(topic, "b") for topic in ("b.t", "c.b.t", "c.t", "t", "b.")] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(("alias", "separator"), [("us.east", "."), ("us_east", "_"), ("us-east-1", "-")])
def test_a_topic_that_came_through_a_target_whose_alias_has_the_separator_is_a_cycle(
    alias: str, separator: str
) -> None:
    policy = DefaultReplicationPolicy("a", separator)
    names = {f"{alias}{separator}t": True, f"x{separator}{alias}{separator}t": True, f"x{alias}{separator}t": False}
    names |= {f"{alias}t": False, alias: False}
    assert {name: policy.is_cycle(name, alias) for name in names} == names
    assert not IdentityReplicationPolicy("a", separator).is_cycle(f"{alias}{separator}t", alias)


def test_identity_policy_keeps_names_but_for_heartbeats() -> None:
    policy = IdentityReplicationPolicy("a")
    assert (
        policy.remote_topic("t"),
        policy.topic_source("t"),
        policy.upstream_topic("t"),
        policy.original_topic("x.t"),
    ) == ("t", "a", "t", "x.t")
    assert policy.remote_topic("heartbeats") == "a.heartbeats"
    assert policy.is_cycle("b.heartbeats", "b")
    assert not policy.is_cycle("b.t", "b")


@pytest.mark.parametrize(
    ("regex", "replacement", "topic", "remote"),
    [
        (r"(.*)\.v1", "$1.v2", "orders.v1", "orders.v2"),
        (r"(.*)\.v1", "$1.v2", "orders.v1.x", "orders.v1.x"),
        (r"(?<team>\w+)-(\d+)", "${team}_$2", "pay-12", "pay_12"),
        (r"prod-(.*)", "$1-dr", "prod-x", "x-dr"),
        (r"a(b)?", "c$1", "a", "c"),
        (r".*", "x", "heartbeats", "s.heartbeats"),
    ],
)
def test_a_rule_renames_names_that_match_whole_as_java_does(
    regex: str, replacement: str, topic: str, remote: str
) -> None:
    assert RenameReplicationPolicy("s", regex=regex, replacement=replacement).remote_topic(topic) == remote


@pytest.mark.parametrize("replacement", ["$3", "${nobody}"])
def test_a_replacement_that_names_no_group_is_refused(replacement: str) -> None:
    with pytest.raises(ConfigurationError, match=r"which topics.rename.regex .* does not have"):
        RenameReplicationPolicy("s", regex="(a)(b)", replacement=replacement)


def test_a_policy_of_another_package_than_mirrormaker_2s_is_not_taken_for_its_own_without_a_word() -> None:
    def warnings(name: str) -> list[str]:
        scope = Properties({"clusters": "a, b", "replication.policy.class": name}).scope("a->b")
        assert isinstance(read_policy(scope), IdentityReplicationPolicy)
        return [*policy_warnings(scope, {"MIRRORLAKE_POLICY_CLASSES": "own.IdentityReplicationPolicy"})]

    for known in ("", "org.apache.kafka.connect.mirror.", "own."):
        assert warnings(f"{known}IdentityReplicationPolicy") == []
    (told,) = warnings("com.acme.IdentityReplicationPolicy")
    assert "is com.acme.IdentityReplicationPolicy, a class that is not MirrorMaker 2's" in told


def test_an_own_policy_is_a_python_class_that_the_environment_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The property file alone makes nothing run: importing a module does."""
    (tmp_path / "own_policies.py").write_text(
        "from pathlib import Path\nfrom mirrorlake.policy import IdentityReplicationPolicy\n\n"
        "(Path(__file__).parent / 'ran').touch()\n\n\nclass Upper(IdentityReplicationPolicy):\n    def "
        "remote_topic(self, topic):\n        return topic.upper()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for others in ("", "own_policies, own_policies.Lower, own_policies.*"):
        with pytest.raises(ConfigurationError, match=r"class is 'own_policies.Upper'.*MIRRORLAKE_POLICY_CLASSES names"):
            find_policy("own_policies.Upper", {"MIRRORLAKE_POLICY_CLASSES": others})
    assert not (tmp_path / "ran").exists()
    allowed = {
        "MIRRORLAKE_POLICY_CLASSES": "own_policies.Lower,nowhere.Policy, pathlib.Path, Upper, own_policies.Upper"
    }
    assert find_policy("own_policies.Upper", allowed)("s").remote_topic("t") == "T"
    assert find_policy("own_policies.IdentityReplicationPolicy", allowed) is IdentityReplicationPolicy
    for wrong in ("own_policies.Lower", "nowhere.Policy", "pathlib.Path", "Upper"):
        with pytest.raises(ConfigurationError, match=r"replication.policy.class is"):
            find_policy(wrong, allowed)
