"""Clients that reach the broker by ZeroMQ. See README.md."""
