"""MirrorMaker 2, started from its jars in dedicated mode, as the benchmarks start it."""

from __future__ import annotations

from bench.mirrormaker import ONE_BROKER, mirrormaker

__all__ = ["ONE_BROKER", "mirrormaker"]
