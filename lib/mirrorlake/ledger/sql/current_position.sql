-- Where every group is now, on both sides: its newest checkpoint in each partition.
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- group_id: the consumer group
-- topic: topic on the source; null in a row about the whole group (deleted, not_covered)
-- partition: partition on the source
-- target_topic: remote topic on the target
-- target_partition: partition on the target
-- upstream_offset: what the group has committed on the source: the next record it wants
-- downstream_offset: the first mirrored record at or after it
-- status: exact, clamped, before_mirror, not_mirrored, not_covered or deleted
-- reason: why, in words
-- sync: what was done on the target: committed, in_step, held, waiting, refused, or off
-- target_offset: what the group had on the target before that
-- since: when it was seen there first
SELECT
  source, target, group_id, topic, partition, target_topic, target_partition, upstream_offset, downstream_offset, status, reason, sync, target_offset,
  valid_from AS since
FROM {group_history}
WHERE valid_to IS NULL
