"""A flow's state on its target: the offset-syncs topic, generations, fencing, and the provenance of batches."""
