"""Spark's Python daemon for a local session. It imports the workers' packages once, and forks the workers.

PySpark's own daemon gives each worker an empty interpreter. Before each task, such a worker reads the directories of
all zip files on the path again. After each task, it runs the garbage collector over all imported objects. For tasks of
a few milliseconds, this takes most of the time.
"""

from __future__ import annotations

import gc
import sys

if __name__ == "__main__":
    # PySpark adds zip files of pyspark and py4j, which are installed anyway, and Spark's jar, which has no Python.
    sys.path[:] = [entry for entry in sys.path if not entry.endswith((".zip", ".jar"))]
    sys.path_importer_cache.clear()

    import pandas  # noqa: F401
    import pyarrow  # noqa: F401
    from pyspark import daemon

    import mirrorlake.jobs.checkpoint.offset_source
    import mirrorlake.jobs.mirror.copy.task
    import mirrorlake.jobs.verification.run_digests  # noqa: F401

    gc.collect()
    gc.freeze()
    daemon.manager()
