"""Fixtures of the network wing's tests."""

from __future__ import annotations

from tests.control.conftest import start_instance

__all__ = ["start_instance"]
