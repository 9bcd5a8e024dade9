-- The lag of the mirror in each partition as the mirror job has last measured it, apart from any group. A row is as true as its measured_at is new; one of a clock that was ahead does not count.
--
-- source: alias of the cluster that was read
-- target: alias of the cluster that was written
-- topic: topic on the source
-- partition: partition on the source
-- state: mirroring, not_begun, paused, held, promoted (failed over by itself), replaced (created anew, or set back), or silent (no answer of its leader)
-- reason: explanation of the state; null if the partition is mirrored
-- upstream_next: the next source offset that the mirror copies; null if nothing is mirrored yet
-- last_stable_offset: where consumers with read_committed stop on the source; null if its leader does not answer
-- high_watermark: where all consumers stop on the source
-- lag: offsets from upstream_next to last_stable_offset; null if it is not known. Transaction markers count, too
-- uncommitted: offsets from last_stable_offset to high_watermark, which wait for open transactions
-- oldest_at: timestamp of the oldest record that is not mirrored; null if there is none, or if it can't be right
-- lag_seconds: age of that record when it was measured; 0 if nothing waits, null if it is not known
-- measured_at: time of the measurement
-- is_stale: true if the next measurement is overdue: no mirror job runs, or it can't reach a cluster
SELECT
  source, target, one.topic, one.partition, one.state, one.reason, one.upstream_next, one.last_stable_offset, one.high_watermark, one.lag, one.uncommitted,
  one.oldest_at, one.lag_seconds, newest.measured_at, newest.due_at < current_timestamp() AS is_stale
FROM (
  SELECT source, target, max_by(struct(measured_at, due_at, partitions), measured_at) AS newest
  FROM {lag_samples} JOIN (SELECT source, target, max(measured_at) AS measured_at FROM {lag_samples}
    WHERE measured_at < current_timestamp() + INTERVAL 5 MINUTES
    GROUP BY source, target) USING (source, target, measured_at)
  GROUP BY source, target
)
LATERAL VIEW explode(newest.partitions) AS one
