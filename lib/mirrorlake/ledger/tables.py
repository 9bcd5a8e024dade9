"""The columns of the ledger's tables, and their clustering columns."""

from __future__ import annotations

import re
from collections.abc import Mapping

OFFSET_SYNCS = """
  source STRING NOT NULL COMMENT 'alias of the cluster that was read',
  target STRING NOT NULL COMMENT 'alias of the cluster that was written',
  topic STRING NOT NULL COMMENT 'topic on the source',
  partition INT NOT NULL COMMENT 'partition on the source',
  target_topic STRING NOT NULL COMMENT 'remote topic on the target',
  target_partition INT NOT NULL COMMENT 'partition on the target',
  upstream_start BIGINT NOT NULL COMMENT 'first source offset of the run',
  upstream_end BIGINT NOT NULL COMMENT 'source offset after its last one',
  downstream_start BIGINT NOT NULL COMMENT 'target offset of the first record',
  downstream_end BIGINT NOT NULL COMMENT 'target offset after the last one',
  records BIGINT NOT NULL,
  bytes BIGINT NOT NULL COMMENT 'of the record batches, compressed as they are',
  first_timestamp TIMESTAMP COMMENT 'smallest base timestamp of a batch',
  last_timestamp TIMESTAMP COMMENT 'largest timestamp of a batch',
  digest STRING
    COMMENT 'CRC-32C of counts, timestamps and records of the batches, equal on both sides; null if inferred',
  transactional_id STRING NOT NULL,
  producer_id BIGINT NOT NULL,
  producer_epoch INT NOT NULL,
  sync_partition INT NOT NULL COMMENT 'partition of the offset-syncs topic that this row was read from',
  sync_offset BIGINT NOT NULL COMMENT 'offset there',
  committed_at TIMESTAMP NOT NULL COMMENT 'timestamp of that record, written just before the commit',
  inferred BOOLEAN COMMENT 'rebuilt from the contents of both logs at a take-over; bytes are of keys and values',
  incarnation INT COMMENT 'how often the log was set back or replaced before this run'
"""

CHECKPOINTS = """
  source STRING NOT NULL,
  target STRING NOT NULL,
  group_id STRING NOT NULL,
  topic STRING COMMENT 'topic on the source; null in a row about the whole group',
  partition INT,
  target_topic STRING,
  target_partition INT,
  upstream_offset BIGINT COMMENT 'what the group has committed on the source: the next record it wants',
  downstream_offset BIGINT COMMENT 'the first mirrored record at or after it',
  metadata STRING COMMENT 'what the group committed along with its offset',
  source_lag BIGINT COMMENT 'offsets the group has still to read on the source',
  status STRING NOT NULL COMMENT 'exact, clamped, before_mirror, not_mirrored, not_covered or deleted',
  reason STRING COMMENT 'why, in words',
  cycle_id STRING NOT NULL,
  created_at TIMESTAMP NOT NULL,
  target_offset BIGINT COMMENT 'what the group had on the target before this cycle',
  sync STRING COMMENT 'what was done on the target: committed, in_step, held, waiting, refused, or off'
"""

GAPS = """
  source STRING NOT NULL,
  target STRING NOT NULL,
  topic STRING NOT NULL COMMENT 'topic on the source',
  partition INT NOT NULL COMMENT 'partition on the source',
  from_offset BIGINT NOT NULL COMMENT 'first source offset that has nothing on the target',
  to_offset BIGINT NOT NULL COMMENT 'source offset after the last one',
  kind STRING NOT NULL
    COMMENT 'why nothing was mirrored: explained, a loss, or a reset; docs/sql.md lists the kinds',
  incarnation INT NOT NULL
    COMMENT 'of the log that has these offsets; of a reset, the one that ended: its map is void from from_offset on',
  downstream_offset BIGINT NOT NULL COMMENT 'where on the target it falls: the end of what was mirrored before it',
  sync_partition INT NOT NULL COMMENT 'partition of the offset-syncs topic that this row was read from',
  sync_offset BIGINT NOT NULL COMMENT 'offset there',
  committed_at TIMESTAMP NOT NULL COMMENT 'timestamp of that record, written just before the commit'
"""

EXPECTATION_RESULTS = """
  suite STRING NOT NULL,
  subject STRING NOT NULL COMMENT 'what was looked at',
  expectation STRING NOT NULL,
  success BOOLEAN NOT NULL,
  observed STRING COMMENT 'JSON',
  unexpected STRING COMMENT 'JSON: the first values that were not expected',
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
  action STRING COMMENT 'what mirrorlake did',
  detected_at TIMESTAMP NOT NULL
"""

TOPOLOGY_CHANGES = """
  source STRING NOT NULL,
  target STRING NOT NULL,
  kind STRING NOT NULL COMMENT 'create_topic, add_partitions, set_config, reset_config, create_acl or delete_acl',
  topic STRING COMMENT 'topic on the source that it was for',
  target_topic STRING NOT NULL COMMENT 'remote topic on the target, or the name an access right is for',
  name STRING COMMENT 'the property',
  before STRING,
  after STRING,
  note STRING COMMENT 'why it differs from the source',
  outcome STRING NOT NULL COMMENT 'applied, or why it was refused',
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
  upstream_from BIGINT COMMENT 'first source offset that was looked at',
  upstream_to BIGINT COMMENT 'source offset after the last one',
  downstream_from BIGINT COMMENT 'first target offset that was looked at',
  downstream_to BIGINT COMMENT 'target offset after the last one: where the map goes on, or the end of the log',
  records BIGINT NOT NULL COMMENT 'records of the source that were held against their copies',
  digested BIGINT NOT NULL COMMENT 'of those: recognised by the digests of their batches, unopened',
  missing BIGINT NOT NULL COMMENT 'on the source, and not on the target',
  duplicated BIGINT NOT NULL COMMENT 'more copies on the target than the source has',
  out_of_order BIGINT NOT NULL COMMENT 'on the target, but not at the place that the map says',
  different BIGINT NOT NULL COMMENT 'at its place, with another key, value, headers or timestamp',
  unexpected BIGINT NOT NULL COMMENT 'on the target, and not on the source',
  not_comparable BIGINT NOT NULL
    COMMENT 'gone from one side since, by retention or compaction: neither right nor wrong',
  status STRING NOT NULL COMMENT 'equal, different, not_comparable or not_covered',
  passed BOOLEAN NOT NULL COMMENT 'records were compared, and there is no difference',
  verified_to TIMESTAMP COMMENT 'committed_at of the last run that was looked at',
  offset_syncs_version BIGINT NOT NULL COMMENT 'Delta version of offset_syncs that was the map',
  gaps_version BIGINT NOT NULL COMMENT 'and of gaps, which says what of it was void',
  detail STRING,
  started_at TIMESTAMP NOT NULL,
  finished_at TIMESTAMP NOT NULL
"""

# No contents of records: they may be personal data, and both logs still have them.
VERIFICATION_FINDINGS = """
  verification_id STRING NOT NULL,
  source STRING NOT NULL,
  target STRING NOT NULL,
  topic STRING NOT NULL,
  partition INT NOT NULL,
  upstream_offset BIGINT COMMENT 'of the record on the source; null: there is none',
  target_topic STRING NOT NULL,
  target_partition INT NOT NULL,
  downstream_offset BIGINT COMMENT 'where the record is on the target, or where the map has one that is missing',
  kind STRING NOT NULL COMMENT 'missing, duplicated, out_of_order, different or unexpected',
  detail STRING COMMENT 'which of key, value, headers and timestamp differ, or where the record should be'
"""

FAILOVERS = """
  failover_id STRING NOT NULL COMMENT 'of one rehearsal or run; its rows are one for each group and partition',
  source STRING NOT NULL,
  target STRING NOT NULL,
  mode STRING NOT NULL COMMENT 'rehearse or run',
  group_id STRING NOT NULL,
  topic STRING COMMENT 'topic on the source; null for a group without positions',
  partition INT,
  target_topic STRING,
  target_partition INT,
  status STRING NOT NULL
    COMMENT 'exact, clamped, before_mirror, not_mirrored or not_covered; no_groups where none is known',
  upstream_offset BIGINT COMMENT 'where the group was on the source',
  seen_in STRING COMMENT 'where that was read: source, or ledger (table checkpoints)',
  seen_at TIMESTAMP COMMENT 'when; of the ledger, since when it has known it',
  downstream_offset BIGINT COMMENT 'its place on the target',
  previous_target_offset BIGINT COMMENT 'what the group had on the target before',
  mirrored_to BIGINT COMMENT 'source offset up to which the partition was mirrored',
  source_end BIGINT COMMENT 'end of the source partition; with a dead source, as it was last seen',
  not_mirrored BIGINT COMMENT 'records between the two; null with a dead source',
  lag_seen BIGINT COMMENT 'with a dead source: offsets between the two',
  rpo_seconds DOUBLE COMMENT 'age of the oldest record not mirrored; source dead: of the last commit of its slot',
  re_reads BIGINT COMMENT 'records the group would have read again from previous_target_offset',
  skips BIGINT COMMENT 'records the group would have missed from previous_target_offset',
  again BIGINT COMMENT 'records it reads again all the same, as both sides have written at once',
  blocks ARRAY<STRING> COMMENT 'what spoke against it: kind and reason',
  accepted ARRAY<STRING> COMMENT 'kinds of blocks that signed_by has accepted',
  go BOOLEAN NOT NULL,
  proof STRING COMMENT 'what a rehearsal found at the place',
  outcome STRING NOT NULL
    COMMENT 'rehearsed, committed, in_step, refused (with the reason), held, no_place, or closed (no groups)',
  signed_by STRING,
  at TIMESTAMP COMMENT 'as of when the positions are; null for now',
  created_at TIMESTAMP NOT NULL
"""

CYCLES = """
  source STRING NOT NULL,
  target STRING NOT NULL,
  job STRING NOT NULL
    COMMENT 'mirror (a micro-batch, or an idle minute), ledger (an append to offset_syncs) or checkpoint',
  cycle_id STRING NOT NULL COMMENT 'as in expectation_results',
  finished_at TIMESTAMP NOT NULL,
  duration_ms DOUBLE NOT NULL COMMENT 'from the beginning of the plan to the end of the commit',
  stages_ms MAP<STRING, DOUBLE> NOT NULL COMMENT 'where that time went',
  records BIGINT COMMENT 'mirrored',
  bytes BIGINT COMMENT 'of the record batches, compressed as they are',
  runs BIGINT COMMENT 'rows for offset_syncs',
  partitions BIGINT COMMENT 'that were copied',
  lag BIGINT COMMENT 'source offsets that were still to be mirrored',
  positions BIGINT COMMENT 'of groups that were translated',
  unfinished BIGINT COMMENT 'of these: clamped'
"""

TABLES: Mapping[str, tuple[str, str]] = {
    "offset_syncs": (OFFSET_SYNCS, "topic, partition, upstream_start"),
    "gaps": (GAPS, "topic, partition, from_offset"),
    "checkpoints": (CHECKPOINTS, "group_id, topic, created_at"),
    "expectation_results": (EXPECTATION_RESULTS, "evaluated_at"),
    "anomalies": (ANOMALIES, "detected_at"),
    "topology_changes": (TOPOLOGY_CHANGES, "changed_at"),
    "verifications": (VERIFICATIONS, "topic, partition, upstream_to"),
    "verification_findings": (VERIFICATION_FINDINGS, "topic, partition, downstream_offset"),
    "failovers": (FAILOVERS, "created_at, group_id"),
    "cycles": (CYCLES, "finished_at"),
}


def column_definitions(name: str) -> list[str]:
    """Lists the definitions of a table's columns; a definition may continue on indented lines."""
    columns, _ = TABLES[name]
    return [line.strip().rstrip(",") for line in re.sub(r"\n {4,}", " ", columns).strip().splitlines()]
