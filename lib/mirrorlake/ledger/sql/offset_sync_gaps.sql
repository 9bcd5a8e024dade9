-- The gaps of the table gaps, one row for each. A row of gaps is one gap, or holds all explained gaps that a transaction has of a partition (column parts).
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- topic: topic on the source
-- partition: partition on the source
-- from_offset: first source offset without a record on the target
-- to_offset: source offset after the last one
-- kind: cause of the gap: see unmirrored
-- incarnation: number of earlier resets of the partition
-- downstream_offset: target offset of the gap: the end of the records mirrored before it
-- sync_partition: partition of the offset-syncs topic that the gap was read from
-- sync_offset: offset in that partition
-- committed_at: time just before the commit
SELECT
  source, target, topic, partition, from_offset + coalesce(one.upstream, 0) AS from_offset,
  CASE WHEN one IS NULL THEN to_offset ELSE from_offset + one.upstream + one.offsets END AS to_offset,
  coalesce(one.kind, kind) AS kind, incarnation, downstream_offset + coalesce(one.downstream, 0) AS downstream_offset,
  sync_partition, sync_offset, committed_at
FROM {gaps} LATERAL VIEW OUTER explode(parts) AS one
