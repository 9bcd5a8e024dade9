"""Lets the kernels of both notebooks leak of everything, to see that the soak finds it.

Python runs `sitecustomize` when it starts. The one that is written here begins to leak in processes of `ipykernel`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SITE = '''"""Leaks."""

import socket
import sys
import tempfile
import threading
import time

EVERY_S = 5.0
KEPT = []


def leak():
    listener = socket.create_server(("127.0.0.1", 0), backlog=1_000)
    kept = None
    while True:
        time.sleep(EVERY_S)
        KEPT.append(b"\\1" * (256 << 10))
        KEPT.append(open(tempfile.mkstemp(prefix="leak")[1]))
        KEPT.append(socket.create_connection(listener.getsockname()))
        KEPT.append(listener.accept())
        threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
        session = getattr(sys.modules.get("pyspark"), "SparkContext", None)
        context = getattr(session, "_active_spark_context", None)
        if context is not None:
            kept = kept or context._jvm.java.util.ArrayList()
            kept.add(bytearray(256 << 10))


if any("ipykernel" in word for word in sys.orig_argv):
    threading.Thread(target=leak, daemon=True).start()
'''


def leaking(directory: Path) -> Mapping[str, str]:
    """Returns the variables of the environment with which kernels leak.

    Args:
        directory: for the code.
    """
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(SITE)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")]))}
