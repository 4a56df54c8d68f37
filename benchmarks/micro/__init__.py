"""Micro benchmarks: one file a primitive."""
