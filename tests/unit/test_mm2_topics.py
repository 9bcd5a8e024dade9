"""MirrorMaker 2's formats, compared with bytes that its own classes (4.1.1 and 4.3.0) have written."""

from __future__ import annotations

from unittest.mock import Mock

from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.protocol import mm2_topics
from mirrorlake.protocol.batches.messages import Message


def test_checkpoints_are_mirrormaker_twos_byte_for_byte() -> None:
    key, value = mm2_topics.checkpoint("group-1", "topic-2", 3, 4, 5, "metadata-6")
    assert key.hex(" ") == "00 07 67 72 6f 75 70 2d 31 00 07 74 6f 70 69 63 2d 32 00 00 00 03"
    assert value.hex(" ") == "00 00 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00 05 00 0a 6d 65 74 61 64 61 74 61 2d 36"


def test_a_group_without_metadata_has_an_empty_string() -> None:
    assert mm2_topics.checkpoint("g", "t", 0, 1, 2, "")[1][-2:] == b"\0\0"


def test_heartbeats_are_mirrormaker_twos_byte_for_byte() -> None:
    key, value = mm2_topics.heartbeat("source-1", "target-2", 1234567890)
    assert key.hex(" ") == "00 08 73 6f 75 72 63 65 2d 31 00 08 74 61 72 67 65 74 2d 32"
    assert value.hex(" ") == "00 00 00 00 00 00 49 96 02 d2"


def test_offset_syncs_are_mirrormaker_twos_byte_for_byte() -> None:
    key, value = mm2_topics.offset_sync("topic-1", 2, 3, 4)
    assert key.hex(" ") == "00 07 74 6f 70 69 63 2d 31 00 00 00 02"
    assert value.hex(" ") == "00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 04"


def test_a_checkpoint_is_read_as_it_was_written_and_what_is_none_is_left_out() -> None:
    key, value = mm2_topics.checkpoint("größe->1", "us.orders", 3, 1 << 40, 5, "é")
    wrong = [
        (key, None),
        (None, value),
        (key[:-1], value),
        (key + b"x", value),
        (key, value[:-1]),
        (key, b"\0\1" + value[2:]),
        mm2_topics.heartbeat("a", "b", 1),
        (b"\xff\xff", b""),
    ]
    messages = [Message(number, 7, *pair, ()) for number, pair in enumerate([*wrong, (key, value)])]
    assert [*mm2_topics._checkpoints(messages)] == [("größe->1", "us.orders", 3, 1 << 40, 5, "é", 7)]


def test_a_topic_whose_transform_spreads_its_partitions_has_no_offset_syncs() -> None:
    properties = {
        "clusters": "a, b",
        "a.bootstrap.servers": "h:1",
        "b.bootstrap.servers": "h:2",
        "a->b.enabled": "true",
        "emit.offset-syncs.enabled": "true",
        "mirrorlake.transforms": "spread",
        "mirrorlake.transform.spread.topics": "spread",
        "mirrorlake.transform.spread.partition": "0",
    }
    emitter = mm2_topics.Emitter(Flow.from_properties(Properties(properties), "a->b"))
    written = list[mm2_topics.Mm2Record]()
    emitter._offset_syncs = Mock(write=written.extend)
    run = {"partition": 0, "upstream_start": 3, "upstream_end": 5, "downstream_start": 7, "downstream_end": 9}
    emitter.offset_syncs([{**run, "topic": "spread"}, {**run, "topic": "plain"}])
    assert [record[:2] for record in written] == [mm2_topics.offset_sync("plain", 0, *at) for at in ((3, 7), (4, 8))]
