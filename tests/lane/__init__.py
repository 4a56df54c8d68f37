"""Tests of the shared-memory lane."""
