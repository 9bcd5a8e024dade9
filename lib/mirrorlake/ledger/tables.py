"""The columns of the ledger's tables, and their clustering columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

OFFSET_SYNCS = """
  source STRING NOT NULL COMMENT 'alias of the cluster that was read',
  target STRING NOT NULL COMMENT 'alias of the cluster that was written',
  topic STRING NOT NULL COMMENT 'topic on the source',
  partition INT NOT NULL COMMENT 'partition on the source',
  target_topic STRING NOT NULL COMMENT 'remote topic on the target',
  target_partition INT NOT NULL COMMENT 'partition on the target',
  upstream_start BIGINT NOT NULL COMMENT 'first source offset of the run',
  upstream_end BIGINT NOT NULL COMMENT 'source offset after the last one',
  downstream_start BIGINT NOT NULL COMMENT 'target offset of the first record',
  downstream_end BIGINT NOT NULL COMMENT 'target offset after the last one',
  records BIGINT NOT NULL,
  bytes BIGINT NOT NULL COMMENT 'size of the record batches, as compressed',
  first_timestamp TIMESTAMP COMMENT 'smallest base timestamp of a batch',
  last_timestamp TIMESTAMP COMMENT 'largest timestamp of a batch',
  digest STRING
    COMMENT 'CRC-32C of counts, timestamps and records of the batches, equal on both sides; null if inferred or folded',
  transactional_id STRING NOT NULL,
  producer_id BIGINT NOT NULL,
  producer_epoch INT NOT NULL,
  sync_partition INT NOT NULL COMMENT 'partition of the offset-syncs topic that this row was read from',
  sync_offset BIGINT NOT NULL COMMENT 'offset in that partition',
  committed_at TIMESTAMP NOT NULL COMMENT 'timestamp of that offset-syncs record, written just before the commit',
  inferred BOOLEAN COMMENT 'derived from the contents of both logs at a take-over; bytes counts keys and values',
  incarnation INT COMMENT 'number of resets of the partition before this run',
  shared BOOLEAN COMMENT 'others write to the remote topic, too (mirrorlake.topics.shared); null: not known',
  runs ARRAY<STRUCT<upstream: BIGINT, downstream: BIGINT, records: BIGINT, bytes: BIGINT, first_ms: BIGINT,
    last_ms: BIGINT, digest: INT>>
    COMMENT 'of a folded row, its runs: see the view offset_sync_runs; null: the row is one run'
"""

CHECKPOINTS = """
  source STRING NOT NULL,
  target STRING NOT NULL,
  group_id STRING NOT NULL,
  topic STRING COMMENT 'topic on the source; null in a row about the whole group',
  partition INT,
  target_topic STRING,
  target_partition INT,
  upstream_offset BIGINT COMMENT 'committed offset of the group on the source: its next record',
  downstream_offset BIGINT COMMENT 'target offset of the first mirrored record at or after upstream_offset',
  metadata STRING COMMENT 'metadata that the group committed with its offset',
  source_lag BIGINT COMMENT 'offsets that the group has not read yet on the source',
  status STRING NOT NULL COMMENT 'exact, clamped, before_mirror, not_mirrored, not_mirrored_yet, not_covered, deleted',
  reason STRING COMMENT 'explanation of the status',
  cycle_id STRING NOT NULL,
  created_at TIMESTAMP NOT NULL,
  target_offset BIGINT COMMENT 'committed offset of the group on the target before this cycle',
  sync STRING COMMENT 'outcome on the target: committed, in_step, held, waiting, refused, or off'
"""

GAPS = """
  source STRING NOT NULL,
  target STRING NOT NULL,
  topic STRING NOT NULL COMMENT 'topic on the source',
  partition INT NOT NULL COMMENT 'partition on the source',
  from_offset BIGINT NOT NULL COMMENT 'first source offset without a record on the target',
  to_offset BIGINT NOT NULL COMMENT 'source offset after the last one',
  kind STRING NOT NULL
    COMMENT 'cause of the gap: explained, a loss, or a reset; docs/sql.md lists the kinds',
  incarnation INT NOT NULL
    COMMENT 'number of earlier resets of the partition; a reset makes the map up to it void from from_offset on',
  downstream_offset BIGINT NOT NULL COMMENT 'target offset of the gap: the end of the records mirrored before it',
  sync_partition INT NOT NULL COMMENT 'partition of the offset-syncs topic that this row was read from',
  sync_offset BIGINT NOT NULL COMMENT 'offset in that partition',
  committed_at TIMESTAMP NOT NULL COMMENT 'timestamp of that offset-syncs record, written just before the commit',
  parts ARRAY<STRUCT<upstream: BIGINT, offsets: BIGINT, kind: STRING, downstream: BIGINT>>
    COMMENT 'of a folded row (kind several), its gaps: see the view offset_sync_gaps; null: the row is one gap'
"""

EXPIRED_RANGES = """
  source STRING NOT NULL,
  target STRING NOT NULL,
  topic STRING NOT NULL COMMENT 'topic on the source',
  partition INT NOT NULL COMMENT 'partition on the source',
  incarnation INT NOT NULL COMMENT 'number of resets of the partition before',
  to_offset BIGINT NOT NULL
    COMMENT 'rows of offset_syncs and gaps that end at or before this source offset have expired',
  expired_at TIMESTAMP NOT NULL
"""

EXPECTATION_RESULTS = """
  suite STRING NOT NULL,
  subject STRING NOT NULL COMMENT 'flow that was checked',
  expectation STRING NOT NULL,
  success BOOLEAN NOT NULL,
  observed STRING COMMENT 'JSON',
  unexpected STRING COMMENT 'JSON: the first unexpected values',
  evaluated_at TIMESTAMP NOT NULL,
  cycle_id STRING NOT NULL
"""

ANOMALIES = """
  source STRING NOT NULL,
  target STRING NOT NULL,
  topic STRING,
  partition INT,
  kind STRING NOT NULL,
  from_offset BIGINT COMMENT 'first source offset concerned',
  to_offset BIGINT COMMENT 'source offset after the last one concerned',
  records BIGINT,
  detail STRING,
  action STRING COMMENT 'action that mirrorlake or the operator took',
  detected_at TIMESTAMP NOT NULL
"""

TOPOLOGY_CHANGES = """
  source STRING NOT NULL,
  target STRING NOT NULL,
  kind STRING NOT NULL
    COMMENT 'create_topic, add_partitions, set_config, reset_config, create_acl, delete_acl, grant_access or set_quota',
  topic STRING COMMENT 'topic on the source that the change is for',
  target_topic STRING NOT NULL COMMENT 'remote topic on the target, or the resource name of the ACL',
  name STRING COMMENT 'name of the property',
  before STRING,
  after STRING,
  note STRING COMMENT 'reason for a difference from the source',
  outcome STRING NOT NULL COMMENT 'applied, or the reason why the target refused the change',
  changed_at TIMESTAMP NOT NULL
"""

VERIFICATIONS = """
  verification_id STRING NOT NULL,
  source STRING NOT NULL,
  target STRING NOT NULL,
  mode STRING NOT NULL COMMENT 'incremental, full, time or sample',
  topic STRING COMMENT 'topic on the source; null in a row about the whole flow, of which nothing could be compared',
  partition INT,
  target_topic STRING,
  target_partition INT,
  upstream_from BIGINT COMMENT 'first source offset that was compared',
  upstream_to BIGINT COMMENT 'source offset after the last one',
  downstream_from BIGINT COMMENT 'first target offset that was compared',
  downstream_to BIGINT COMMENT 'target offset after the last one: the next offset of the map, or the end of the log',
  records BIGINT NOT NULL COMMENT 'records of the source that were compared with their copies',
  digested BIGINT NOT NULL COMMENT 'of these records: compared by the digests of their batches only',
  missing BIGINT NOT NULL COMMENT 'on the source, and not on the target',
  duplicated BIGINT NOT NULL COMMENT 'more copies on the target than the source has',
  out_of_order BIGINT NOT NULL COMMENT 'on the target, but not at the offset of the map',
  different BIGINT NOT NULL COMMENT 'at the offset of the map, with another key, value, headers or timestamp',
  unexpected BIGINT NOT NULL COMMENT 'on the target, and not on the source',
  not_comparable BIGINT NOT NULL
    COMMENT 'deleted on one side since, by retention or compaction: neither equal nor different',
  status STRING NOT NULL
    COMMENT 'equal, different, not_comparable, not_covered, not_mirrored, or nothing_new (the whole flow)',
  passed BOOLEAN NOT NULL COMMENT 'records were compared, and there is no difference',
  verified_to TIMESTAMP COMMENT 'committed_at of the last run that was compared',
  offset_syncs_version BIGINT NOT NULL COMMENT 'Delta version of offset_syncs that was used as the map',
  gaps_version BIGINT NOT NULL COMMENT 'Delta version of gaps, whose resets make parts of the map void',
  detail STRING,
  started_at TIMESTAMP NOT NULL,
  finished_at TIMESTAMP NOT NULL,
  unmirrored BIGINT COMMENT 'records of the source that are not mirrored, if the oldest is late (max_lateness_seconds)',
  topics STRING COMMENT 'parameter topics of a verification of some topics, which says nothing of others; else null',
  pinned BOOLEAN COMMENT 'true if parameter version has named the map: nothing is said of later records; null: false'
"""

# No contents of records: they may be personal data, and both logs still have them.
VERIFICATION_FINDINGS = """
  verification_id STRING NOT NULL,
  source STRING NOT NULL,
  target STRING NOT NULL,
  topic STRING NOT NULL,
  partition INT NOT NULL,
  upstream_offset BIGINT COMMENT 'offset of the record on the source; null if there is none',
  target_topic STRING NOT NULL,
  target_partition INT NOT NULL,
  downstream_offset BIGINT COMMENT 'offset of the record on the target; of a missing record, its offset in the map',
  kind STRING NOT NULL COMMENT 'missing, duplicated, out_of_order, different or unexpected',
  detail STRING COMMENT 'the parts that differ (key, value, headers, timestamp), or the offset of the record in the map'
"""

COUNTS = """
  source STRING NOT NULL,
  target STRING NOT NULL,
  topic STRING NOT NULL COMMENT 'topic on the source',
  target_topic STRING NOT NULL COMMENT 'remote topic on the target',
  counting BIGINT NOT NULL COMMENT 'number of the counting of this topic, from 1 up',
  window_start TIMESTAMP COMMENT 'beginning of the hour, by the timestamps of the records; null: no new records',
  window_end TIMESTAMP COMMENT 'end of the hour, exclusive',
  source_records BIGINT NOT NULL COMMENT 'records of the window that this counting found on the source',
  target_records BIGINT NOT NULL COMMENT 'records of the window that this counting found on the target',
  counted_at TIMESTAMP NOT NULL,
  due_at TIMESTAMP NOT NULL COMMENT 'records that the source had at this time are due on the target',
  comparable_from TIMESTAMP
    COMMENT 'windows from here on were counted whole; null: all were. Earlier ones may have lost records uncounted',
  neutral STRING COMMENT 'reason for which the counts of this topic need not be equal; null: they must be',
  source_topic_id STRING COMMENT 'id of the topic that was counted on the source',
  target_topic_id STRING COMMENT 'id of the topic that was counted on the target',
  source_offsets MAP<INT, BIGINT> NOT NULL COMMENT 'offset up to which each partition was counted on the source',
  target_offsets MAP<INT, BIGINT> NOT NULL COMMENT 'offset up to which each partition was counted on the target'
"""

FAILOVERS = """
  failover_id STRING NOT NULL COMMENT 'id of a rehearsal or run, which has one row for each group and partition',
  source STRING NOT NULL,
  target STRING NOT NULL,
  mode STRING NOT NULL COMMENT 'rehearse or run',
  group_id STRING NOT NULL,
  topic STRING COMMENT 'topic on the source; null for a group without positions',
  partition INT,
  target_topic STRING,
  target_partition INT,
  status STRING NOT NULL
    COMMENT 'exact, clamped, before_mirror, not_mirrored, not_mirrored_yet, not_covered; no_groups where none is known',
  upstream_offset BIGINT COMMENT 'offset of the group on the source',
  seen_in STRING COMMENT 'where upstream_offset was read: source, or ledger (table checkpoints)',
  seen_at TIMESTAMP COMMENT 'when upstream_offset was read; from the ledger: since when it is known',
  downstream_offset BIGINT COMMENT 'offset at which the group continues on the target',
  previous_target_offset BIGINT COMMENT 'committed offset of the group on the target before',
  mirrored_to BIGINT COMMENT 'source offset up to which the partition was mirrored',
  source_end BIGINT COMMENT 'end offset of the source partition; with a dead source, the last known one',
  not_mirrored BIGINT COMMENT 'records from mirrored_to to source_end; null with a dead source',
  lag_seen BIGINT COMMENT 'with a dead source: offsets from mirrored_to to source_end',
  rpo_seconds DOUBLE
    COMMENT 'age of the oldest record not mirrored; with a dead source: age of the last commit of its slot',
  re_reads BIGINT COMMENT 'records the group would have read again from previous_target_offset',
  skips BIGINT COMMENT 'records the group would have missed from previous_target_offset',
  again BIGINT COMMENT 'records that it reads again in any case, as both clusters were written at the same time',
  blocks ARRAY<STRING> COMMENT 'reasons against the move, each with its kind',
  accepted ARRAY<STRING> COMMENT 'kinds of blocks that signed_by has accepted',
  go BOOLEAN NOT NULL,
  proof STRING COMMENT 'result of the rehearsal at downstream_offset',
  outcome STRING NOT NULL
    COMMENT 'rehearsed, intended (of a run that died), committed, in_step, refused (and why), held, no_place, closed',
  signed_by STRING,
  at TIMESTAMP COMMENT 'time of the positions; null for now',
  created_at TIMESTAMP NOT NULL,
  confirmed_at TIMESTAMP COMMENT 'when the group was last known to be there: the newest cycle of the checkpoint job',
  lost BIGINT COMMENT 'offsets from upstream_offset on whose records the group never sees on the target'
"""

CYCLES = """
  source STRING NOT NULL,
  target STRING NOT NULL,
  job STRING NOT NULL
    COMMENT 'mirror (a micro-batch, or an idle minute), ledger (an append to offset_syncs), checkpoint; close and open:
      a failover has closed the flow, a failback has opened it',
  cycle_id STRING NOT NULL COMMENT 'as in expectation_results',
  finished_at TIMESTAMP NOT NULL,
  duration_ms DOUBLE NOT NULL COMMENT 'from the beginning of the plan to the end of the commit',
  stages_ms MAP<STRING, DOUBLE> NOT NULL COMMENT 'time of each stage',
  records BIGINT COMMENT 'mirrored records',
  bytes BIGINT COMMENT 'size of the record batches, as compressed',
  runs BIGINT COMMENT 'runs, which become rows of offset_syncs, folded or not',
  partitions BIGINT COMMENT 'partitions that were copied',
  lag BIGINT COMMENT 'source offsets not mirrored yet',
  positions BIGINT COMMENT 'positions of groups that were translated',
  unfinished BIGINT COMMENT 'of these positions: clamped'
"""

# One row for all partitions: a row of each would be many commits' worth of rows, and the newest measurement many rows.
LAG_SAMPLES = """
  source STRING NOT NULL,
  target STRING NOT NULL,
  measured_at TIMESTAMP NOT NULL,
  due_at TIMESTAMP NOT NULL COMMENT 'when the next row must be there; if it is not, no mirror job measures the flow',
  records BIGINT NOT NULL COMMENT 'stable source offsets that are not mirrored, of the partitions that are copied',
  seconds DOUBLE NOT NULL COMMENT 'age of the oldest record of these that is not mirrored, as far as it is known',
  uncommitted BIGINT NOT NULL COMMENT 'source offsets of these that wait for open transactions',
  partitions ARRAY<STRUCT<topic: STRING, partition: INT, state: STRING, reason: STRING, upstream_next: BIGINT,
    last_stable_offset: BIGINT, high_watermark: BIGINT, lag: BIGINT, uncommitted: BIGINT, oldest_at: TIMESTAMP,
    lag_seconds: DOUBLE>> NOT NULL COMMENT 'the lag of each partition, as in the view lag_now'
"""

# A commit lists the whole log of a table, if its store can't list a part. With a commit every 5 s, Delta's 30 days are
# 518,000 versions. Runtimes of Databricks want the log for as long as VACUUM keeps files, which are 7 days.
LOG_RETENTION = "delta.logRetentionDuration"
KEPT_LOG = f"'{LOG_RETENTION}' = 'interval 7 days'"

TABLES: Mapping[str, tuple[str, str]] = {
    "offset_syncs": (OFFSET_SYNCS, "topic, partition, upstream_start"),
    "gaps": (GAPS, "topic, partition, from_offset"),
    "expired_ranges": (EXPIRED_RANGES, "topic, partition"),
    "checkpoints": (CHECKPOINTS, "group_id, topic, created_at"),
    "expectation_results": (EXPECTATION_RESULTS, "evaluated_at"),
    "anomalies": (ANOMALIES, "detected_at"),
    "topology_changes": (TOPOLOGY_CHANGES, "changed_at"),
    "verifications": (VERIFICATIONS, "topic, partition, upstream_to"),
    "verification_findings": (VERIFICATION_FINDINGS, "topic, partition, downstream_offset"),
    "counts": (COUNTS, "topic, window_start"),
    "failovers": (FAILOVERS, "created_at, group_id"),
    "cycles": (CYCLES, "finished_at"),
    "lag_samples": (LAG_SAMPLES, "measured_at"),
}

# Columns that a version of the tables has added, from version 2 on. New columns come last, as Delta keeps statistics of
# the first 32 only, and are nullable, so that a job of an earlier version can go on with upgraded tables.
ADDED: Mapping[int, Mapping[str, tuple[str, ...]]] = {
    2: {
        "offset_syncs": ("inferred", "incarnation", "shared"),
        "checkpoints": ("target_offset", "sync"),
        "failovers": ("confirmed_at", "lost"),
        "verifications": ("unmirrored",),
    },
    3: {"offset_syncs": ("runs",), "gaps": ("parts",), "verifications": ("topics", "pinned")},
}
VERSION = max(ADDED)


def version_of(missing: Mapping[str, Collection[str]]) -> int:
    """Returns the version of tables that lack columns.

    Args:
        missing: names of the columns that each table lacks.
    """
    lacking = (
        version
        for version, tables in ADDED.items()
        for table, columns in tables.items()
        if {*columns} & {*missing.get(table, ())}
    )
    return min(lacking, default=VERSION + 1) - 1


def column_definitions(name: str) -> list[str]:
    """Lists the definitions of a table's columns; a definition may continue on indented lines."""
    columns, _ = TABLES[name]
    return [line.strip().rstrip(",") for line in re.sub(r"\n {4,}", " ", columns).strip().splitlines()]
