"""The domain, without input or output: runs, gaps, slots and positions, plans, recent runs, alignments of two logs."""
