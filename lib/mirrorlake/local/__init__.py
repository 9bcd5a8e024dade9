"""What a laptop has instead of a data centre: real brokers started from Maven's jars. Tests, demo and bench use the same code."""
