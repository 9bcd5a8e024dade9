-- The rows of gaps that hold now, without the resets and without the gaps that a reset has made void. Runs and gaps together cover all offsets that a flow has passed.
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- topic: topic on the source
-- partition: partition on the source
-- from_offset: first source offset without a record on the target
-- to_offset: source offset after the last one
-- kind: cause of the gap: see unmirrored
-- incarnation: number of resets of the partition before the gap
-- downstream_offset: target offset of the gap: the end of the records mirrored before it
-- committed_at: time just before the commit
WITH found AS (
  SELECT g.*, array_min(transform(filter(e.resets, x -> x.incarnation >= coalesce(g.incarnation, 0)), x -> x.from_offset)) AS void_from
  FROM {offset_sync_gaps} g
  LEFT JOIN {resets} e ON e.source = g.source AND e.target = g.target AND e.topic = g.topic AND e.partition = g.partition
  WHERE g.kind NOT IN ({reset_kinds})
)
SELECT
  source, target, topic, partition, from_offset, least(to_offset, void_from) AS to_offset,
  kind, coalesce(incarnation, 0) AS incarnation, downstream_offset, committed_at
FROM found
WHERE void_from IS NULL OR from_offset < void_from
