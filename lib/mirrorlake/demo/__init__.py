"""The demo: two clusters, live traffic, a mirror, groups that move over, and a page about it."""
