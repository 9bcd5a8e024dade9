"""Spark's Python daemon for a session on this machine, with what the workers need imported already; they are forked
from it.

PySpark's own daemon gives each worker an empty interpreter. Before each task that reads the directories of all zip
files on the path once more, and after it searches everything that was ever imported for garbage. With tasks of a few
milliseconds, that is most of the time.
"""

from __future__ import annotations

import gc
import sys

if __name__ == "__main__":
    # pyspark and py4j are installed as well, and there is no Python in Spark's own jar, which PySpark puts there, too.
    sys.path[:] = [entry for entry in sys.path if not entry.endswith((".zip", ".jar"))]
    sys.path_importer_cache.clear()

    import pandas  # noqa: F401
    import pyarrow  # noqa: F401
    from pyspark import daemon

    gc.collect()
    gc.freeze()
    daemon.manager()
