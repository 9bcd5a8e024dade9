"""Connections to real brokers: what is closed leaves nothing behind."""

from __future__ import annotations

import gc
import logging
import os
import sys
from typing import Any

import pytest
from mirrorlake.protocol.cluster import connect_both

from tests.world import World


def test_closed_clusters_leave_no_descriptor_no_task_and_no_line_in_the_log(
    plain_world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that runs for a month connects anew after each error."""
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    flow, counts = plain_world.flow, []
    gc.disable()  # it would close some of them, in any order
    try:
        for _ in range(6):
            for cluster in (clusters := connect_both(flow, "test")):
                cluster.refresh(None, 5_000)
            for cluster in clusters:
                cluster.close()
            counts.append(len(os.listdir("/proc/self/fd")))
    finally:
        gc.enable()
    assert counts == counts[:1] * 6
    assert {cluster.net._closed for cluster in clusters} == {True}
    del cluster, clusters
    gc.collect()
    assert not ignored
    found = [one for one in caplog.records if one.name.startswith("kafka") and one.levelno >= logging.WARNING]
    assert not found, [one.getMessage() for one in found]
