"""The rules of the message audit, without I/O (docs/message-audit.md)."""
