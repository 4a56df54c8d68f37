"""The rules of message traces, without I/O (docs/trace.md)."""
