"""SASL: how a client proves who it is (see the README)."""
