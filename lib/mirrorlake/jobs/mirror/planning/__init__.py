"""Plans of micro-batches: the offsets that each slot copies next, and what a flow waits for."""
