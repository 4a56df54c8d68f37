"""The secret from which the salts of users who do not exist are derived (`scram`): a file in the data directory.

It stays the same over restarts, because a salt that changed would show that its user does not exist.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

FILE: Final = "scram-salt-secret"
SECRET_BYTES: Final = 32


def make_salt_secret(data_dir: Path) -> None:
    """Write the file if there is none. One process does so, before the others start.

    Raises:
        OSError: the data directory cannot be written.
    """
    path = data_dir / FILE
    with suppress(OSError):
        if path.stat().st_size == SECRET_BYTES:
            return
    temporary = data_dir / f"{FILE}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, secrets.token_bytes(SECRET_BYTES))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)


def read_salt_secret(data_dir: Path, complain: Callable[[str], None]) -> bytes:
    """Return the secret; another one, which lasts as long as this process, where the file cannot be read."""
    path = data_dir / FILE
    try:
        return path.read_bytes()
    except OSError as error:
        complain(f"{path}: {error.strerror}: until the next start, SCRAM shows which users exist")
        return secrets.token_bytes(SECRET_BYTES)
