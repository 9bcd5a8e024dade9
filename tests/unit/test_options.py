"""The table of options, and everything that derives from it."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from mirrorlake.config import reload
from mirrorlake.config.flow import Flow, MirrorMakerSettings
from mirrorlake.config.known_properties import ACTED_ON, ACTED_ON_BELOW, WITHOUT_EFFECT
from mirrorlake.config.name_filter import NameFilter
from mirrorlake.config.option import LARGEST, Flag, Integer, Names, OneOf, Option, Patterns, Text
from mirrorlake.config.options import CLIENTS, CONFIG_PROPERTIES_EXCLUDE, OPTIONS, REGISTRIES, TABLES, find
from mirrorlake.config.properties import Properties
from mirrorlake.config.replication_policy import DefaultReplicationPolicy
from mirrorlake.config.start import Start
from mirrorlake.errors import ConfigurationError

from tools.option_tables import PAGE, rewrite

BASE = {"clusters": "a, b", "a.bootstrap.servers": "h1:1", "b.bootstrap.servers": "h3:3", "a->b.enabled": "true"}
OF_A_FLOW = [option for option in OPTIONS if "<" not in option.name and option.name not in ("clusters", "enabled")]
CHECKED = [option for option in OF_A_FLOW if not isinstance(option.kind, Text | Names)]


def flow(**changes: str) -> Flow:
    return Flow.from_properties(Properties({**BASE, **changes}), "a->b")


def edges(option: Option) -> tuple[list[str], list[str]]:
    """Returns the extreme allowed values of an option, and the nearest values that are not allowed."""
    match option.kind:
        case Flag():
            return ["true", "False", " TRUE "], ["", "yes", "1"]
        case OneOf(words):
            return list(words), ["", words[0].upper(), "other"]
        case Integer(minimum, maximum, also):
            others = [] if also is None else [str(also)]
            return (
                [str(minimum), f" {maximum} ", *others],
                ["", "1.5", "many", str(maximum + 1), *({str(minimum - 1)} - set(others))],
            )
    raise TypeError(option.kind)


def test_every_default_is_allowed() -> None:
    for option in OPTIONS:
        if option.default:
            option.kind.parse(option.kind.normalize(option.default))
    assert [option.name for option in CHECKED if not option.default] == ["target.topic.creation.replication.factor"]


def test_the_defaults_of_a_flow() -> None:
    found = flow()
    policy = DefaultReplicationPolicy("a")
    expected = {
        "source": "a",
        "target": "b",
        "policy": policy,
        "policy_back": None,
        "topics": NameFilter("topics", (".*",), (r"mm2.*\.internal", r".*\.replica", "__.*")),
        "groups": NameFilter("groups", (".*",), ("console-consumer-.*", "connect-.*", "__.*")),
        "replication_factor": 2,
        "offset_syncs_replication_factor": 3,
        "refresh_topics_interval_s": 600,
        "refresh_groups_interval_s": 600,
        "emit_checkpoints_interval_s": 5,
        "sync_group_offsets_enabled": False,
        "sync_group_offsets_interval_s": 0,
        "slots": 0,
        "batch_max_records": 5_000_000,
        "batch_max_transformed_records": 200_000,
        "batch_max_bytes": 1 << 30,
        "batch_max_ms": 5_000,
        "batch_memory_bytes": 48 << 20,
        "batch_max_decompressed_bytes": 256 << 20,
        "fetch_connections": 0,
        "max_bytes_per_s": 0,
        "backfill_max_bytes_per_s": 0,
        "linger_ms": 0,
        "backfill_topics": NameFilter("mirrorlake.backfill.topics", ()),
        "produce_connections": 0,
        "transaction_timeout_ms": 60_000,
        "retry_timeout_ms": 300_000,
        "connect_timeout_ms": 30_000,
        "ledger_interval_s": 30,
        "state_changes_enabled": True,
        "state_changes_required": False,
        "same_cluster_allowed": False,
        "sync_topic_configs_enabled": True,
        "sync_topic_configs_interval_s": 600,
        "config_properties_excluded": NameFilter(
            "config.properties.exclude", tuple(name.strip() for name in CONFIG_PROPERTIES_EXCLUDE.split(","))
        ),
        "use_defaults_from": "target",
        "topic_configs": "all",
        "topic_creation": (),
        "topic_creation_partitions": 1,
        "sync_topic_acls_enabled": False,
        "sync_topic_acls_interval_s": 600,
        "heartbeats_replication_enabled": True,
        "emit_heartbeats_enabled": False,
        "emit_heartbeats_back": False,
        "emit_heartbeats_interval_s": 1,
        "heartbeats_replication_factor": 3,
        "emit_checkpoints_enabled": True,
        "checkpoints_replication_factor": 3,
        "emit_offset_syncs_enabled": False,
        "offset_syncs_location": "source",
        "mirrormaker": MirrorMakerSettings("a-mm2", "mm2-offsets.a.internal", -1, "read_uncommitted"),
        "start": Start(),
        "paused": False,
        "topics_paused": NameFilter("mirrorlake.topics.paused", ()),
        "topics_shared": False,
        "records": "all",
        "minds_provenance": False,
        "bringers": (),
        "passes_over_losses": False,
        "lag_interval_s": 60,
        "metrics_port": 0,
        "metrics_host": "127.0.0.1",
        "metrics_health_s": 300,
        "metrics_detailed": False,
        "metrics_otlp_endpoint": "",
        "metrics_otlp_headers": "",
        "metrics_otlp_interval_s": 60,
        "canary_enabled": False,
        "canary_interval_s": 10,
        "canary_record_sla_ms": 10_000,
        "canary_group_sla_ms": 60_000,
        "canary_objective_percent": 99,
        "shares_by_default": False,
        "other_prefixes": (),
        "transforms": (),
        "remote_topics_writer": "",
        "dead_letter_topic": "mirrorlake.dead-letters.a",
        "dead_letters_on_source": frozenset(),
        "registries": None,
        "warnings": (),
        "refills": (),
        "ignores_pause": False,
        "loses_states": False,
    }
    connections = {"source_connection", "target_connection"}
    names = [field.name for field in dataclasses.fields(Flow) if field.name not in connections]
    assert {name: getattr(found, name) for name in names} == expected


@pytest.mark.parametrize("option", CHECKED, ids=lambda option: option.name)
@pytest.mark.parametrize("prefix", ["", "b.", "a->b."])
def test_values_at_the_edge_are_taken_and_those_beyond_it_refused(option: Option, prefix: str) -> None:
    allowed, refused = edges(option)
    for text in allowed:
        scope = Properties({**BASE, f"{prefix}{option.name}": text}).scope("a->b")
        assert scope.read(option.name) == option.kind.parse(option.kind.normalize(text.strip()))
    for text in refused:
        with pytest.raises(ConfigurationError) as raised:
            flow(**{f"{prefix}{option.name}": text})
        said, _, _ = raised.value.message.partition(". To switch this off")
        assert said == (
            f"flow a->b: property {option.name} is '{option.kind.normalize(text)}' in the configuration; allowed is "
            f"{option.kind.allowed}"
        )


def test_allowed_values_are_said_in_words() -> None:
    kinds = (Flag(), OneOf(("a", "b")), Integer(1), Integer(0, 9), Integer(1, also=0), Integer(1, 9, also=-1))
    assert [kind.allowed for kind in kinds] == [
        "true or false",
        "a or b",
        "a whole number from 1 up",
        "a whole number from 0 to 9",
        "a whole number from 1 up, or 0",
        "a whole number from 1 to 9, or -1",
    ]
    assert Integer(1).parse(str(LARGEST)) == LARGEST


def test_every_field_of_a_flow_is_fed_by_options_or_known_not_to_be() -> None:
    fed = {option.field for option in OPTIONS if option.field}
    assert {field.name for field in dataclasses.fields(Flow)} - fed == {
        "source",
        "target",
        "source_connection",
        "target_connection",
        "dead_letters_on_source",
        "emit_heartbeats_back",
        "minds_provenance",
        "other_prefixes",
        "policy_back",
        "bringers",
        "ignores_pause",
        "loses_states",
        "refills",
        "shares_by_default",
        "state_changes_required",
        "warnings",
    }
    assert fed <= {field.name for field in dataclasses.fields(Flow)}


def test_a_field_that_is_not_derived_has_one_option_or_is_a_filter() -> None:
    by_field = defaultdict(list)
    for option in OPTIONS:
        by_field[option.field].append(option)
    for field, found in by_field.items():
        assert len({option.is_derived for option in found}) == 1, field
        assert len({option.is_live for option in found}) == 1, field
        if field and not found[0].is_derived:
            assert len(found) == 1 or all(isinstance(option.kind, Patterns) for option in found), field


def test_no_property_is_in_the_tables_twice() -> None:
    names = [option.name for option in OPTIONS]
    assert len(names) == len(set(names))
    known = [use.name for use in WITHOUT_EFFECT]
    assert len(known) == len(set(known))
    assert [name for name in known if name in ACTED_ON or name.startswith(ACTED_ON_BELOW)] == []


def test_an_option_is_found_with_any_text_for_its_placeholders() -> None:
    for option in OPTIONS:
        assert find(option.name) is option
    assert find("mirrorlake.transform.mask.value.schema.ids").name == "mirrorlake.transform.<name>.value.schema.ids"
    assert find("mirrorlake.start.topic.orders.eu").name == "mirrorlake.start.topic.<topic>"
    with pytest.raises(KeyError):
        find("mirrorlake.start.topic.")


def test_the_report_on_a_file_knows_every_option() -> None:
    names = [
        re.sub(r"<\w+>", "a", option.name)
        for option in (*OF_A_FLOW, *CLIENTS, *REGISTRIES, *(option for option in OPTIONS if "<" in option.name))
    ]
    found = Properties({**BASE, **dict.fromkeys(names, "x")}).report()
    assert {use.name for use in found if use.status != "supported"} == set()
    assert ACTED_ON_BELOW == (
        "config.providers.",
        "mirrorlake.start.topic.",
        "mirrorlake.transform.",
        "target.topic.creation.",
    )


def test_what_a_running_job_takes_over() -> None:
    assert sorted(reload.LIVE) == [
        "backfill_max_bytes_per_s",
        "backfill_topics",
        "batch_max_bytes",
        "batch_max_records",
        "batch_memory_bytes",
        "config_properties_excluded",
        "dead_letters_on_source",
        "fetch_connections",
        "linger_ms",
        "max_bytes_per_s",
        "paused",
        "produce_connections",
        "refresh_topics_interval_s",
        "remote_topics_writer",
        "replication_factor",
        "start",
        "sync_topic_acls_enabled",
        "sync_topic_acls_interval_s",
        "sync_topic_configs_enabled",
        "sync_topic_configs_interval_s",
        "topic_configs",
        "topic_creation",
        "topic_creation_partitions",
        "topics",
        "topics_paused",
        "use_defaults_from",
        "warnings",
    ]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path of a property file whose changes count at once."""
    monkeypatch.setattr(reload, "SETTLING_S", 0.0)
    return tmp_path / "mm2.properties"


@pytest.fixture
def write(file: Path) -> Callable[..., None]:
    """Returns what writes that file: BASE, with changes."""

    def written(**changes: str) -> None:
        file.write_text("".join(f"{name} = {value}\n" for name, value in {**BASE, **changes}.items()))

    return written


def test_what_has_changed_since_a_flow_was_read_is_a_change_also_for_a_reader_that_begins_later(
    file: Path, write: Callable[..., None]
) -> None:
    """The planner begins when Spark runs, or after a pause, with the flow and the version of the file it is of."""
    write()
    driver = reload.LiveFlow(file, Flow.load(file, "a->b"))
    write(**{"topics.exclude": "two"})
    planner = reload.LiveFlow(file, driver.flow, seen=driver.seen)
    for reader in (driver, planner):
        (notice,) = reader.poll()
        assert notice.event == "configuration_changed"
        assert not reader.flow.mirrors_topic("two")


def test_a_topic_waits_for_the_transform_that_was_added_with_it(file: Path, write: Callable[..., None]) -> None:
    write(**{"topics.exclude": "customers"})
    live = reload.LiveFlow(file, Flow.load(file, "a->b"))
    mask = {"mirrorlake.transform.mask.topics": "customers", "mirrorlake.transform.mask.value": "sha2(value, 256)"}
    write(**{"mirrorlake.transforms": "mask"}, **mask)
    *_, notice = live.poll()  # before it, that the exclusions by default are in effect
    assert (notice.event, notice.is_warning) == ("configuration_deferred", True)
    assert "topics, transforms takes effect when the job is started again." in notice.detail
    assert not live.flow.mirrors_topic("customers")
    write(**{"mirrorlake.transforms": "mask", "mirrorlake.topics.paused": "one", "mirrorlake.paused": "true"}, **mask)
    changed, deferred = live.poll()
    assert (changed.event, deferred.event) == ("configuration_changed", "configuration_deferred")
    assert live.flow.paused, "what holds back more takes effect at once"
    assert live.flow.topics_paused.include == ("one",)
    assert not live.flow.mirrors_topic("customers")
    write(**{"mirrorlake.transforms": "mask"}, **mask)
    assert [notice.event for notice in live.poll()] == ["configuration_deferred"]
    assert live.flow.paused, "and less does not"
    write()
    assert [notice.event for notice in live.poll()] == ["configuration_changed"]
    assert live.flow.mirrors_topic("customers")


def test_a_topic_waits_for_the_name_that_was_given_with_it(file: Path, write: Callable[..., None]) -> None:
    write(topics="one")
    live = reload.LiveFlow(file, Flow.load(file, "a->b"))
    renamed = {"topics.rename.regex": "(two)", "topics.rename.replacement": "legacy-$1"}
    write(topics="one, two", **renamed, **{"mirrorlake.topics.paused": "one"})
    changed, deferred = live.poll()
    assert (changed.event, deferred.event) == ("configuration_changed", "configuration_deferred")
    assert "policy" in deferred.detail
    assert (live.flow.mirrors_topic("two"), live.flow.is_paused("one")) == (False, True)
    assert "topics" in deferred.detail.split(" takes effect")[0]
    write(topics="one", **{"topics.exclude": "one"}, **renamed)
    assert [notice.event for notice in live.poll()] == ["configuration_changed", "configuration_deferred"]
    assert not live.flow.mirrors_topic("one"), "what takes less takes effect at once"


def test_a_changed_file_takes_effect_where_its_properties_are_live(file: Path, write: Callable[..., None]) -> None:
    write()
    live = reload.LiveFlow(file, dataclasses.replace(Flow.load(file, "a->b"), loses_states=True))  # as a job has set it
    assert live.poll() == []
    live.slots = 4  # a rate that one slot can do with is too low for four
    write(**{"mirrorlake.max.bytes.per.second": "10000"})
    (notice,) = live.poll()
    assert (notice.event, live.flow.max_bytes_per_s) == ("configuration_refused", 0)
    assert "too little for 4 slots" in notice.detail
    write(**{"topics": "orders", "mirrorlake.paused": "true", "mirrorlake.slots": "7", "topic": "x"})
    changed, deferred = (
        f"{file} has changed: paused, topics now in effect",
        f"{file} has changed: slots takes effect when the job is started again",
    )
    assert live.poll() == [
        reload.Notice("configuration_changed", changed, is_warning=False),
        reload.Notice("configuration_deferred", deferred, is_warning=True),
        reload.Notice("configuration_warning", *live.flow.warnings, is_warning=True),
    ]
    assert (live.flow.paused, live.flow.topics.include, live.flow.slots, live.flow.loses_states) == (
        True,
        ("orders",),
        0,
        True,
    )
    assert live.flow.warnings == ("property topic is unknown; it has no effect (did you mean topics?)",)
    write(**{"mirrorlake.slots": "many"})
    (notice,) = live.poll()
    assert (notice.event, notice.is_warning) == ("configuration_refused", True)
    assert notice.detail.startswith(f"{file} has changed and is not used: flow a->b: property mirrorlake.slots is 'ma")
    assert live.flow.paused


def test_the_page_has_the_tables_of_the_options() -> None:
    page = PAGE.read_text()
    assert re.findall(r"<!-- options: (.+) -->", page) == list(TABLES)
    assert page.count("<!-- end of options -->") == len(TABLES)
    assert rewrite(page) == page, "PYTHONPATH=lib .venv/bin/python tools/option_tables.py writes them"


def test_a_checkpoint_job_says_which_changes_wait_for_its_restart(file: Path, write: Callable[..., None]) -> None:
    write()
    waiting = reload.GroupsFlow(file, Flow.load(file, "a->b"))
    assert waiting.poll() == []
    write(**{"topics": "orders", "groups": "g.*", "mirrorlake.batch.max.ms": "700"})
    (notice,) = waiting.poll()
    assert notice == reload.Notice(
        "configuration_deferred",
        f"{file} has changed: groups, topics takes effect when the checkpoint job is started again",
        is_warning=True,
    )
    assert waiting.poll() == []
    write(**{"mirrorlake.batch.max.ms": "900"})
    assert waiting.poll() == [], "what the file says of groups is what the job does"
    assert not waiting.newest.is_paused("orders")
    write(**{"mirrorlake.topics.paused": "orders"})
    waiting.poll()
    assert waiting.newest.is_paused("orders"), "its groups wait for a topic that nobody mirrors"
