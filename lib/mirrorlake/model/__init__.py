"""The domain, pure: runs, gaps, slots and their positions, plans, the newest part of the map, alignments."""
