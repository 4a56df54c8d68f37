"""The keys of the identity provider: the key process publishes them, network processes read them.

    <private directory>/keys    a JSON Web Key Set with the usable public keys, and nothing else (sasl/key_set.py)

The key process writes a file of another name and renames it, so a reader finds one whole set. The file outlives the key
process: while it is dead or its endpoint does not answer, the last good keys count. A reader looks at the file's
inode when a client authenticates, and reads it if it is another one.

In the other direction there is one word: "a token has a key that I do not know". A network process writes it to the
eventfd of the key process, which keeps it while that process is dead.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.channels.roles import KEYS
from appliance.channels.wiring import Wiring
from appliance.errors import HostFault
from appliance.ipc.shared_memory import MODE
from appliance.sasl.key_set import DOCUMENT_BYTES_MAX, InvalidKeySet, KeySet, read_key_set

_NAME: Final = "keys"


def publish(directory: Path, keys: KeySet) -> None:
    """Make `keys` those that network processes read from now on.

    Args:
        directory: the private directory of the instance.

    Raises:
        HostFault: the directory cannot be written; the keys from before stay.
    """
    unfinished = directory / f"{_NAME}.new"
    try:
        with suppress(FileNotFoundError):
            os.unlink(unfinished)  # a killed process left it
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(unfinished, flags, MODE), "wb") as file:
            file.write(keys.document())
        os.rename(unfinished, directory / _NAME)
    except OSError as error:
        raise HostFault(f"{unfinished}: {error.strerror}") from error


def published_keys(wiring: Wiring) -> PublishedKeys | None:
    """Return what a network process reads; None if there is no key process."""
    bell = wiring.doorbells.get(KEYS)
    return None if bell is None else PublishedKeys(wiring.runtime_dir, bell)


class PublishedKeys:
    """A network process's side: what `publish` has published.

    Args:
        directory: the private directory of the instance.
        bell: the eventfd of the key process.
    """

    __slots__ = ("_bell", "_keys", "_path", "_stamp")

    def __init__(self, directory: Path, bell: int) -> None:
        self._path = directory / _NAME
        self._bell = bell
        self._stamp: tuple[int, int, int] | None = None
        self._keys: KeySet | None = None

    def current(self) -> KeySet | None:
        """Return the last good keys; None before the first."""
        # What cannot be read changes nothing: the keys from before count.
        with suppress(OSError, InvalidKeySet):
            found = os.stat(self._path)
            stamp = found.st_ino, found.st_mtime_ns, found.st_size
            if stamp != self._stamp:
                self._stamp = stamp
                with open(self._path, "rb") as file:
                    self._keys = read_key_set(file.read(DOCUMENT_BYTES_MAX + 1))
        return self._keys

    def ask_for_newer(self) -> None:
        """Have the key process fetch the keys soon. It bounds how often."""
        # A full counter refuses the write, but then the key process is going to read it.
        with suppress(BlockingIOError):
            os.eventfd_write(self._bell, 1)
