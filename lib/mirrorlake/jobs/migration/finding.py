"""What the two logs of a partition say when they are compared, and how it is put before the gate."""

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
    """What a partition's two logs say. Counts are of records.

    Attributes:
        upstream_next: where the copy goes on: behind the last record of the source that is on the target.
        mirrormaker_next: where MirrorMaker 2 itself would go on, if its offsets are there.
        copied: records of the map.
        repeated: copies of those that came another time.
        missing: between the first and the last of the map, on the source and not on the target.
        foreign: on the target and not on the source: written by others, or gone from the source since.
        foreign_tail: how many of those stand behind everything that was recognised.
        gaps: where records are missing: offset of the first, of the last, and how many; the first ones only.
        runs: the map.
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
    """What the gate looks at: one row for each inferred run, and one for a partition without (length 0); columns as in
    MAP_COLUMNS, `ends` are those of remote partitions."""
    import pandas as pd

    rows = []
    for found in findings:
        upstream = downstream = 0
        remote = (found.target_topic, found.partition)
        nothing = Run(*found.key, *remote, found.upstream_next, found.upstream_next, 0, 0, 0, 0, 0, 0, 0)
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
