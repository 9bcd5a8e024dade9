"""Schema ids become those of the target's registry; one schema has different ids in two real registries."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import requests
from confluent_kafka import Producer
from mirrorlake.config.registry import SchemaRegistry
from mirrorlake.errors import ConfigurationError, SourceError
from mirrorlake.local.ports import free_port
from mirrorlake.transforms.schema_ids import SchemaIds

from tests.world import World, eventually

API = "/apis/ccompat/v7"
ORDER = {"schema": json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})}
OTHER = {"schema": json.dumps({"type": "record", "name": "Other", "fields": [{"name": "x", "type": "string"}]})}
JSON_SCHEMA = {
    "schemaType": "JSON",
    "schema": json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}}),
}


@contextmanager
def running_registry(jars: Path, log: Path, wanted: int) -> Iterator[str]:
    port = free_port(wanted)
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    (jar,) = jars.glob("*-runner.jar")
    with log.open("w") as output:
        process = subprocess.Popen(
            ["java", *options, "-jar", str(jar)], cwd=jars, stdout=output, stderr=output, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}{API}"
        eventually(lambda: answers(url), 120, f"the registry at {url}")
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/subjects", timeout=2).ok
    except requests.RequestException:
        return False


@pytest.fixture(scope="module")
def registries(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    logs = tmp_path_factory.mktemp("registries")
    with ExitStack() as stack:
        yield tuple(
            stack.enter_context(running_registry(root / ".local/jars/registry", logs / name, 28_081 + at))
            for at, name in enumerate(("source", "target"))
        )


def register(url: str, subject: str, schema: dict[str, str]) -> int:
    response = requests.post(f"{url}/subjects/{subject}/versions", json=schema, timeout=10)
    assert response.ok, response.text
    return response.json()["id"]


def wire(schema_id: int, data: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + data


def test_ids_are_those_of_the_target_and_the_rest_of_a_value_stays_as_it_is(
    world: World, registries: tuple[str, str]
) -> None:
    source, target = registries
    topic = world.topic("ids", 1)
    ids = [register(source, f"{topic}-value", schema) for schema in (ORDER, JSON_SCHEMA)]
    for number in range(3):  # so that ids differ on both sides
        register(
            target,
            f"elsewhere-{topic}-{number}",
            {"schema": json.dumps({"type": "record", "name": f"E{number}", "fields": []})},
        )
    world.write_config(
        **{
            "mirrorlake.transforms": "ids",
            "mirrorlake.transform.ids.topics": topic,
            "mirrorlake.transform.ids.value.schema.ids": "translate",
            f"{world.alias}.schema.registry.url": source,
            "t.schema.registry.url": target,
        }
    )
    producer = Producer({"bootstrap.servers": world.source_servers, "log_level": 0})
    for number in range(20):
        producer.produce(
            topic, wire(ids[number % 2], f"data {number}".encode()) if number != 7 else None, b"k", partition=0
        )
    assert producer.flush(30) == 0
    assert world.mirror().records == 20
    there = [register(target, f"{world.remote(topic)}-value", schema) for schema in (ORDER, JSON_SCHEMA)]
    assert set(there).isdisjoint(ids)
    values = [value for _, (_, value, _, _) in world.target_records(topic)[0]]
    assert values == [
        wire(there[number % 2], f"data {number}".encode()) if number != 7 else None for number in range(20)
    ]
    for schema_id, schema in zip(there, (ORDER, JSON_SCHEMA), strict=True):
        assert json.loads(requests.get(f"{target}/schemas/ids/{schema_id}", timeout=10).json()["schema"]) == json.loads(
            schema["schema"]
        )
    world.assert_accounted(topic)


def test_a_value_without_a_schema_that_is_known_stops_the_flow_and_says_why(
    world: World, registries: tuple[str, str]
) -> None:
    topic = world.topic("unknown", 1)
    world.write_config(
        **{
            "mirrorlake.transforms": "ids",
            "mirrorlake.transform.ids.topics": topic,
            "mirrorlake.transform.ids.value.schema.ids": "translate",
            f"{world.alias}.schema.registry.url": registries[0],
            "t.schema.registry.url": registries[1],
        }
    )
    producer = Producer({"bootstrap.servers": world.source_servers, "log_level": 0})
    producer.produce(topic, wire(9_999, b"data"), partition=0)
    assert producer.flush(30) == 0
    with pytest.raises(
        SourceError,
        match=r"offset 0: the record can't be transformed: mirrorlake\.transform\.ids\.value\.schema\.ids: schema id "
        r"9999 is not in the registry",
    ):
        world.mirror()
    assert world.target_records(topic) == {0: []}


def test_an_id_is_looked_up_once(registries: tuple[str, str]) -> None:
    first = register(registries[0], "once-value", OTHER)
    ids = SchemaIds(SchemaRegistry("a", "source", registries[0]), SchemaRegistry("b", "target", registries[1]))
    expected = ids.translated(wire(first, b"x"), "b.once-value")
    gone = SchemaIds(
        SchemaRegistry("a", "source", "http://127.0.0.1:1"), SchemaRegistry("b", "target", "http://127.0.0.1:1")
    )
    gone._known = ids._known
    assert gone.translated(wire(first, b"x"), "b.once-value") == expected
    with pytest.raises(
        SourceError, match=r"schema registry of cluster a \(http://127\.0\.0\.1:1\) can't be reached"
    ) as caught:
        gone.translated(wire(first + 1, b"x"), "b.once-value")
    assert caught.value.retriable


def test_translation_without_both_registries_is_refused(world: World) -> None:
    world.write_config(
        **{
            "mirrorlake.transforms": "ids",
            "mirrorlake.transform.ids.topics": "x",
            "mirrorlake.transform.ids.key.schema.ids": "translate",
            "t.schema.registry.url": "http://x",
        }
    )
    with pytest.raises(
        ConfigurationError,
        match=rf"mirrorlake\.transform\.ids\.key\.schema\.ids is translate, but {world.alias}\.schema\.registry\.url "
        rf"is missing",
    ):
        _ = world.flow
