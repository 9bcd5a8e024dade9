-- The lag of the mirror (group_id is null) and of every group in each partition, in offsets. Transaction markers count, too.
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- group_id: the consumer group; null in the mirror's own rows
-- topic: topic on the source
-- partition: partition on the source
-- upstream_offset: the next source offset that the group reads, or that the mirror copies
-- log_end: end offset of the source at the last cycle of the checkpoint job in which a group had moved; null if there was none since the last reset
-- log_end_at: time of that cycle
-- source_lag: offsets from upstream_offset to log_end, or to the mirrored end if that is later
-- downstream_offset: the corresponding target offset
-- target_lag: offsets from downstream_offset to the mirrored end on the target; null in the mirror's own rows
-- mirrored_at: when the last run of the partition was committed
WITH mirrored AS (
  SELECT source, target, topic, partition, max(upstream_end) AS upstream_next, coalesce(max_by(downstream_end, upstream_end), 0) AS downstream_end, max(mirrored_at) AS mirrored_at
  FROM (
    SELECT source, target, topic, partition, upstream_end, downstream_end, committed_at AS mirrored_at FROM {current_runs}
    UNION ALL
    SELECT source, target, topic, partition, to_offset, downstream_offset, NULL FROM {current_gaps}
  ) GROUP BY source, target, topic, partition
),
-- What was seen before the last reset is the end of another log. One cycle saw one end for all groups; only a group past the end (lag 0) says more, so the smallest of the newest cycle is right.
ends AS (
  SELECT c.source, c.target, c.topic, c.partition, max(struct(c.created_at, -(c.upstream_offset + c.source_lag) AS minus_end)) AS newest
  FROM {checkpoints} c
  LEFT JOIN {resets} e ON e.source = c.source AND e.target = c.target AND e.topic = c.topic AND e.partition = c.partition
  WHERE c.source_lag IS NOT NULL AND (e.resets IS NULL OR c.created_at > array_max(e.resets).committed_at)
  GROUP BY c.source, c.target, c.topic, c.partition
),
asked AS (
  SELECT source, target, CAST(NULL AS STRING) AS group_id, topic, partition, upstream_next AS upstream_offset, downstream_end AS downstream_offset FROM mirrored
  UNION ALL
  SELECT source, target, group_id, topic, partition, upstream_offset, downstream_offset FROM {current_position} WHERE downstream_offset IS NOT NULL
)
SELECT
  a.source, a.target, a.group_id, a.topic, a.partition, a.upstream_offset, -e.newest.minus_end AS log_end, e.newest.created_at AS log_end_at,
  greatest(0, greatest(-e.newest.minus_end, m.upstream_next) - a.upstream_offset) AS source_lag,
  a.downstream_offset, CASE WHEN a.group_id IS NOT NULL THEN greatest(0, m.downstream_end - a.downstream_offset) END AS target_lag, m.mirrored_at
FROM asked a
LEFT JOIN mirrored m ON m.source = a.source AND m.target = a.target AND m.topic = a.topic AND m.partition = a.partition
LEFT JOIN ends e ON e.source = a.source AND e.target = a.target AND e.topic = a.topic AND e.partition = a.partition
