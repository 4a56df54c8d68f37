"""The audit journal: who did what, from where, and how it ended."""
