"""Tests of the ZeroMQ gateway."""
