"""Acceptor and network processes: connections in, requests onto the rings, responses and segments out."""
