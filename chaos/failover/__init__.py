"""Failover under chaos: groups of real clients at work, a source that dies, and a judge of each journal."""
