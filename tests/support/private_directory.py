"""A private directory of shared memory for tests that play a part of the appliance in their own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.ipc.shared_memory import create_directory, directory_candidate, remove_directory


def new_private_directory() -> Path:
    """Create one; `remove_directory` removes it."""
    path = directory_candidate()
    assert create_directory(path)
    return path


@contextmanager
def private_directory() -> Iterator[Path]:
    """Yield one that is removed afterwards."""
    path = new_private_directory()
    try:
        yield path
    finally:
        remove_directory(path)
