"""The key process: fetches the keys of the identity provider (see the README)."""
