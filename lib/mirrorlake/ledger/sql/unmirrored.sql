-- Every source offset below the mirrored end that has no counterpart on the target, with its cause; and every reset of a log.
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- topic: topic on the source
-- partition: partition on the source
-- from_offset: first source offset concerned
-- to_offset: source offset after the last one
-- offsets: number of offsets
-- kind: kind in the table gaps; before_mirror, expired or unknown where the table has no row
-- is_loss: true if a record existed that can't be read any more, or can't be written; null where that isn't known
-- cause: explanation of the kind
-- downstream_offset: target offset of the gap; null where that isn't known
-- committed_at: time at which the flow passed the range; null where that isn't known
WITH covered AS (
  SELECT source, target, topic, partition, upstream_start AS from_offset, upstream_end AS to_offset FROM {current_runs}
  UNION ALL
  SELECT source, target, topic, partition, from_offset, to_offset FROM {current_gaps}
),
steps AS (
  SELECT *, max(to_offset) OVER (PARTITION BY source, target, topic, partition ORDER BY from_offset, to_offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
  FROM covered
),
found AS (
  SELECT source, target, topic, partition, from_offset, to_offset, kind, downstream_offset, committed_at FROM {current_gaps}
  UNION ALL
  SELECT source, target, topic, partition, from_offset, to_offset, kind, downstream_offset, committed_at FROM {gaps} WHERE kind IN ({reset_kinds})
  UNION ALL
  SELECT s.source, s.target, s.topic, s.partition, coalesce(reached, 0), from_offset,
         CASE WHEN reached IS NOT NULL THEN 'unknown' WHEN e.to_offset >= from_offset THEN 'expired' ELSE 'before_mirror' END, NULL, NULL
  FROM steps s
  LEFT JOIN {expired} e ON e.source = s.source AND e.target = s.target AND e.topic = s.topic AND e.partition = s.partition
  WHERE from_offset > coalesce(reached, 0)
)
SELECT
  source, target, topic, partition, from_offset, to_offset, to_offset - from_offset AS offsets, kind,
  CASE WHEN kind IN ({loss}) THEN true WHEN kind IN ({explained}) THEN false END AS is_loss,
  CASE kind {causes} END AS cause,
  downstream_offset, committed_at
FROM found
