-- The runs of offset_syncs, one row for each. A row of offset_syncs is one run, or holds all runs that a transaction has of a partition (column runs).
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- topic: topic on the source
-- partition: partition on the source
-- target_topic: remote topic on the target
-- target_partition: partition on the target
-- upstream_start: first source offset of the run
-- upstream_end: source offset after the last one
-- downstream_start: target offset of the first record
-- downstream_end: target offset after the last one
-- records: number of records
-- bytes: size of the record batches, as compressed
-- first_timestamp: smallest base timestamp of a batch
-- last_timestamp: largest timestamp of a batch
-- digest: CRC-32C of counts, timestamps and records of the batches, equal on both sides; null if inferred
-- transactional_id: transactional id of the slot that has written the run
-- producer_id: producer id of the transaction
-- producer_epoch: producer epoch of the transaction
-- sync_partition: partition of the offset-syncs topic that the run was read from
-- sync_offset: offset in that partition
-- committed_at: time just before the commit
-- inferred: true if derived from the contents of both logs at a take-over
-- incarnation: number of resets of the partition before the run
-- shared: true if others write to the remote topic, too (mirrorlake.topics.shared); null if not known
SELECT
  source, target, topic, partition, target_topic, target_partition,
  upstream_start + coalesce(one.upstream, 0) AS upstream_start,
  CASE WHEN one IS NULL THEN upstream_end ELSE upstream_start + one.upstream + one.records END AS upstream_end,
  downstream_start + coalesce(one.downstream, 0) AS downstream_start,
  CASE WHEN one IS NULL THEN downstream_end ELSE downstream_start + one.downstream + one.records END AS downstream_end,
  coalesce(one.records, records) AS records, coalesce(one.bytes, bytes) AS bytes,
  CASE WHEN one IS NULL THEN first_timestamp ELSE timestamp_millis(unix_millis(committed_at) - one.first_ms) END AS first_timestamp,
  CASE WHEN one IS NULL THEN last_timestamp ELSE timestamp_millis(unix_millis(committed_at) - one.last_ms) END AS last_timestamp,
  CASE WHEN one IS NULL THEN digest ELSE lower(right(hex(one.digest + 6442450944), 8)) END AS digest,
  transactional_id, producer_id, producer_epoch, sync_partition, sync_offset, committed_at, inferred, incarnation, shared
FROM {offset_syncs} LATERAL VIEW OUTER explode(runs) AS one
