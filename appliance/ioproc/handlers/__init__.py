"""One operation, one file."""
