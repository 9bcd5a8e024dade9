"""Secrets: which processes and texts have them, and which have references only."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from mirrorlake.config import secret_reference
from mirrorlake.config.connection import Connection
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.config.registry import SchemaRegistry
from mirrorlake.config.secret_reference import REDACTED, is_secret
from mirrorlake.config.security import config_provider
from mirrorlake.errors import ConfigurationError
from mirrorlake.notebook import runtime
from mirrorlake.protocol.clients.settings import kafka_python
from mirrorlake.transforms.schema_ids import RegistryClient

CANARY = "c4nary/+&"
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{}";'
PLAIN = {"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.properties").write_text(f"password = {CANARY}\nodd = a\\\\b\n")
    (tmp_path / "s.properties").chmod(0o600)
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted/password").write_text(CANARY)
    (tmp_path / "mounted/lines").write_text(f"{CANARY}\n")
    monkeypatch.setenv("CANARY", CANARY)
    monkeypatch.setenv("QUOTED", 'with"quote')
    monkeypatch.setenv("SECRET_KAFKA_PROD_PASS_WORD", CANARY)


def connection(reference: str, *, is_shaded: bool = False, **more: str) -> Connection:
    return Connection("a", tuple({**PLAIN, "sasl.jaas.config": JAAS.format(reference), **more}.items()), is_shaded)


def test_options_of_spark_have_references_that_kafka_resolves(tmp_path: Path) -> None:
    file = tmp_path / "s.properties"
    provider = "org.apache.kafka.common.config.provider"
    mounted = tmp_path / "mounted"
    for reference, left, settings in [
        (
            "${env:CANARY}",
            "${env:CANARY}",
            {"env.class": f"{provider}.EnvVarConfigProvider", "env.param.allowlist.pattern": "CANARY"},
        ),
        (
            "${secrets:kafka-prod:pass.word}",
            "${env:SECRET_KAFKA_PROD_PASS_WORD}",
            {
                "env.class": f"{provider}.EnvVarConfigProvider",
                "env.param.allowlist.pattern": "SECRET_KAFKA_PROD_PASS_WORD",
            },
        ),
        (
            f"${{file:{file}:password}}",
            f"${{file:{file}:password}}",
            {"file.class": f"{provider}.FileConfigProvider", "file.param.allowed.paths": str(file)},
        ),
        (
            f"${{directory:{mounted}:password}}",
            f"${{directory:{mounted}:password}}",
            {"directory.class": f"{provider}.DirectoryConfigProvider", "directory.param.allowed.paths": str(mounted)},
        ),
    ]:
        options = connection(reference).spark()
        assert options["kafka.sasl.jaas.config"] == JAAS.format(left)
        given = {name.removeprefix("kafka.config.providers."): value for name, value in options.items()}
        assert {name: given[name] for name in settings} == settings
        assert options["kafka.config.providers"] == left[2:].partition(":")[0]
        assert CANARY not in str(options)


@pytest.mark.parametrize("reference", ["${env:QUOTED}", "${file:{}/s.properties:odd}", "${directory:{}/mounted:lines}"])
def test_a_value_that_kafka_would_read_differently_is_resolved_here(reference: str, tmp_path: Path) -> None:
    options = connection(reference.replace("{}", str(tmp_path))).spark()
    assert "${" not in options["kafka.sasl.jaas.config"]
    assert "kafka.config.providers" not in options


def test_a_line_end_behind_a_secret_in_a_file_is_no_part_of_it(tmp_path: Path) -> None:
    """Java's clients trim each property. Within a JAAS line, they take the line end for the end of the text."""
    lines = f"${{directory:{tmp_path}/mounted:lines}}"
    found = connection(lines, **{"ssl.truststore.password": lines})
    login = found.login()
    assert (login.password if login else "", found.resolved()["ssl.truststore.password"]) == (CANARY, CANARY)
    assert found.spark()["kafka.ssl.truststore.password"] == lines


@pytest.mark.parametrize("reference", ["${directory:{}/mounted:../s.properties}", "${directory:{}:mounted}"])
def test_a_directory_gives_its_own_files_only(reference: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="which does not exist here"):
        connection(reference.replace("{}", str(tmp_path))).login()


def test_providers_may_have_names_of_their_own_as_in_mirrormaker_2(tmp_path: Path) -> None:
    provider, config = "org.apache.kafka.common.config.provider", tmp_path / "mirrorlake.properties"
    config.write_text(
        "clusters = a, b\na->b.enabled = true\nb.bootstrap.servers = h:2\nconfig.providers = dir, secrets\n"
        f"config.providers.dir.class = {provider}.DirectoryConfigProvider\n"
        f"config.providers.secrets.class = {provider}.FileConfigProvider\n"
        + "".join(f"a.{name} = {value}\n" for name, value in connection("${dir:{0}/mounted:password}").properties)
        + "a.ssl.truststore.password = ${secrets:{0}/s.properties:password}\n"
    )
    config.write_text(config.read_text().replace("{0}", str(tmp_path)))
    found = Flow.load(config, "a->b").source_connection
    login = found.login()
    assert (login.password if login else "", found.resolved()["ssl.truststore.password"]) == (CANARY, CANARY)
    assert CANARY not in str(found.spark())


def test_files_of_secrets_are_utf_8_and_what_is_not_is_not_shown(tmp_path: Path) -> None:
    file, reference = tmp_path / "odd.properties", f"${{file:{tmp_path}/odd.properties:password}}"
    file.write_text("password = pässwörd\n", encoding="utf-8")
    login = connection(reference).login()
    assert login
    assert login.password == "pässwörd"
    for text in (b"password = c\\u4naryxx\n", "password = pässwörd".encode("latin-1")):
        file.write_bytes(text)
        with pytest.raises(
            ConfigurationError, match=r"refers to .*odd.properties can't be read: it is not UTF-8"
        ) as caught:
            connection(reference).login()
        assert "4nar" not in str(caught.value)
    file.write_bytes(b"clusters = a, b\n# x\na.ssl.key.password = c\\u4naryxx\n")
    with pytest.raises(ConfigurationError, match=r"not a Java property file: line 3 has a \\u without") as caught:
        Properties.load(file)
    assert "4nar" not in str(caught.value)


def test_a_value_that_looks_like_a_reference_is_not_resolved_by_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAME", "${env:CANARY}")
    options = connection("${env:CANARY}", **{"client.id": "${env:NAME}"}).spark()
    assert options["kafka.client.id"] == "${env:CANARY}"
    assert "kafka.config.providers" not in options


def test_only_secrets_are_left_to_kafka_and_on_databricks_none() -> None:
    options = connection("${env:CANARY}", **{"client.id": "${env:CANARY}"}).spark()
    assert options["kafka.client.id"] == CANARY
    with pytest.raises(ConfigurationError, match="does not exist here"):
        connection("${env:NOT_THERE}").spark()
    on_databricks = connection("${env:CANARY}", is_shaded=True).spark()
    assert on_databricks["kafka.sasl.jaas.config"] == f"kafkashaded.{JAAS.format(CANARY)}"


def test_what_travels_to_tasks_has_references_only(tmp_path: Path) -> None:
    values = {"clusters": "a, b", "a->b.enabled": "true", "b.bootstrap.servers": "h:2"}
    values |= {
        f"a.{name}": value for name, value in connection(f"${{file:{tmp_path}/s.properties:password}}").properties
    }
    flow = Flow.from_properties(Properties(values), "a->b")
    kafka_python(flow.source_connection)  # a process that has resolved them
    assert CANARY.encode() not in pickle.dumps(flow)
    assert b"s.properties:password" in pickle.dumps(flow)


def test_on_databricks_a_secret_comes_from_its_scope_then_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Secrets:
        def get(self, scope: str, key: str) -> str:
            if (scope, key) == ("kafka-prod", "known"):
                return "of the workspace"
            raise RuntimeError(f"SECRET_DOES_NOT_EXIST {scope} {key}")

    class DatabricksUtilities:
        secrets = Secrets()
        widgets: Any = type("Widgets", (), {"text": lambda *_: None, "get": lambda *_: "x"})()

    class Session:
        catalog: Any = type("Catalog", (), {"currentCatalog": lambda _: "main"})()

    monkeypatch.setattr(config_provider, "PROVIDERS", dict(config_provider.PROVIDERS))
    runtime.parameters({"dbutils": DatabricksUtilities(), "spark": Session()})
    read = {
        key: secret_reference.resolve("p", f"${{secrets:kafka-prod:{key}}}", config_provider.PROVIDERS)
        for key in ("known", "pass.word")
    }
    assert read == {"known": "of the workspace", "pass.word": CANARY}


@pytest.mark.parametrize("name", [*PLAIN, "client.id", "ssl.truststore.location", "group.id"])
def test_spark_shows_what_is_no_secret(name: str) -> None:
    assert bool(re.search(REDACTED, name)) == name.startswith("sasl")


@pytest.mark.parametrize(
    "name",
    [
        "sasl.jaas.config",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "schema.registry.basic.auth.user.info",
        "sasl.oauthbearer.client.credentials.client.secret",
        "delegation.token.expiry",
    ],
)
def test_spark_hides_what_mirrorlake_hides(name: str) -> None:
    assert is_secret(name)
    assert re.search(REDACTED, f"kafka.{name}")


def test_the_user_in_the_address_of_a_registry_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = Properties({"clusters": "a, b", "a.schema.registry.url": "http://us%40er:c4nary%2F@127.0.0.1:1/x/"})
    registry = SchemaRegistry.of(properties, "a", "source")
    assert registry is not None
    assert (registry.url, registry.user_info) == ("http://127.0.0.1:1/x", "us@er:c4nary/")
    assert "c4nary" not in repr(registry)
    with pytest.raises(Exception, match=r"\(http://127\.0\.0\.1:1/x\) can't be reached") as caught:
        RegistryClient(registry).schema(1)
    assert "c4nary" not in str(caught.value)
    for wrong, said in {
        "ftp://user:c4nary@host": "is 'ftp://host'",
        "http://user:c4/nary@host": "can't be used",
        "http://host,http://user:c4nary@host": "can't be used",
        "https://host/x?token=c4nary": "can't be used",
        "http://h\nost": "is 'http",
    }.items():
        with pytest.raises(ConfigurationError, match=said) as refused:
            SchemaRegistry.of(Properties({"clusters": "a, b", "a.schema.registry.url": wrong}), "a", "source")
        assert not re.search("c4|nary", str(refused.value))


@pytest.mark.parametrize(
    ("url", "is_told"),
    [("http://u:p@h/x", True), ("https://u:p@h", False), ("http://u:p@[::1]:8081", False), ("http://h", False)],
)
def test_a_password_that_crosses_the_network_unencrypted_to_a_registry_is_told(url: str, is_told: bool) -> None:
    values = {"clusters": "a, b", "a->b.enabled": "true", "a.bootstrap.servers": "h:1", "b.bootstrap.servers": "h:2"}
    values |= {"a.schema.registry.url": url, "b.schema.registry.url": "https://h", "mirrorlake.transforms": "t"}
    values |= {"mirrorlake.transform.t.topics": "x", "mirrorlake.transform.t.value.schema.ids": "translate"}
    told = [one for one in Flow.from_properties(Properties(values), "a->b").warnings if "unencrypted" in one]
    assert bool(told) == is_told


@pytest.mark.parametrize(
    ("given", "is_told"),
    [
        ({"endpoint": "http://u:p@collector:4318/v1/metrics"}, True),
        ({"endpoint": "http://collector:4318/v1/metrics", "headers": "authorization=Bearer x"}, True),
        ({"endpoint": "https://u:p@collector:4318/v1/metrics"}, False),
        ({"endpoint": "http://u:p@localhost:4318/v1/metrics"}, False),
        ({"endpoint": "http://collector:4318/v1/metrics"}, False),
        ({"endpoint": "http://[${env:COLLECTOR}]:4318/v1/metrics", "headers": "authorization=Bearer x"}, False),
    ],
)
def test_a_password_that_crosses_the_network_unencrypted_to_a_collector_is_told(
    given: dict[str, str], is_told: bool
) -> None:
    values = {"clusters": "a, b", "a->b.enabled": "true", "a.bootstrap.servers": "h:1", "b.bootstrap.servers": "h:2"}
    values |= {f"mirrorlake.metrics.otlp.{name}": value for name, value in given.items()}
    told = [one for one in Flow.from_properties(Properties(values), "a->b").warnings if "unencrypted" in one]
    assert bool(told) == is_told


def test_files_that_anybody_may_change_are_named_although_they_hold_no_secret(tmp_path: Path) -> None:
    store, config = tmp_path / "trusted.pem", tmp_path / "mirrorlake.properties"
    store.touch()
    config.write_text(
        "clusters = a, b\na.bootstrap.servers = a:1\nb.bootstrap.servers = b:1\na->b.enabled = true\n"
        f"a.ssl.truststore.type = PEM\na.ssl.truststore.location = {store}\n"
    )
    for file in (store, config):
        file.chmod(0o644)
    assert Flow.load(config, "a->b").warnings == ()
    store.chmod(0o666)
    config.chmod(0o646)
    assert Flow.load(config, "a->b").warnings == (
        f"property a.ssl.truststore.location: others may change file {store} (mode 0666). Take that right from them",
        f"property file: others may change file {config} (mode 0646). Take that right from them",
    )


def test_files_with_secrets_that_others_may_read_are_named(tmp_path: Path) -> None:
    secrets, store, config = (tmp_path / name for name in ("s.properties", "client.pem", "mirrorlake.properties"))
    store.touch(0o600)
    config.write_text(
        "clusters = a, b\na.bootstrap.servers = a:1\nb.bootstrap.servers = b:1\na->b.enabled = true\n"
        f"a.ssl.keystore.type = PEM\na.ssl.keystore.location = {store}\n"
        f"b.ssl.key.password = ${{file:{secrets}:password}}\n"
        f"b.ssl.truststore.password = ${{directory:{tmp_path}/mounted:password}}\n"
    )
    config.chmod(0o644)
    mounted = tmp_path / "mounted/password"
    mounted.chmod(0o600)
    assert Flow.load(config, "a->b").warnings == ()
    mounted.chmod(0o644)
    secrets.chmod(0o640)
    store.chmod(0o604)
    others = "others may read or change file"
    assert Flow.load(config, "a->b").warnings == (
        f"property a.ssl.keystore.location: {others} {store} (mode 0604). Set its mode to 0600",
        f"property b.ssl.key.password: {others} {secrets} (mode 0640). Set its mode to 0600",
        f"property b.ssl.truststore.password: {others} {mounted} (mode 0644). Set its mode to 0600",
    )
    mounted.chmod(0o600)
    secrets.chmod(0o600)
    store.chmod(0o400)
    text = config.read_text()
    for name, value in {
        "a.ssl.key.password": CANARY,
        "a.schema.registry.basic.auth.user.info": f"user:{CANARY}",
        "a.schema.registry.url": "http://user:c4nary@127.0.0.1/x",
        "mirrorlake.metrics.otlp.headers": f"authorization=Bearer {CANARY}",
        "mirrorlake.metrics.otlp.endpoint": "http://user:c4nary@127.0.0.1/x",
    }.items():
        config.write_text(f"{text}{name} = {value}\n")
        (said,) = Flow.load(config, "a->b").warnings
        assert said.startswith(f"property {name} is a secret in {config}, which others may read or change")
        assert "c4nary" not in said
    config.write_text(f"{text}a.sasl.oauthbearer.token.endpoint.url = https://127.0.0.1/token\n")
    assert Flow.load(config, "a->b").warnings == (), "an address is no secret"
