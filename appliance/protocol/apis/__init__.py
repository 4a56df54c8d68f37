"""The shapes of requests and responses, one file per API: what a handler sees, whatever the version."""
