-- The offsets of a time on both clusters, as exact as runs: the start of the first run with a record at or after the time. No record at or after the time is skipped;
-- earlier records of that run are read, too. No offsets if that is the first run of which the map is kept, and the map before it has expired (maintain.ipynb): records
-- at or after the time may be before it.
--
-- source STRING: alias of the cluster that was read
-- target STRING: alias of the cluster that was written
-- topic STRING: topic on the source
-- partition INT: partition on the source
-- at TIMESTAMP: the time
--
-- upstream_offset BIGINT: the run's first offset on the source; the mirrored end if no record is that late; null if the map before the run has expired
-- target_topic STRING: remote topic on the target
-- target_partition INT: partition on the target; null if a transform spreads the records over several
-- downstream_offset BIGINT: the run's first offset on the target; the mirrored end if no record is that late; null if the records are spread, or the map before the run has
-- expired
-- first_timestamp TIMESTAMP: smallest base timestamp of a batch of the run; null if no record is that late
SELECT
  if(is_expired AND found.upstream_start = first_kept, NULL, coalesce(found.upstream_start, ending.upstream_end)) AS upstream_offset, coalesce(found.target_topic, ending.target_topic) AS target_topic,
  if(is_spread, NULL, ending.target_partition) AS target_partition,
  if(is_spread OR is_expired AND found.upstream_start = first_kept, NULL, coalesce(found.downstream_start, ending.downstream_end)) AS downstream_offset, found.first_timestamp
FROM (
  SELECT min_by(struct(r.upstream_start, r.downstream_start, r.target_topic, r.first_timestamp), r.upstream_start) FILTER (WHERE coalesce(r.last_timestamp >= q.at, true)) AS found,
         max_by(struct(r.upstream_end, r.downstream_end, r.target_topic, r.target_partition), r.upstream_start) AS ending,
         coalesce(min(r.target_partition) < max(r.target_partition), false) AS is_spread,
         min(r.upstream_start) AS first_kept, coalesce(max(e.to_offset) <= min(r.upstream_start), false) AS is_expired
  FROM (
    SELECT translate_time.source AS source, translate_time.target AS target, translate_time.topic AS topic, translate_time.partition AS partition, translate_time.at AS at
  ) q
  LEFT JOIN {current_runs} r ON r.source = q.source AND r.target = q.target AND r.topic = q.topic AND r.partition = q.partition
  LEFT JOIN {expired} e ON e.source = q.source AND e.target = q.target AND e.topic = q.topic AND e.partition = q.partition
  GROUP BY q.source, q.target, q.topic, q.partition, q.at
)
