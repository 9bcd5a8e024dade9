-- The offsets of every group over time: each row of checkpoints about a partition, with the time during which it was valid.
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- group_id: the consumer group
-- topic: topic on the source; null in a row about the whole group
-- partition: partition on the source
-- target_topic: remote topic on the target
-- target_partition: partition on the target
-- upstream_offset: committed offset of the group on the source: its next record
-- downstream_offset: target offset of the first mirrored record at or after upstream_offset
-- status: exact, clamped, before_mirror, not_mirrored, not_mirrored_yet, not_covered, deleted
-- reason: explanation of the status
-- sync: outcome on the target: committed, in_step, held, waiting, refused, or off
-- target_offset: committed offset of the group on the target before that cycle
-- source_lag: offsets that the group had not read yet on the source at valid_from
-- valid_from: time of the cycle in which the checkpoint job saw this offset, status, reason or outcome first
-- valid_to: when another row about the partition came, or the group was deleted, or a deleted one was back; null while the row is valid
WITH seen AS (
  SELECT *,
         lead(created_at) OVER (PARTITION BY source, target, group_id, topic, partition ORDER BY created_at) AS moved_at,
         min(CASE WHEN status = 'deleted' AND topic IS NULL THEN created_at END)
           OVER (PARTITION BY source, target, group_id ORDER BY created_at DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS gone_at,
         CASE WHEN status = 'deleted' AND topic IS NULL THEN lead(created_at) OVER (PARTITION BY source, target, group_id ORDER BY created_at) END AS back_at
  FROM {checkpoints}
)
SELECT
  source, target, group_id, topic, partition, target_topic, target_partition, upstream_offset, downstream_offset, status, reason, sync, target_offset, source_lag,
  created_at AS valid_from, least(moved_at, gone_at, back_at) AS valid_to
FROM seen
