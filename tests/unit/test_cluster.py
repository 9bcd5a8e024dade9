"""Metadata of a cluster: what is newer holds."""

from __future__ import annotations

from mirrorlake.protocol.cluster import Topic
from mirrorlake.protocol.group_requests import commit_group_offsets, group_offsets
from mirrorlake.state.offset_syncs import TOPIC_CONFIG, topic_config


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
