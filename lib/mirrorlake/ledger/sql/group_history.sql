-- Where every group was, and when: each row of checkpoints about a partition, with the time during which it held.
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- group_id: the consumer group
-- topic: topic on the source; null in a row about the whole group
-- partition: partition on the source
-- target_topic: remote topic on the target
-- target_partition: partition on the target
-- upstream_offset: what the group had committed on the source: the next record it wanted
-- downstream_offset: the first mirrored record at or after it
-- status: exact, clamped, before_mirror, not_mirrored, not_covered or deleted
-- reason: why, in words
-- sync: what was done on the target: committed, in_step, held, waiting, refused, or off
-- target_offset: what the group had on the target before that
-- source_lag: offsets the group had still to read on the source when it moved there
-- valid_from: when it was seen there first
-- valid_to: when it was seen elsewhere, or was gone; null while it holds
WITH seen AS (
  SELECT *,
         lead(created_at) OVER (PARTITION BY source, target, group_id, topic, partition ORDER BY created_at) AS moved_at,
         min(CASE WHEN status = 'deleted' AND topic IS NULL THEN created_at END)
           OVER (PARTITION BY source, target, group_id ORDER BY created_at ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS gone_at
  FROM {checkpoints}
)
SELECT
  source, target, group_id, topic, partition, target_topic, target_partition, upstream_offset, downstream_offset, status, reason, sync, target_offset, source_lag,
  created_at AS valid_from, least(moved_at, gone_at) AS valid_to
FROM seen
