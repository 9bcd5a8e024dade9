-- Ranges of mirrored source offsets that no passed verification covers. Samples do not count.
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- topic: topic on the source
-- partition: partition on the source
-- from_offset: first source offset that is mirrored and not verified
-- to_offset: source offset after the last one
-- records: mirrored records of the range; a verification from before a reset of the log does not count
WITH passed AS (
  SELECT v.source, v.target, v.topic, v.partition, v.upstream_from,
         least(v.upstream_to, array_min(transform(filter(e.resets, x -> x.committed_at > v.started_at), x -> x.from_offset))) AS upstream_to
  FROM {verifications} v
  LEFT JOIN {resets} e ON e.source = v.source AND e.target = v.target AND e.topic = v.topic AND e.partition = v.partition
  WHERE v.passed AND v.mode <> 'sample'
),
edges AS (
  SELECT source, target, topic, partition, stack(2, upstream_start, 1, 0, upstream_end, -1, 0) AS (at, runs, checks) FROM {current_runs}
  UNION ALL
  SELECT source, target, topic, partition, stack(2, upstream_from, 0, 1, upstream_to, 0, -1) AS (at, runs, checks) FROM passed WHERE upstream_from < upstream_to
),
steps AS (
  SELECT source, target, topic, partition, at, sum(runs) AS runs, sum(checks) AS checks FROM edges GROUP BY source, target, topic, partition, at
),
pieces AS (
  SELECT source, target, topic, partition, at AS from_offset,
         lead(at) OVER (PARTITION BY source, target, topic, partition ORDER BY at) AS to_offset,
         sum(runs) OVER (PARTITION BY source, target, topic, partition ORDER BY at) > 0 AS is_mirrored,
         sum(checks) OVER (PARTITION BY source, target, topic, partition ORDER BY at) > 0 AS is_verified
  FROM steps
),
stretches AS (
  SELECT *, count_if(is_verified) OVER (PARTITION BY source, target, topic, partition ORDER BY from_offset) AS stretch FROM pieces WHERE is_mirrored
)
SELECT source, target, topic, partition, min(from_offset) AS from_offset, max(to_offset) AS to_offset, sum(to_offset - from_offset) AS records
FROM stretches WHERE NOT is_verified
GROUP BY source, target, topic, partition, stretch
