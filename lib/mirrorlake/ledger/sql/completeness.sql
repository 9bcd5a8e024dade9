-- Records of each topic and hour on both sides, counted apart from the map (counts.ipynb), and how they compare.
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- topic: topic on the source
-- target_topic: remote topic on the target
-- window_start: beginning of the hour, by the timestamps of the records
-- window_end: end of the hour, exclusive
-- source_records: records that were counted on the source
-- due_records: of these, the records that have been counted for longer than the allowed lateness
-- target_records: records that were counted on the target
-- missing: due records that the target does not have
-- surplus: records that the target has in excess of the source
-- status: equal, pending (records that are not due are missing), missing, surplus, or neutral (the counts need not be equal)
-- reason: explanation of neutral
-- comparable_from: beginning of the hours that were counted whole; null if all were
-- counted_at: time of the last counting of the topic
WITH last AS (
  SELECT source, target, topic, max_by(struct(target_topic, counted_at, due_at, comparable_from, neutral), counting) AS of
  FROM {counts}
  GROUP BY source, target, topic
),
totals AS (
  SELECT c.source, c.target, c.topic, any_value(l.of) AS of, c.window_start, c.window_end,
         sum(c.source_records) AS source_records, sum(c.target_records) AS target_records,
         sum(CASE WHEN c.counted_at <= l.of.due_at THEN c.source_records ELSE 0 END) AS due_records
  FROM {counts} c
  JOIN last l ON l.source = c.source AND l.target = c.target AND l.topic = c.topic
  WHERE c.window_start IS NOT NULL
  GROUP BY c.source, c.target, c.topic, c.window_start, c.window_end
),
compared AS (
  SELECT *,
         CASE WHEN of.neutral IS NOT NULL THEN of.neutral
              WHEN window_start < of.comparable_from THEN {uncounted}
         END AS reason
  FROM totals
)
SELECT source, target, topic, of.target_topic AS target_topic, window_start, window_end,
       source_records, due_records, target_records,
       CASE WHEN reason IS NULL THEN greatest(due_records - target_records, 0) ELSE 0 END AS missing,
       CASE WHEN reason IS NULL THEN greatest(target_records - source_records, 0) ELSE 0 END AS surplus,
       CASE WHEN reason IS NOT NULL THEN 'neutral'
            WHEN target_records > source_records THEN 'surplus'
            WHEN target_records < due_records THEN 'missing'
            WHEN target_records < source_records THEN 'pending'
            ELSE 'equal' END AS status,
       reason, of.comparable_from AS comparable_from, of.counted_at AS counted_at
FROM compared
