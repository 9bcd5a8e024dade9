"""The checkpoint job: reads the groups of the source, translates, decides, commits on the target."""
