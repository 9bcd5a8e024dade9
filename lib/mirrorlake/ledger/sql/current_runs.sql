-- The runs of offset_syncs that hold now. Runs that a reset has made void are left out; a run across the first offset of a reset is cut there.
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- topic: topic on the source
-- partition: partition on the source
-- target_topic: remote topic on the target
-- target_partition: partition on the target
-- upstream_start: first source offset of the run
-- upstream_end: source offset after the last one
-- downstream_start: target offset of the first record
-- downstream_end: target offset after the last one
-- records: number of records
-- first_timestamp: smallest base timestamp of a batch of the whole run
-- last_timestamp: largest timestamp of a batch of the whole run
-- incarnation: number of resets of the partition before the run
-- committed_at: time just before the commit
-- shared: true if others write to the remote topic, too (mirrorlake.topics.shared)
WITH runs AS (
  SELECT r.*, array_min(transform(filter(e.resets, x -> x.incarnation >= coalesce(r.incarnation, 0)), x -> x.from_offset)) AS void_from
  FROM {offset_sync_runs} r
  LEFT JOIN {resets} e ON e.source = r.source AND e.target = r.target AND e.topic = r.topic AND e.partition = r.partition
)
SELECT
  source, target, topic, partition, target_topic, target_partition,
  upstream_start, least(upstream_end, void_from) AS upstream_end,
  downstream_start, downstream_start + least(upstream_end, void_from) - upstream_start AS downstream_end,
  least(upstream_end, void_from) - upstream_start AS records,
  first_timestamp, last_timestamp, coalesce(incarnation, 0) AS incarnation, committed_at, coalesce(shared, false) AS shared
FROM runs
WHERE void_from IS NULL OR upstream_start < void_from
