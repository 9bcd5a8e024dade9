-- The current offsets of every group on both clusters: its newest checkpoint in each partition.
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- group_id: the consumer group
-- topic: topic on the source; null in a row about the whole group (deleted, not_covered)
-- partition: partition on the source
-- target_topic: remote topic on the target
-- target_partition: partition on the target
-- upstream_offset: committed offset of the group on the source: its next record
-- downstream_offset: target offset of the first mirrored record at or after upstream_offset
-- status: exact, clamped, before_mirror, not_mirrored, not_mirrored_yet, not_covered, deleted
-- reason: explanation of the status
-- sync: outcome on the target: committed, in_step, held, waiting, refused, or off
-- target_offset: committed offset of the group on the target before that cycle
-- since: time of the cycle in which the checkpoint job saw this offset, status, reason or outcome first
SELECT
  source, target, group_id, topic, partition, target_topic, target_partition, upstream_offset, downstream_offset, status, reason, sync, target_offset,
  valid_from AS since
FROM {group_history}
WHERE valid_to IS NULL
