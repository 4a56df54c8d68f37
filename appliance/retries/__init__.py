"""Retry and dead letters without I/O: what becomes of a record that a consumer hands back."""
