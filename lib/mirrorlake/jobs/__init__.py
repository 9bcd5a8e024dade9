"""The jobs, one package each. Failover and migration may use the others, never the other way round."""
