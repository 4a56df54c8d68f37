"""The shared-memory lane: clients of this host that put requests into memory (docs/shared-memory.md)."""
