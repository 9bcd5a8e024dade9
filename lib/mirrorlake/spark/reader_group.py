"""The consumer group id under which Spark's executors read the ranges of one job.

Spark keeps the parameters of each group id and partition for ever, and what was polled last for minutes
(`InternalKafkaConsumerPool`, `FetchedDataPool`). With an id of its own for each read, as is the default, a job that
reads in each micro-batch would fill the heap. No offsets are committed under the id, and no coordinator is asked.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from mirrorlake.config.flow import Flow
from mirrorlake.model.copy_plan import Range
from mirrorlake.partition_key import PartitionKey

Log = tuple[str, int]  # id of the topic, and epoch of the leader


class ReaderGroup:
    """Keeps the group id of one job, as long as what was polled under it may be used."""

    def __init__(self) -> None:
        self._id, self._options, self._logs = "", dict[str, str](), dict[PartitionKey, Log]()

    def id_for(self, flow: Flow, ranges: Iterable[Range]) -> str:
        """Returns the id for the next read.

        It is another one after an election, as records that were polled before may be those of another log; where the
        leader's epoch or the topic's id is not known; and with other options, as Spark takes only the same ones for it.

        Args:
            flow: the flow, with its connection to the source.
            ranges: what is to be read.
        """
        logs = {(one.topic, one.partition): (one.topic_id, one.leader_epoch) for one in ranges}
        options = flow.source_connection.spark()
        if not self._id or options != self._options or not self._goes_on(logs):
            self._id, self._options, self._logs = f"mirrorlake-{uuid.uuid4().hex}", dict(options), {}
        self._logs |= logs
        return self._id

    def _goes_on(self, logs: Mapping[PartitionKey, Log]) -> bool:
        return all(self._logs.get(key, log) == log and bool(log[0]) and log[1] >= 0 for key, log in logs.items())
