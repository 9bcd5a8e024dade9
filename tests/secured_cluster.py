"""A cluster whose clients may log in over TLS with a password that is nowhere else: the canary."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from mirrorlake.local.cluster import Broker, LocalCluster
from mirrorlake.local.ports import free_port

from tests.canary import CANARY

LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


class SecuredCluster(LocalCluster):
    """A local cluster with a further listener: SASL_SSL, mechanism PLAIN, user `mirror`."""

    def _server_properties(self, broker: Broker) -> dict[str, str]:
        properties = super()._server_properties(broker)
        self._port = free_port()
        for name in ("listeners", "advertised.listeners"):
            properties[name] += f",SASL_SSL://localhost:{self._port}"
        store = self.directory / "broker.pem"
        issued = self._authority.issue_cert("localhost")
        key = load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        store.write_bytes(key + b"".join(certificate.bytes() for certificate in issued.cert_chain_pems))
        self._authority.cert_pem.write_to_path(self.trusted)
        return properties | {
            "listener.name.sasl_ssl.ssl.keystore.type": "PEM",
            "listener.name.sasl_ssl.ssl.keystore.location": str(store),
            "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{LOGIN} user_mirror="{CANARY}";',
        }

    @cached_property
    def _authority(self) -> trustme.CA:
        return trustme.CA()

    @property
    def trusted(self) -> Path:
        return self.directory / "trusted.pem"

    def client(self, alias: str, password: str) -> dict[str, str]:
        """Returns the properties of a cluster with this alias.

        Args:
            alias: the alias in the property file.
            password: a reference to the password.
        """
        values = {
            "bootstrap.servers": f"localhost:{self._port}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{LOGIN} username="mirror" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trusted),
        }
        return {f"{alias}.{name}": value for name, value in values.items()}
