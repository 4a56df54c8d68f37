"""Fixtures of the crash tests."""

from __future__ import annotations

from tests.control.conftest import start_instance

__all__ = ["start_instance"]
