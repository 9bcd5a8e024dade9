"""Commits to a table that others write, too."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from mirrorlake.errors import condition, root_cause
from mirrorlake.log import event

T = TypeVar("T")

log = logging.getLogger(__name__)

COMMIT_ATTEMPTS = 12  # of one commit, if other writers come before it each time; a minute at most
LONGEST_CONFLICT_S = 8.0  # between two of them
CONFLICTS = ("DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")  # conditions of Delta's errors


def commit(table: str, write: Callable[[], T]) -> T:
    """Makes one commit to a table; again if another writer has come before with something that the commit concerns.

    A merge reads what it concerns in the snapshot that it commits to. Two merges of one key therefore conflict, and
    the later one finds the key when it is done again.

    Args:
        table: the full name of the table, for the log.
        write: makes the commit.
    """
    for attempt in range(COMMIT_ATTEMPTS):
        try:
            return write()
        except Exception as error:
            if not is_conflict(error):
                raise
            conflict = error
            log.info(event("ledger_conflict", table=table, attempt=attempt + 1, error=root_cause(error)))
            time.sleep(random.uniform(0, min(2.0**attempt / 4, LONGEST_CONFLICT_S)))
    raise conflict


def is_conflict(error: Exception) -> bool:
    """Returns True if a commit failed because another writer came before it, and can be made again.

    An error of Spark Connect tells its condition, one of a classic session that of its cause in the JVM.
    """
    name = getattr(error, "getCondition", lambda: None)() or condition(error)[0]
    return str(name).startswith(CONFLICTS)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other processes on this machine out; Delta can't commit safely on a plain file system."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
