"""The replication policies, under the module name that docs/configuration.md documents for custom classes."""

from __future__ import annotations

from mirrorlake.config.replication_policy import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    RenameReplicationPolicy,
)

__all__ = ["DefaultReplicationPolicy", "IdentityReplicationPolicy", "RenameReplicationPolicy"]
