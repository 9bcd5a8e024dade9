"""What a cluster knows of its users: client quotas (KIP-546), and who logs in by SCRAM (KIP-554)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
)

from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.network.response_error import check

# Type and name of each part of an entity (user, client-id, ip), sorted; the name None stands for the default.
Entity = tuple[tuple[str, str | None], ...]

NOT_CONTROLLER = 41  # the answer of all brokers but one, where ZooKeeper has the users
MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


def read_quotas(cluster: Cluster, timeout_ms: int) -> dict[Entity, dict[str, float]]:
    """Returns the values of all quotas by entity, for example producer_byte_rate.

    Raises:
        SourceError, TargetError: the cluster does not return them.
    """

    async def attempt() -> Any:
        response = await cluster.send_any(DescribeClientQuotasRequest[0](components=[], strict=False))
        check(response.error_code, response.error_message or "")
        return response

    found = cluster.call("reading client quotas (needs DESCRIBE_CONFIGS on CLUSTER)", attempt, timeout_ms)
    return {
        tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)): {
            value.key: value.value for value in entry.values
        }
        for entry in found.entries or ()
    }


def set_quota(cluster: Cluster, entity: Entity, values: Mapping[str, float], timeout_ms: int) -> None:
    """Sets values of the quotas of an entity; leaves its other values as they are.

    Raises:
        SourceError, TargetError: the cluster refuses them.
    """
    kinds = AlterClientQuotasRequest.EntryData
    entry = kinds(
        entity=[kinds.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[kinds.OpData(key=key, value=value, remove=False) for key, value in values.items()],
    )

    async def attempt() -> None:
        response = await cluster.send_any(AlterClientQuotasRequest[0](entries=[entry], validate_only=False))
        for answer in response.entries:
            check(answer.error_code, answer.error_message or "")

    cluster.call("setting client quotas (needs ALTER_CONFIGS on CLUSTER)", attempt, timeout_ms)


def read_scram_users(cluster: Cluster, timeout_ms: int) -> dict[str, set[str]]:
    """Returns the SCRAM mechanisms of each user that has some.

    This is a raw request, because librdkafka 2.16 ends the process where a cluster refuses it. An empty list asks for
    all users; brokers don't answer where they would have to refuse a null one (seen with 4.3).

    Raises:
        SourceError, TargetError: the cluster does not return them.
    """

    async def attempt() -> Any:
        response = await cluster.send_any(DescribeUserScramCredentialsRequest[0](users=[]))
        for broker in await cluster.brokers() if response.error_code == NOT_CONTROLLER else ():
            response = await cluster.ask(DescribeUserScramCredentialsRequest[0](users=[]), broker)
            if response.error_code != NOT_CONTROLLER:
                break
        check(response.error_code, response.error_message or "")
        return response

    found = cluster.call("listing SCRAM users (needs DESCRIBE on CLUSTER)", attempt, timeout_ms)
    return {
        user.user: {MECHANISMS.get(one.mechanism, "UNKNOWN") for one in user.credential_infos} for user in found.results
    }
