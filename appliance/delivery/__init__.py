"""Delayed delivery without I/O: when a record is due, on which level it waits, and how it lies in an internal topic."""
