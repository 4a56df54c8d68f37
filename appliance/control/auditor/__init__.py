"""The process that writes the audit journal."""
