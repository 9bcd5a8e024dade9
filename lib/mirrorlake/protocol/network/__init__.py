"""Connections to brokers, what goes over them, and the errors of requests."""
