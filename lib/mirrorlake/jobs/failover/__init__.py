"""Failover and failback: the plan, the rehearsal, the run, and the way home."""
