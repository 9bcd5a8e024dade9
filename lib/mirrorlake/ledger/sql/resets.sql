-- The resets of each partition. A reset makes every run and gap of its partition void from its first offset on, up to and with its incarnation.
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- topic: topic on the source
-- partition: partition on the source
-- resets: of each reset: the incarnation that ended, the first offset concerned (from_offset), the target offset at which the new log begins or later (resumed_at), and
-- committed_at
SELECT source, target, topic, partition, collect_list(struct(coalesce(incarnation, 0) AS incarnation, from_offset,
  CASE WHEN kind = {target_recreated} THEN 0 ELSE downstream_offset END AS resumed_at, committed_at)) AS resets
FROM {gaps} WHERE kind IN ({reset_kinds})
GROUP BY source, target, topic, partition
