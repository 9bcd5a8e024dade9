-- The source offsets of each partition whose rows of the map maintenance has deleted: all before an offset. What of them was mirrored is not known any more.
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- topic: topic on the source
-- partition: partition on the source
-- to_offset: source offset after the last expired one
SELECT source, target, topic, partition, max(to_offset) AS to_offset
FROM (
  SELECT e.source, e.target, e.topic, e.partition,
         least(e.to_offset, array_min(transform(filter(z.resets, x -> x.incarnation >= e.incarnation), x -> x.from_offset))) AS to_offset
  FROM {expired_ranges} e
  LEFT JOIN {resets} z ON z.source = e.source AND z.target = e.target AND z.topic = e.topic AND z.partition = e.partition
)
WHERE to_offset > 0
GROUP BY source, target, topic, partition
