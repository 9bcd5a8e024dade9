"""Login and TLS of the clients of a cluster, as properties, before they are rendered for a client library."""
