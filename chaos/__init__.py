"""Chaos: real clusters, faults drawn from a seed, the real jobs, and a checker that shares no code with them."""
