"""The checkpoint job: reads the groups of the source, translates their positions, and commits them on the target."""
