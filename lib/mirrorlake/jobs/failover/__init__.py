"""Failover and failback: plan, rehearsal, run, and the return to the source."""
