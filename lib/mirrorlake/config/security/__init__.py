"""Login, TLS and config providers of the clients of a cluster, before they are rendered for a client library."""
