"""The key of a partition, everywhere: its topic and its number."""

from __future__ import annotations

PartitionKey = tuple[str, int]  # topic and partition
