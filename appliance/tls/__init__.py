"""TLS without sockets: contexts from certificate files, and the names in certificates."""
