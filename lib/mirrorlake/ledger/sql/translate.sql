-- The target offset of a source offset: that of the first mirrored record at or after it. One row for each call.
--
-- source STRING: alias of the cluster that was read
-- target STRING: alias of the cluster that was written
-- topic STRING: topic on the source
-- partition INT: partition on the source
-- upstream_offset BIGINT: offset on the source, from 0 up
--
-- target_topic STRING: remote topic on the target
-- target_partition INT: partition on the target
-- downstream_offset BIGINT: offset on the target
-- status STRING: exact; clamped, past the mirrored end in the ledger; before_mirror, before the first run, or before all that the flow has passed, if there is
-- none; not_covered, see offset_map; not_mirrored, the ledger has no row of the partition
SELECT
  m.target_topic, m.target_partition, m.downstream_start + greatest(0, q.upstream_offset - m.upstream_start) AS downstream_offset,
  coalesce(m.status, 'not_mirrored') AS status
FROM (
  SELECT translate.source AS source, translate.target AS target, translate.topic AS topic, translate.partition AS partition, translate.upstream_offset AS upstream_offset
) q
LEFT JOIN {offset_map} m ON m.source = q.source AND m.target = q.target AND m.topic = q.topic AND m.partition = q.partition
  AND q.upstream_offset >= m.from_offset AND (m.to_offset IS NULL OR q.upstream_offset < m.to_offset)
