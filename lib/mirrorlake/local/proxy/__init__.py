"""A proxy in front of local clusters, for lines that are long, slow or broken."""
