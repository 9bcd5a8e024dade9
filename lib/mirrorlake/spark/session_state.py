"""Tells whether a Spark session still works, by one request to its JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorlake.errors import LedgerError, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def why_ended(spark: SparkSession, flow: str) -> LedgerError | None:
    """Returns the error of a job whose session can't be used any more, None if it can.

    Args:
        spark: a classic session. That its JVM is gone shows in the request itself, which fails at once.
        flow: the flow of the job.
    """
    from py4j.protocol import Py4JNetworkError

    try:
        context = spark.sparkContext._jsc
        if context is not None and not context.sc().isStopped():
            return None
        why = "it was stopped"
    except (Py4JNetworkError, OSError) as error:
        why = f"its JVM does not answer: {first_line(error)}"
    except Exception:  # the JVM refuses the question, so it is there
        return None
    return LedgerError(
        f"flow {flow}: the Spark session has ended ({why}), so that the ledger can't be read or written, and no task "
        "can run. What was committed on the target holds; the next job appends to the ledger what is missing. Look "
        "for the cause in the log of the driver (memory?), and start the job again"
    )
