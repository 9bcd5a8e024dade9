"""The jobs, one package each. Failover and migration may import the others, but not the reverse."""
