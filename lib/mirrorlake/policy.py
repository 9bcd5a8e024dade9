"""The replication policies, under the name that is documented for classes of one's own (docs/configuration.md)."""

from __future__ import annotations

from mirrorlake.config.replication_policy import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    RenameReplicationPolicy,
)

__all__ = ["DefaultReplicationPolicy", "IdentityReplicationPolicy", "RenameReplicationPolicy"]
