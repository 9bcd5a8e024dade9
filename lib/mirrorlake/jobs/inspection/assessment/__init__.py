"""Assesses what a flow would mirror, before it runs for the first time; reads, and changes nothing."""
