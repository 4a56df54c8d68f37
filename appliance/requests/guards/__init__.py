"""What each API checks before it is served: one guard for each key (`table.GUARDS`)."""
