-- The offset map as ranges: each source offset from 0 up is in exactly one row of its partition. Its target offset is downstream_start + greatest(0, offset -
-- upstream_start). translate reads this view; join the view to translate many positions at once.
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- topic: topic on the source
-- partition: partition on the source
-- from_offset: first source offset of the row
-- to_offset: source offset after the last one; null in the last row
-- target_topic: remote topic on the target; null if no record of the partition is mirrored yet
-- target_partition: partition on the target
-- upstream_start: first source offset of the run; null after the last run, where every offset maps to downstream_start
-- downstream_start: target offset that corresponds to upstream_start; after the last run, its end, or that of all that was mirrored before the last reset
-- status: exact; clamped, past the mirrored end in the ledger; before_mirror, before the first run, or before all that the flow has passed, if there is none; not_covered, a transform has spread the partition over several, or
-- others write to the remote topic, too (mirrorlake.topics.shared), so that the row is valid for single records only
WITH passed AS (
  SELECT source, target, topic, partition, target_topic, target_partition, upstream_start, upstream_end, downstream_start, downstream_end, upstream_end AS passed, shared, NULL AS begins
  FROM {current_runs}
  UNION ALL
  SELECT source, target, topic, partition, NULL, NULL, NULL, NULL, NULL, max(resumed_at), max(to_offset), NULL, min(begins) FROM (
    SELECT source, target, topic, partition, 0L AS resumed_at, to_offset, from_offset AS begins FROM {current_gaps}
    UNION ALL
    SELECT source, target, topic, partition, array_max(resets).resumed_at, 0L, 0L FROM {resets}
  ) GROUP BY source, target, topic, partition
),
-- The row of gaps and resets comes before all runs; it is the last one only where there are no runs.
known AS (
  SELECT *, lag(upstream_end) OVER (PARTITION BY source, target, topic, partition ORDER BY upstream_start NULLS FIRST) AS previous_end,
         lead(upstream_end) OVER (PARTITION BY source, target, topic, partition ORDER BY upstream_start NULLS FIRST) IS NULL AS is_last,
         max(passed) OVER (PARTITION BY source, target, topic, partition) AS mirrored_end,
         max(CASE WHEN upstream_start IS NULL THEN downstream_end END) OVER (PARTITION BY source, target, topic, partition) AS resumed_at,
         min(target_partition) OVER (PARTITION BY source, target, topic, partition) < max(target_partition) OVER (PARTITION BY source, target, topic, partition) AS is_spread,
         coalesce(max_by(shared, upstream_start) OVER (PARTITION BY source, target, topic, partition), false) AS is_shared
  FROM passed
),
answers AS (
  SELECT source, target, topic, partition, target_topic, target_partition, is_spread OR is_shared AS is_without, stack(5,
    previous_end IS NULL AND upstream_start > 0, 0L, upstream_start, upstream_start, downstream_start, 'before_mirror',
    upstream_start IS NOT NULL, coalesce(previous_end, upstream_start), upstream_end, upstream_start, downstream_start, 'exact',
    is_last AND begins > 0, 0L, begins, CAST(NULL AS BIGINT), greatest(downstream_end, resumed_at), 'before_mirror',
    is_last, coalesce(upstream_end, begins, 0L), mirrored_end + 1, CAST(NULL AS BIGINT), greatest(downstream_end, resumed_at), 'exact',
    is_last, mirrored_end + 1, CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), greatest(downstream_end, resumed_at), 'clamped'
  ) AS (is_there, from_offset, to_offset, upstream_start, downstream_start, status)
  FROM known
)
SELECT source, target, topic, partition, from_offset, to_offset, target_topic, target_partition, upstream_start, downstream_start,
       CASE WHEN is_without THEN 'not_covered' ELSE status END AS status
FROM answers WHERE is_there
