"""The topics of a flow on its target: those of its own, and the remote topics, which follow the source."""
