"""Files by path or by address: a path is the operating system's, `scheme://…` goes through pyarrow's file systems.

An address leads to an export of closed segments (`segment_export`), of which a file never changes. What is there is
said by its manifests, so nothing is listed but those. Behind a `?` it may say how the store is reached, in pyarrow's
words (`s3://bucket/logs?endpoint_override=host:9000&scheme=http&region=here`); that stays behind every path below it.
"""

from __future__ import annotations

import json
import os
import re
import time
from functools import lru_cache
from typing import Any, Final

MANIFEST: Final = ".manifest.json"
_KEPT_S: Final = 5.0
_CREDENTIALS: Final = re.compile(r"(?<=:)//[^/?@\s]*@")


def is_address(path: str) -> bool:
    """Whether a path leads through pyarrow."""
    return "://" in path


def below(directory: str, name: str) -> str:
    """The path or address of `name` in a directory."""
    if not is_address(directory):
        return os.path.join(directory, name)
    path, mark, query = directory.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{query}"


def directory_of(path: str) -> str:
    """The directory, or the address, in which a file lies."""
    if not is_address(path):
        return os.path.dirname(path)
    place, mark, query = path.partition("?")
    return place.rpartition("/")[0] + mark + query


def shown(address: str) -> str:
    """An address without what gives access."""
    return _CREDENTIALS.sub("//", address)


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
        files, path = file_system(address)
        self._file: Any = files.open_input_file(path)
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

    files, path = file_system(address)
    found = files.get_file_info(fs.FileSelector(path, allow_not_found=True))
    names = sorted(info.path for info in found if info.path.endswith(MANIFEST))
    told = []
    for name in names:
        with files.open_input_file(name) as file:
            told.append(json.loads(file.readall()))
    return told


def partition_of(directory: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest and its part about the partition in `directory`, an address such as `s3://bucket/logs/orders-0`.

    Raises:
        FileNotFoundError: no manifest tells of it.
        As `manifests`.
    """
    address, name = directory_of(directory), directory.partition("?")[0].rpartition("/")[2]
    for manifest in manifests(address):
        for partition in manifest["partitions"]:
            if f"{manifest['topic']}-{partition['partition']}" == name:
                return manifest, partition
    raise FileNotFoundError(f"{shown(address)} has no manifest that tells of {name}")


def file_system(address: str) -> tuple[Any, str]:
    """pyarrow's file system that an address leads to, and the path in it."""
    from pyarrow import fs

    found: tuple[Any, str] = fs.FileSystem.from_uri(address)
    return found
