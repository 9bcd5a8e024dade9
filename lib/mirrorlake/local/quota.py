"""A client's quota on a cluster, for the length of a block (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka.protocol.admin import AlterClientQuotasRequest

from mirrorlake.protocol.cluster import Cluster
from mirrorlake.protocol.network.response_error import check

TIMEOUT_MS = 30_000


@contextmanager
def quota(cluster: Cluster, client_id: str, name: str, bytes_per_s: float, *, of: str = "client-id") -> Iterator[None]:
    """Gives a client, or a user, a quota for the length of a block.

    Args:
        cluster: the cluster that throttles the client. Each broker counts for itself.
        client_id: the client's id, or the user's name.
        name: `producer_byte_rate` or `consumer_byte_rate`.
        bytes_per_s: the quota.
        of: `client-id` or `user`.
    """
    _alter(cluster, of, client_id, name, bytes_per_s)
    try:
        yield
    finally:
        _alter(cluster, of, client_id, name, None)


def _alter(cluster: Cluster, of: str, entity_name: str, name: str, value: float | None) -> None:
    entity = AlterClientQuotasRequest.EntryData.EntityData(entity_type=of, entity_name=entity_name)
    change = AlterClientQuotasRequest.EntryData.OpData(key=name, value=value or 0.0, remove=value is None)
    entry = AlterClientQuotasRequest.EntryData(entity=[entity], ops=[change])

    async def attempt() -> None:
        answer = await cluster.send_any(AlterClientQuotasRequest[1](entries=[entry], validate_only=False))
        for found in answer.entries:
            check(found.error_code, found.error_message or "")

    cluster.call(f"changing quota {name} of {entity_name}", attempt, TIMEOUT_MS)
