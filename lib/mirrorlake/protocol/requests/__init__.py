"""Requests for metadata, offsets and records, and what their responses hold."""
