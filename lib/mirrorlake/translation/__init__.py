"""Translation of offsets: the join against the map, its newest part in memory, both maps of a pair of flows,
and positions that are kept outside Kafka."""
