"""Translation of offsets: by the join against the offset map, by recent runs in memory, by the maps of both directions.

Also translates positions that are kept outside Kafka.
"""
