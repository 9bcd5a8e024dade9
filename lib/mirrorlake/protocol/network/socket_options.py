"""The options of connections to brokers."""

from __future__ import annotations

import socket
from pathlib import Path

# A host that is gone while a request waits for its answer is noticed after 5 + 4 * 2 s without a sign of its kernel. A
# slow broker's kernel answers. No TCP_USER_TIMEOUT: it would also end connections to a broker that is still busy with
# the request before, and does not read on meanwhile.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 4}
SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in KEEPALIVE.items() if hasattr(socket, name)),
)
RECEIVE_BUFFER_BYTES = 4 << 20
LARGEST_RECEIVE_BUFFER = Path("/proc/sys/net/core/rmem_max")


def socket_options() -> tuple[tuple[int, int, int], ...]:
    """Returns the options of connections: a large receive buffer, where the system allows one.

    Elsewhere, the system would give a small one, and no longer let it grow with the length of the line.
    """
    try:
        most = int(LARGEST_RECEIVE_BUFFER.read_text())
    except (OSError, ValueError):
        most = 0
    large = (socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    return (*SOCKET_OPTIONS, large) if most >= RECEIVE_BUFFER_BYTES else SOCKET_OPTIONS
