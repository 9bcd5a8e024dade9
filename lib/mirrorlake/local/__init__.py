"""Brokers and a Spark session on one machine, for the demo, tests, benchmarks and laptops."""
