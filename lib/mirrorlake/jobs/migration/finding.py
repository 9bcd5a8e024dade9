"""The result of comparing the two logs of a partition, and its form for the gate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mirrorlake.model.run import Run
from mirrorlake.partition_key import PartitionKey

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LogFinding:
    """The result of comparing a partition's two logs. Counts are numbers of records.

    Attributes:
        topic: source topic.
        partition: source partition.
        target_topic: remote topic.
        upstream_next: source offset at which mirroring continues: after the last source record that is on the target.
        mirrormaker_next: source offset at which MirrorMaker 2 would continue; None if its offsets are missing.
        copied: records in the inferred map.
        repeated: additional copies of records.
        missing: records on the source and not on the target, between the first and the last record of the map.
        foreign: records on the target and not on the source: other programs wrote them, or the source has lost them
            since.
        source_records: records that were read on the source.
        target_records: records that were read on the target.
        foreign_tail: records on the target after the last recognised one.
        gaps: ranges of missing records: offset of the first, offset of the last, and count; the first ranges only.
        runs: the inferred map.
    """

    topic: str
    partition: int
    target_topic: str
    upstream_next: int
    mirrormaker_next: int | None
    copied: int
    repeated: int
    missing: int
    foreign: int
    source_records: int
    target_records: int
    foreign_tail: int
    gaps: tuple[tuple[int, int, int], ...] = field(repr=False, default=())
    runs: tuple[Run, ...] = field(repr=False, default=())

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


MAP_COLUMNS = {
    "topic": "source topic",
    "partition": "source partition",
    "target_topic": "remote topic",
    "records": "records of the run",
    "upstream_length": "upstream_end - upstream_start",
    "downstream_length": "downstream_end - downstream_start",
    "upstream_step": "source offsets between this run and the one before",
    "downstream_step": "target offsets between this run and the one before",
    "upstream_end": "source offset after the run's last",
    "upstream_next": "where the copy of the partition goes on",
    "downstream_end": "target offset after the run's last",
    "log_end": "end of the target's log when it was read",
    "log_end_now": "end of the target's log afterwards",
    "target_records": "records of the partition on the target",
    "accounted": "of those: in the map, repeated, or foreign",
    "doubtful": "source offsets that MirrorMaker 2 has copied by its own account, and that are not recognised although "
    "something stands on the target in their place",
}


def map_frame(
    findings: Iterable[LogFinding], ends: Mapping[PartitionKey, int], ends_now: Mapping[PartitionKey, int]
) -> pd.DataFrame:
    """Returns the input of the gate: one row for each inferred run, and a row of length 0 for a partition without runs.

    The columns are MAP_COLUMNS. `ends` and `ends_now` are ends of remote partitions.
    """
    import pandas as pd

    rows = []
    for found in findings:
        upstream = downstream = 0
        remote = (found.target_topic, found.partition)
        nothing = Run(
            *found.key,
            *remote,
            upstream_start=found.upstream_next,
            upstream_end=found.upstream_next,
            downstream_start=0,
            downstream_end=0,
            records=0,
            bytes=0,
            first_timestamp=0,
            last_timestamp=0,
            digest=0,
        )
        behind = max(0, (found.mirrormaker_next or 0) - found.upstream_next)
        for run in found.runs or (nothing,):
            rows.append(
                {
                    "topic": found.topic,
                    "partition": found.partition,
                    "target_topic": found.target_topic,
                    "records": run.records,
                    "upstream_length": run.upstream_end - run.upstream_start,
                    "downstream_length": run.downstream_end - run.downstream_start,
                    "upstream_step": run.upstream_start - upstream,
                    "downstream_step": run.downstream_start - downstream,
                    "upstream_end": run.upstream_end,
                    "upstream_next": found.upstream_next,
                    "downstream_end": run.downstream_end,
                    "log_end": ends[remote],
                    "log_end_now": ends_now[remote],
                    "target_records": found.target_records,
                    "accounted": found.copied + found.repeated + found.foreign,
                    "doubtful": behind if found.foreign_tail else 0,
                }
            )
            upstream, downstream = run.upstream_end, run.downstream_end
    return pd.DataFrame(rows, columns=list(MAP_COLUMNS))
