"""Client quotas of a cluster (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka.protocol.admin import AlterClientQuotasRequest, DescribeClientQuotasRequest

from mirrorlake.protocol.cluster import Cluster, check

# Type and name of each part of an entity (user, client-id, ip), sorted; the name None stands for the default.
Entity = tuple[tuple[str, str | None], ...]


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
