"""Ports of the loopback address for the servers that mirrorlake starts on this machine.

A server listens seconds after its port was chosen, and a stopped broker doesn't listen at all. That a port can be
bound is therefore not enough: a process locks a file for each port that it has chosen, until the process ends.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from mirrorlake.errors import ConfigurationError

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)  # below the ephemeral ports, so that a restarted broker finds its port free
_locked: dict[int, int] = {}  # the ports of this process, with the descriptors of the locked files


def free_port(wanted: int = 0) -> int:
    """Returns `wanted` if that port is free, else another one; no other process gets it while this one lives.

    Raises:
        ConfigurationError: none of 50 ports is free.
    """
    drawn = (port for port in random.sample(PORTS, 50) if port not in _locked)
    for port in (*((wanted,) if wanted else ()), *drawn):
        if _lock(port) and _can_bind(port):
            return port
    raise ConfigurationError("no free port on the loopback address")


def _lock(port: int) -> bool:
    if port in _locked:
        return True
    directory = Path(tempfile.gettempdir(), f"mirrorlake-ports-{os.getuid()}")
    directory.mkdir(0o700, exist_ok=True)
    descriptor = os.open(directory / str(port), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another process has the port
        os.close(descriptor)
        return False
    _locked[port] = descriptor
    return True


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind((HOST, port))
            return True
    return False
