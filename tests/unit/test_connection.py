"""One connection is rendered for three clients: each property is honoured by all of them, or refused by its name."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificates
from mirrorlake.config.connection import Connection
from mirrorlake.config.flow import Flow
from mirrorlake.config.properties import Properties
from mirrorlake.config.security.jaas import Jaas
from mirrorlake.config.security.login import ClientCredentials
from mirrorlake.errors import ConfigurationError
from mirrorlake.protocol.clients import oauth_tokens
from mirrorlake.protocol.clients.oauth_tokens import Token, TokenError, TokenProvider, fetched, provider
from mirrorlake.protocol.clients.settings import kafka_python, librdkafka
from trustme import CA

from tests.identity_provider import CLIENT, SECRET, IdentityProvider

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer"
LOGIN = f"{OAUTH}.OAuthBearerLoginModule required"
PASSWORD = "store-canary"


def connected(is_shaded: bool = False, **properties: str) -> Connection:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return Connection("a", tuple({"bootstrap.servers": "h:1,h:2", **named}.items()), is_shaded)


def over_tls(**properties: str) -> Connection:
    return connected(security_protocol="SSL", **properties)


def with_login(mechanism: str, jaas: str, **properties: str) -> Connection:
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": mechanism, "sasl_jaas_config": jaas}
    return connected(**{**login, **properties})


class Stores:
    """A client's certificate, below an intermediate authority, in every form that Java takes."""

    def __init__(self, directory: Path) -> None:
        root = CA()
        client = root.create_child_ca().issue_cert("somebody@example.org")
        key = load_pem_private_key(client.private_key_pem.bytes(), None)
        self.chain = b"".join(one.bytes() for one in client.cert_chain_pems)
        self.trusted = root.cert_pem.bytes()
        self.key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        encryption = BestAvailableEncryption(PASSWORD.encode())
        self.encrypted_key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        self.old_key = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        first, *others = load_pem_x509_certificates(self.chain)
        self.pkcs12 = directory / "client.p12"
        self.pkcs12.write_bytes(serialize_key_and_certificates(b"me", key, first, others, encryption))
        self.trusted_pem, self.trusted_p12 = directory / "trusted.pem", directory / "trusted.p12"
        self.trusted_pem.write_bytes(self.trusted)
        self.jks, self.trusted_jks = directory / "client.jks", directory / "trusted.jks"
        new = ("-noprompt", "-storepass", PASSWORD)
        for path, kind in ((self.trusted_p12, "PKCS12"), (self.trusted_jks, "JKS")):
            keytool("-importcert", "-file", self.trusted_pem, "-keystore", path, "-storetype", kind, *new)
        keytool(
            *("-importkeystore", "-noprompt", "-srckeystore", self.pkcs12, "-srcstorepass", PASSWORD),
            *("-destkeystore", self.jks, "-deststoretype", "JKS", "-deststorepass", PASSWORD),
            *("-srcalias", "me", "-destkeypass", "key-canary"),
        )
        self.pem = directory / "client.pem"
        self.pem.write_bytes(self.key + self.chain)


def keytool(*arguments: object) -> None:
    subprocess.run(["keytool", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))


def shown_by(connection: Connection) -> bytes:
    """Makes the handshake that kafka-python's settings lead to; returns the certificate that the server sees."""
    server_ca = CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), kafka_python(connection)["ssl_context"]
    server_ca.issue_cert("h").configure_cert(server)
    server_ca.configure_trust(client)
    server.verify_mode = ssl.CERT_OPTIONAL
    trusted = connection.tls()
    server.load_verify_locations(cadata=trusted.trusted)
    one_way, other_way = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(one_way, other_way, server_hostname="h"),
        server.wrap_bio(other_way, one_way, server_side=True),
    ]
    for side in sides * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return sides[1].getpeercert(binary_form=True) or b""


def test_addresses_may_have_a_protocol_in_front_as_java_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVERS", "SASL_SSL://h1:1, https://[::1]:2,h3:3")
    for written in ("${env:SERVERS}", "SASL_SSL://h1:1, https://[::1]:2,h3:3"):
        connection = Connection("a", (("bootstrap.servers", written),))
        assert librdkafka(connection, log_level=0)["bootstrap.servers"] == "h1:1,[::1]:2,h3:3"
        assert kafka_python(connection)["bootstrap_servers"] == ["h1:1", "[::1]:2", "h3:3"]
    assert connection.bootstrap_servers == ("h1:1", "[::1]:2", "h3:3")
    with pytest.raises(ConfigurationError, match="'h:1/x' is not host:port"):
        Connection("a", (("bootstrap.servers", "PLAINTEXT://h:1/x"),))


def test_one_connection_speaks_three_dialects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", r's3"cr\et; x="y')
    jaas = rf'{SCRAM} required username="u\"1" password="${{env:CANARY}}";'
    connection = with_login(
        "SCRAM-SHA-512", jaas, security_protocol="sasl_ssl", ssl_endpoint_identification_algorithm=""
    )
    found = librdkafka(connection, log_level=0)
    assert found == {
        "bootstrap.servers": "h:1,h:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": 'u"1',
        "sasl.password": r's3"cr\et; x="y',
        "ssl.endpoint.identification.algorithm": "none",
        "log_level": 0,
    }
    AdminClient({**found, "bootstrap.servers": "127.0.0.1:1"})  # takes the settings
    settings = kafka_python(connection)
    context = settings.pop("ssl_context")
    assert isinstance(context, ssl.SSLContext)
    assert not context.check_hostname
    assert settings == {
        "bootstrap_servers": ["h:1", "h:2"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": 'u"1',
        "sasl_plain_password": r's3"cr\et; x="y',
    }
    line = connection.spark()["kafka.sasl.jaas.config"]
    assert line == rf'{SCRAM} required username="u\"1" password="s3\"cr\\et; x=\"y";'
    assert Jaas.parse("p", line).options == {"username": 'u"1', "password": r's3"cr\et; x="y'}


@pytest.mark.parametrize(("mechanism", "name"), [("SCRAM-SHA-256", "CN=3Dm=2CO=3Dx=3D2C"), ("PLAIN", "CN=m,O=x=2C")])
def test_a_user_name_is_escaped_for_scram_as_java_and_librdkafka_do(mechanism: str, name: str) -> None:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    connection = with_login(mechanism, f'{module} required username="CN=m,O=x=2C" password="p";')
    assert kafka_python(connection)["sasl_plain_username"] == name
    assert librdkafka(connection)["sasl.username"] == "CN=m,O=x=2C"


@pytest.mark.parametrize(
    "value", ['"', "\\", "a\nb\r\tc", "'", ";", "\u00e4\u20ac", " ", "x=y", "${env:NOT_THERE", "/*"]
)
def test_any_password_survives_the_way_to_java(value: str) -> None:
    written = Jaas(PLAIN, "required", {"password": value}).java()
    assert Jaas.parse("p", written).options == {"password": value}


def test_a_login_may_be_one_reference_and_its_value_is_not_resolved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINE", f"{PLAIN} required username='u' password='${{env:LINE}}'")
    assert librdkafka(with_login("PLAIN", "${env:LINE}"))["sasl.password"] == "${env:LINE}"


def test_a_whole_line_with_client_credentials_stays_a_reference_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINE", f'{LOGIN} clientId="i" clientSecret="s3cret";')
    whole = with_login("OAUTHBEARER", "${env:LINE}", **CREDENTIALS).spark()
    assert whole["kafka.sasl.jaas.config"] == "${env:LINE}"
    assert "s3cret" not in str(whole)
    assert whole["kafka.sasl.login.callback.handler.class"].endswith("OAuthBearerLoginCallbackHandler")


@pytest.mark.parametrize(
    ("servers", "protocol", "mechanism", "is_told"),
    [
        ("h:1", "SASL_PLAINTEXT", "PLAIN", True),
        ("h:1", "SASL_SSL", "PLAIN", False),
        ("h:1", "SASL_PLAINTEXT", "SCRAM-SHA-512", False),
        ("localhost:1, [::1]:2, 127.0.0.1:3", "sasl_plaintext", "PLAIN", False),
    ],
)
def test_a_password_that_crosses_the_network_unencrypted_to_brokers_is_told(
    servers: str, protocol: str, mechanism: str, is_told: bool
) -> None:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    jaas = f'{module} required username="u" password="s3cret";'
    given = {"security_protocol": protocol, "bootstrap_servers": servers}
    told = [*with_login(mechanism, jaas, **given).warnings]
    assert bool(told) == is_told
    assert "s3cret" not in str(told)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("canary", "does not begin with a login module"),
        (f'{PLAIN} required username="u" password="can"ary";', "what follows option password is not"),
        (f'{PLAIN} required username="u" password="canary', "what follows option username is not"),
        (f'{PLAIN} required username="u" password="x" canary="y" z";', "what follows option password is not"),
        (f'{PLAIN} required username="u";', "has no password"),
        (f'{SCRAM} required username="u" password="p";', f"the login module of PLAIN is {PLAIN}"),
    ],
)
def test_a_login_that_is_none_is_refused_without_showing_it(line: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        with_login("PLAIN", line)
    assert "canary" not in str(raised.value)


def test_on_databricks_java_classes_have_the_names_of_that_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mm2.properties"
    jaas = f"a.sasl.jaas.config = {LOGIN} clientId='i' clientSecret='s';\n"
    file.write_text(
        "clusters = a, b\na.bootstrap.servers = h:1\nb.bootstrap.servers = h:1\na->b.enabled = true\n"
        f"a.security.protocol = SASL_SSL\na.sasl.mechanism = OAUTHBEARER\n{jaas}"
        "a.sasl.oauthbearer.token.endpoint.url = https://h/token\n"
    )
    for version, prefix in ((None, ""), ("16.4", "kafkashaded.")):
        if version:
            monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", version)
        spark = Flow.load(file, "a->b").source_connection.spark()
        assert spark["kafka.sasl.jaas.config"].startswith(f"{prefix}{LOGIN} ")
        assert spark["kafka.sasl.login.callback.handler.class"] == f"{prefix}{OAUTH}.OAuthBearerLoginCallbackHandler"
    shaded = Properties({"clusters": "a", "a.bootstrap.servers": "h:1"}, is_shaded=True)
    assert shaded.connection("a").is_shaded
    copied = with_login("PLAIN", f'kafkashaded.{PLAIN} required username="u" password="p";')
    assert copied.java()["sasl.jaas.config"].startswith(f"{PLAIN} ")


@pytest.mark.parametrize("form", ["inline", "one line", "encrypted", "PEM", "PKCS12", "PKCS12 as JKS", "JKS"])
def test_a_clients_certificate_is_shown_from_every_kind_of_store(stores: Stores, form: str) -> None:
    inline = {
        "ssl_keystore_type": "PEM",
        "ssl_truststore_type": "PEM",
        "ssl_truststore_certificates": stores.trusted.decode(),
        "ssl_keystore_certificate_chain": stores.chain.decode(),
        "ssl_keystore_key": stores.key.decode(),
    }
    passwords = {"ssl_keystore_password": PASSWORD, "ssl_truststore_password": PASSWORD}
    p12 = {"ssl_keystore_location": str(stores.pkcs12), "ssl_truststore_location": str(stores.trusted_p12), **passwords}
    given = {
        "inline": inline,
        "one line": {name: value.replace("\n", " ") for name, value in inline.items()},
        "encrypted": {**inline, "ssl_keystore_key": stores.encrypted_key.decode(), "ssl_key_password": PASSWORD},
        "PEM": {
            "ssl_keystore_type": "PEM",
            "ssl_truststore_type": "PEM",
            "ssl_truststore_location": str(stores.trusted_pem),
            "ssl_keystore_location": str(stores.pem),
        },
        "PKCS12": {**p12, "ssl_keystore_type": "PKCS12", "ssl_truststore_type": "PKCS12"},
        "PKCS12 as JKS": p12,
        "JKS": {
            "ssl_keystore_location": str(stores.jks),
            "ssl_truststore_location": str(stores.trusted_jks),
            "ssl_key_password": "key-canary",
            **passwords,
        },
    }[form]
    connection = over_tls(**given)
    expected = ssl.PEM_cert_to_DER_cert(stores.chain.decode().split("-----END")[0] + "-----END CERTIFICATE-----\n")
    assert shown_by(connection) == expected
    settings = librdkafka(connection, log_level=0)
    assert load_pem_x509_certificates(settings["ssl.certificate.pem"].encode()) == load_pem_x509_certificates(
        stores.chain
    )
    assert settings["ssl.ca.pem"].strip() == stores.trusted.decode().strip()
    AdminClient({**settings, "bootstrap.servers": "127.0.0.1:1"})  # takes chain, key and password
    assert librdkafka(connection, log_level=0) == settings, "or each call would make a new client"
    assert kafka_python(connection) == kafka_python(connection)
    java = {name: value for name, value in connection.java().items() if name.startswith("ssl.")}
    if form == "encrypted":  # Java 17 can't decrypt it
        del given["ssl_key_password"]
        given["ssl_keystore_key"] = stores.key.decode()
    assert java == {name.replace("_", "."): value for name, value in given.items()}


def test_a_password_of_no_text_is_none_to_java() -> None:
    """With one, Java reads neither a key that is not encrypted nor a PEM store."""
    passwords = {"ssl_key_password": "", "ssl_keystore_password": "", "ssl_truststore_password": ""}
    connection = over_tls(ssl_keystore_type="PEM", ssl_keystore_location="k.pem", **passwords)
    assert not [name for name in (*connection.java(), *connection.spark()) if "password" in name]


def test_a_store_that_is_replaced_is_read_again(stores: Stores, tmp_path: Path) -> None:
    file = tmp_path / "trusted"
    for kind in ("PEM", "PKCS12"):
        file.write_bytes({"PEM": stores.trusted_pem, "PKCS12": stores.trusted_p12}[kind].read_bytes())
        password = {} if kind == "PEM" else {"ssl_truststore_password": PASSWORD}
        connection = over_tls(ssl_truststore_location=str(file), ssl_truststore_type=kind, **password)
        before, context = librdkafka(connection), kafka_python(connection)["ssl_context"]
        other = tmp_path / f"{kind}.pem"
        CA().cert_pem.write_to_path(other)
        if kind == "PKCS12":
            file.unlink()
            arguments = ("-importcert", "-noprompt", "-storepass", PASSWORD, "-storetype", "PKCS12")
            keytool(*arguments, "-file", other, "-keystore", file)
        else:
            file.write_bytes(other.read_bytes())
        assert librdkafka(connection) != before
        assert kafka_python(connection)["ssl_context"] is not context


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ssl_cipher_suites": "TLS_AES_128_GCM_SHA256"}, r"a\.ssl\.cipher\.suites is not supported: .*at the brokers"),
        ({"ssl_enabled_protocols": "TLSv1.2"}, r"supported is TLSv1.2,TLSv1.3, as librdkafka can't.*at the brokers"),
        ({"ssl_protocol": "TLSv1.2"}, r"ssl\.protocol is 'TLSv1.2'; supported are TLSv1.3, TLS\."),
        ({"ssl_endpoint_identification_algorithm": "none"}, "is 'none'; supported are https, nothing"),
        ({"ssl_truststore_type": "BCFKS"}, r"ssl\.truststore\.type is 'BCFKS'; supported are JKS, PKCS12, PEM"),
        ({"ssl_engine_factory_class": "com.example.Mine"}, "class or provider of the Java client only"),
        (
            {"ssl_truststore_locaton": "x"},
            r"locaton is unknown to Kafka's clients. Did you mean ssl.truststore.location",
        ),
        ({"ssl_keystore_key": "x"}, r"a\.ssl\.keystore\.key can't be used: it is PEM\. Set a\.ssl\.keystore\.type=PEM"),
        ({"ssl_keystore_key": "x", "ssl_keystore_type": "PEM"}, "must be set together"),
        (
            {"ssl_truststore_type": "PEM", "ssl_truststore_certificates": "x", "ssl_truststore_location": "x"},
            "truststore.location is set, too. Remove one",
        ),
        (
            {"ssl_truststore_type": "PEM", "ssl_truststore_location": "x", "ssl_truststore_password": "x"},
            "a PEM file has no password of its own",
        ),
        ({"ssl_keystore_location": "x.jks"}, r"a\.ssl\.keystore\.password is missing"),
    ],
)
def test_what_not_all_three_clients_can_do_with_tls_is_refused_by_name(given: Mapping[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        over_tls(**given)
    connected(**given)  # without TLS, no client uses it


@pytest.mark.parametrize(
    ("mechanism", "given", "message"),
    [
        (
            "GSSAPI",
            {},
            "supported are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. GSSAPI: .* no Kerberos.*listener",
        ),
        ("AWS_MSK_IAM", {}, "AWS_MSK_IAM: librdkafka lacks it.*SCRAM-SHA-512.*or client certificates"),
        ("PLAIN", {"sasl_login_class": "com.example.Mine"}, r"a\.sasl\.login\.class is not supported: a login by Java"),
        ("PLAIN", {"sasl_client_callback_handler_class": "x"}, r"client\.callback\.handler\.class is not supported"),
        ("PLAIN", {"sasl_login_callback_handler_class": f"{OAUTH}.OAuthBearerLoginCallbackHandler"}, "with PLAIN"),
        ("OAUTHBEARER", {"sasl_login_callback_handler_class": "com.example.Mine"}, "Java classes of your own"),
        ("OAUTHBEARER", {"sasl_oauthbearer_assertion_claim_iss": "x"}, "tokens for an assertion are not supported"),
        (
            "OAUTHBEARER",
            {"sasl_oauthbearer_jwt_retriever_class": f"{OAUTH}.FileJwtRetriever"},
            "for client credentials",
        ),
    ],
)
def test_logins_that_not_all_three_clients_have_are_refused_by_name(
    mechanism: str, given: Mapping[str, str], message: str
) -> None:
    jaas = f'{PLAIN} required username="u" password="p";'
    if mechanism == "OAUTHBEARER":
        jaas = f'{LOGIN} clientId="i" clientSecret="s";'
        given = {"sasl_oauthbearer_token_endpoint_url": "https://h/token", **given}
    with pytest.raises(ConfigurationError, match=message):
        with_login(mechanism, jaas, **given)


def test_librdkafka_still_lacks_what_is_refused_for_it() -> None:
    for mechanism, why in (("GSSAPI", "No provider for SASL mechanism"), ("AWS_MSK_IAM", "Unsupported SASL mechanism")):
        with pytest.raises(Exception, match=why):
            AdminClient(
                {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism}
            )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ssl_truststore_location": "/nowhere"}, r"/nowhere can't be read here: No such file.*on each worker"),
        ({"ssl_truststore_location": "{trusted_pem}"}, r"is not a JKS store. Set a\.ssl\.truststore\.type to PEM"),
        ({"ssl_truststore_location": "{trusted_jks}", "ssl_truststore_type": "PKCS12"}, "is not a PKCS12 store. Set"),
        ({"ssl_keystore_location": "{trusted_pem}", "ssl_keystore_type": "PEM"}, "holds no PEM private key"),
        ({"ssl_keystore_location": "{old}", "ssl_keystore_type": "PEM"}, "RSA PRIVATE KEY|EC PRIVATE KEY.*topk8"),
        (
            {"ssl_keystore_location": "{encrypted}", "ssl_keystore_type": "PEM"},
            r"a\.ssl\.key\.password is missing, and",
        ),
        (
            {"ssl_keystore_location": "{pem}", "ssl_keystore_type": "PEM", "ssl_key_password": "x"},
            "is set, and the key",
        ),
        (
            {"ssl_keystore_location": "{encrypted}", "ssl_keystore_type": "PEM", "ssl_key_password": "canary-wrong"},
            "cluster a: the certificates, the key, or its password can't be used",
        ),
        (
            {"ssl_keystore_location": "{pkcs12}", "ssl_keystore_password": "canary-wrong"},
            "or its password is not that of",
        ),
        ({"ssl_keystore_location": "{jks}", "ssl_keystore_password": "canary-wrong"}, "keytool can't read"),
        ({"ssl_keystore_location": "{trusted_p12}", "ssl_keystore_password": PASSWORD}, "holds no private key"),
    ],
)
def test_a_store_that_cannot_be_used_is_refused_by_name(
    stores: Stores, tmp_path: Path, given: Mapping[str, str], message: str
) -> None:
    old, encrypted = tmp_path / "old.pem", tmp_path / "encrypted.pem"
    old.write_bytes(stores.old_key + stores.chain)
    encrypted.write_bytes(stores.encrypted_key + stores.chain)
    places = {**vars(stores), "old": old, "encrypted": encrypted}
    connection = over_tls(**{name: value.format(**places) for name, value in given.items()})
    with pytest.raises(ConfigurationError, match=message) as raised:
        kafka_python(connection)
    assert "canary" not in str(raised.value)


def test_a_key_store_says_nothing_to_the_jvm_that_reads_it(stores: Stores, tmp_path: Path) -> None:
    """An argument that begins with -J is an option of the JVM, such as a command to run."""
    odd = tmp_path / "odd.jks"
    odd.write_bytes(stores.jks.read_bytes())
    alias = ("-alias", "me", "-destalias", "-jvm", "-keypass", "key-canary")
    keytool("-changealias", "-keystore", odd, "-storetype", "JKS", "-storepass", PASSWORD, *alias)
    with pytest.raises(ConfigurationError, match=r"alias of the key in .*odd.jks begins with '-'. Rename it"):
        kafka_python(over_tls(ssl_keystore_location=str(odd), ssl_keystore_password=PASSWORD))


def test_a_path_of_a_key_store_is_no_option_of_the_jvm(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = "-J-XX:OnOutOfMemoryError=x"
    Path(path).write_bytes(stores.trusted_jks.read_bytes())
    tls = over_tls(ssl_truststore_location=path, ssl_truststore_password=PASSWORD).tls()
    assert tls
    assert tls.trusted.strip() == stores.trusted.decode().strip()


def test_a_key_is_never_in_a_file_as_it_is(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    unlink = Path.unlink

    def seen(path: Path) -> None:
        written.append((path.stat().st_mode & 0o777, path.read_text()))
        unlink(path)

    monkeypatch.setattr(Path, "unlink", seen)
    kafka_python(over_tls(ssl_keystore_type="PEM", ssl_keystore_location=str(stores.pem), ssl_truststore_type="PEM"))
    ((mode, text),) = written
    assert mode == 0o600
    assert "ENCRYPTED PRIVATE KEY" in text
    assert "BEGIN PRIVATE KEY" not in text


def test_no_secret_is_in_what_a_connection_or_flow_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "s3cret")
    for secret in ("${env:CANARY}", "s3cret"):
        secrets = {"ssl_keystore_type": "PEM", "ssl_keystore_key": secret, "ssl_keystore_certificate_chain": secret}
        oauth = {**CREDENTIALS, **NEWER, "sasl_oauthbearer_client_credentials_client_secret": secret}
        for connection in (
            with_login("SCRAM-SHA-512", f'{SCRAM} required username="u" password="{secret}";', **secrets),
            with_login("OAUTHBEARER", f'{LOGIN} clientSecret="{secret}";', **oauth),
        ):
            shown = repr(connection) + repr(connection.login())
            assert "s3cret" not in shown
            assert "h:1" in shown
            written = {"clusters": "a, b", "b.bootstrap.servers": "h:1", "a->b.enabled": "true"}
            found = {**written, **{f"a.{name}": value for name, value in connection.properties}}
            assert "s3cret" not in repr(Flow.from_properties(Properties(found), "a->b"))


CREDENTIALS = {"sasl_oauthbearer_token_endpoint_url": "https://h/token", "sasl_oauthbearer_header_urlencode": "true"}
NEWER = {
    "sasl_oauthbearer_client_credentials_client_id": "i",
    "sasl_oauthbearer_client_credentials_client_secret": "s",
    "sasl_oauthbearer_scope": "x",
}


@pytest.mark.parametrize(
    ("options", "newer"),
    [
        ('clientId="i" clientSecret="s" scope="x" extension_logicalCluster="l"', {}),
        ('extension_logicalCluster="l"', NEWER),
    ],
)
def test_client_credentials_are_read_by_their_old_and_their_new_names(options: str, newer: Mapping[str, str]) -> None:
    connection = with_login("OAUTHBEARER", f"{LOGIN} {options};", **CREDENTIALS, **newer)
    expected = ClientCredentials("a", "https://h/token", "i", "s", "x", True, (("logicalCluster", "l"),), 10.0, 10.0)
    assert connection.login() == expected
    assert librdkafka(connection)["oauth_cb"] == provider(expected).for_librdkafka
    assert kafka_python(connection)["sasl_oauth_token_provider"] is provider(expected)
    java = connection.java()
    assert java["sasl.jaas.config"] == (
        f'{LOGIN} clientId="i" clientSecret="s" scope="x" extension_logicalCluster="l";'
    )
    assert java["sasl.login.callback.handler.class"] == f"{OAUTH}.OAuthBearerLoginCallbackHandler"
    assert not [name for name in java if "client.credentials" in name], "Spark's client does not know it"


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ("", {}, r"a\.sasl\.oauthbearer\.token\.endpoint\.url is missing"),
        ("", {"sasl_oauthbearer_token_endpoint_url": "https://h/t"}, "has no clientId or no clientSecret"),
        ("", {"sasl_oauthbearer_token_endpoint_url": "file:///token"}, "is not an https address"),
        ("", {"sasl_oauthbearer_token_endpoint_url": "https://[x"}, "is not an https address"),
        ("", {"sasl_oauthbearer_token_endpoint_url": "http://h/t"}, "would cross the network unencrypted"),
        ('ssl.truststore.location="x"', CREDENTIALS, r"option ssl\.truststore\.location is not supported"),
    ],
)
def test_an_oauth_login_that_is_incomplete_is_refused(options: str, given: Mapping[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        with_login("OAUTHBEARER", f"{LOGIN} {options};", **given)


def test_tokens_without_a_signature_hold_the_claims_of_the_login() -> None:
    options = 'unsecuredLoginStringClaim_sub="u" unsecuredLoginNumberClaim_n="1.5" unsecuredLoginListClaim_scope=",a,b"'
    connection = with_login("OAUTHBEARER", f"{LOGIN} {options} unsecuredLoginLifetimeSeconds=60;")
    token, expires_s, principal, _ = librdkafka(connection)["oauth_cb"]("")
    header, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    assert (principal, signature) == ("u", "")
    assert json.loads(base64.urlsafe_b64decode(header + "==")) == {"alg": "none"}
    assert (claims["sub"], claims["n"], claims["scope"], claims["exp"] - claims["iat"]) == ("u", 1.5, ["a", "b"], 60)
    assert expires_s == claims["exp"]
    assert connection.java()["sasl.jaas.config"].count("unsecuredLogin") == 4


def test_a_client_secret_does_not_reach_a_proxy_unencrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An http address is on this machine. A proxy of the environment, where nobody listens here, is elsewhere."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with IdentityProvider().running() as issuer:
        url = {"sasl_oauthbearer_token_endpoint_url": f"{issuer.url}/token"}
        login = with_login("OAUTHBEARER", f'{LOGIN} clientId="{CLIENT}" clientSecret="{SECRET}";', **url).login()
        assert fetched(login, time.time()).text == issuer.issued[0]


def test_a_token_is_renewed_before_it_expires_and_used_on_while_the_endpoint_fails() -> None:
    now, made, is_down = [0.0], [], []

    def fetch(_: object, now_s: float) -> Token:
        if is_down:
            raise TokenError("down")
        made.append(now_s)
        return Token(f"t{len(made)}", "u", now_s + 100, now_s + 80)

    tokens = TokenProvider(None, fetch, lambda: now[0])
    seen = []
    for now[0], down in ((0, 0), (79, 0), (80, 0), (170, 1), (179, 1), (179.5, 0)):
        is_down[:] = [1] * down
        seen.append(tokens.token())
    assert seen == ["t1", "t1", "t2", "t2", "t2", "t3"]
    now[0], is_down[:] = 280.0, [1]
    with pytest.raises(TokenError):
        tokens.token()


def test_an_endpoint_that_hangs_holds_up_nobody_whose_token_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth_tokens, "PATIENCE_S", 0.05)
    now, hangs, asked = [0.0], threading.Event(), []

    def fetch(_: object, now_s: float) -> Token:
        asked.append(now_s)
        if now_s:
            hangs.wait(30)
        return Token(f"t{len(asked)}", "u", now_s + 100, now_s + 80)

    tokens, began = TokenProvider(None, fetch, lambda: now[0]), time.monotonic()
    seen = []
    for now[0] in (0.0, 80.0, 85.0, 90.0):
        seen.append(tokens.token())
    assert (seen, asked) == (["t1"] * 4, [0.0, 80.0]), "it is asked once at a time"
    assert time.monotonic() < began + 10
    hangs.set()
    assert tokens._renewal is not None
    tokens._renewal.join(10)
    assert tokens.token() == "t2"
