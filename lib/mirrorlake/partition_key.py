"""The key of a partition in all modules: topic and partition number."""

from __future__ import annotations

PartitionKey = tuple[str, int]  # topic and partition
