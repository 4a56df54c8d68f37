"""Files by path or by address: a path is the operating system's, `scheme://…` goes through pyarrow's file systems.

An address leads to an export of closed segments (`segment_export`), of which a file never changes. What is there is
said by its manifests, so nothing is listed but those.
"""

from __future__ import annotations

import json
import os
import time
from functools import lru_cache
from typing import Any, Final

MANIFEST: Final = ".manifest.json"
_KEPT_S: Final = 5.0


def is_address(path: str) -> bool:
    """Whether a path leads through pyarrow."""
    return "://" in path


class LocalFile:
    """An open file of this host. `identity` is (device, inode)."""

    __slots__ = ("_descriptor", "identity")

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._descriptor)
        self.identity = status.st_dev, status.st_ino

    def size_bytes(self) -> int:
        """As it is now."""
        return os.fstat(self._descriptor).st_size

    def read(self, length_bytes: int, position: int) -> bytes:
        """At most `length_bytes` from `position` on."""
        return os.pread(self._descriptor, length_bytes, position)

    def read_into(self, view: memoryview, position: int) -> int:
        """How many bytes were read; 0 at the end."""
        return os.preadv(self._descriptor, [view], position)

    def close(self) -> None:
        os.close(self._descriptor)


class RemoteFile:
    """An object of an export. Its `identity` is its size: it has one content for good."""

    __slots__ = ("_file", "_size_bytes", "identity")

    def __init__(self, address: str) -> None:
        file_system, path = _file_system(address)
        self._file: Any = file_system.open_input_file(path)
        self._size_bytes: int = self._file.size()
        self.identity = 0, self._size_bytes

    def size_bytes(self) -> int:
        return self._size_bytes

    def read(self, length_bytes: int, position: int) -> bytes:
        wanted = max(0, min(length_bytes, self._size_bytes - position))
        return bytes(self._file.read_at(wanted, position)) if wanted else b""

    def read_into(self, view: memoryview, position: int) -> int:
        data = self.read(len(view), position)
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()


OpenFile = LocalFile | RemoteFile


def open_file(path: str) -> OpenFile:
    """Opens a file for reading.

    Raises:
        FileNotFoundError: there is none. OSError: it cannot be opened.
        ImportError: an address, and pyarrow is not installed.
    """
    return RemoteFile(path) if is_address(path) else LocalFile(path)


def read_file(path: str) -> bytes:
    """All bytes of a file.

    Raises:
        As `open_file`.
    """
    file = open_file(path)
    try:
        return file.read(file.size_bytes(), 0)
    finally:
        file.close()


def manifests(address: str) -> list[dict[str, Any]]:
    """The manifests of an export, as JSON; kept for some seconds.

    Raises:
        OSError: the address cannot be listed, or a manifest not be read. ValueError: one does not parse.
    """
    return _manifests(address.rstrip("/"), int(time.monotonic() / _KEPT_S))


@lru_cache(maxsize=64)
def _manifests(address: str, _turn: int) -> list[dict[str, Any]]:
    from pyarrow import fs

    file_system, path = _file_system(address)
    found = file_system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    names = sorted(info.path for info in found if info.path.endswith(MANIFEST))
    told = []
    for name in names:
        with file_system.open_input_file(name) as file:
            told.append(json.loads(file.readall()))
    return told


def partition_of(directory: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest and its part about the partition in `directory`, an address such as `s3://bucket/logs/orders-0`.

    Raises:
        FileNotFoundError: no manifest tells of it.
        As `manifests`.
    """
    address, _, name = directory.rpartition("/")
    for manifest in manifests(address):
        for partition in manifest["partitions"]:
            if f"{manifest['topic']}-{partition['partition']}" == name:
                return manifest, partition
    raise FileNotFoundError(f"{address} has no manifest that tells of {name}")


def _file_system(address: str) -> tuple[Any, str]:
    from pyarrow import fs

    found: tuple[Any, str] = fs.FileSystem.from_uri(address)
    return found
