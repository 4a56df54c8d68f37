"""Where backups are kept: a directory of this host, or an object store by its address (pyarrow's file systems).

A target belongs to backups alone. A write appears whole or not at all: a directory gets it under another name first,
and an object store shows no object before its upload has ended. `flush` forces everything to the disk, before the
manifest names it.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from appliance.control.backup.claim import Claim
from appliance.control.backup.digest import StreamDigest
from appliance.control.backup.manifest import BACKUPS, DATA, id_of, is_object_path
from appliance.errors import OperatorFault, StorageFault
from appliance.extras import need
from appliance.log.checkpoint import sync_directory
from appliance.log.faults import storage_faults
from appliance.log.lock_file import holders_named, open_lock_file

CHUNK_BYTES: Final = 1 << 20
"""Writes of 4 MiB to a new file took up to ten times as long (ext4, Linux 6.18: 220 to 430 MB/s, not 3,500)."""
_PART: Final = ".part"
_LOCK: Final = ".lock"
_OWN: Final = frozenset({BACKUPS, DATA, _LOCK, "lost+found"})
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/?#]*:[^/?#]*@")


class Target(Protocol):
    """A place for backups. Paths are relative to it, with `/`. Every method raises StorageFault if the place fails."""

    @property
    def shown(self) -> str:
        """The place as messages name it."""

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> tuple[int, str]:
        """Store an object. Return its length in bytes and its SHA-256 in hex."""

    def read(self, path: str) -> Iterator[bytes]:
        """Yield an object's bytes. Raises FileNotFoundError if there is none."""

    def sizes(self, directory: str) -> dict[str, int]:
        """The paths, relative to the target, of all objects below a directory, in order, and their lengths in bytes."""

    def remove(self, path: str) -> None:
        """Remove an object if it is there."""

    def flush(self) -> None:
        """Force everything that was written to the disk."""

    def check(self) -> None:
        """Raises StorageFault if others may write into the target by now."""

    def close(self) -> None:
        """Let others use the target."""


def _silent(_: str) -> None:
    return


def open_target(place: str, *, writes: bool, say: Callable[[str], None] = _silent) -> Target:
    """Open the directory or the address `place`. A directory that backups are written into is created if missing.

    Args:
        say: gets a line if the command has to wait.

    Raises:
        OperatorFault: it holds something else, another backup is writing to it, or a package is missing.
        StorageFault: it cannot be reached.
    """
    directory = directory_of(place)
    if directory is None:
        return ObjectTarget(place, writes=writes, say=say)
    return DirectoryTarget(directory, writes=writes)


def directory_of(place: str) -> Path | None:
    """The directory of this host that `place` names, as a path or as `file:///path`; None for an object store.

    Raises:
        OperatorFault: it is a file on another host.
    """
    if not place.startswith("file://"):
        return None if "://" in place else Path(place)
    parts = urlsplit(place)
    if parts.netloc not in ("", "localhost"):
        raise OperatorFault(f"{place}: a file of another host; write file:///path, or the path alone")
    return Path(unquote(parts.path))


def shown_place(place: str) -> str:
    """The address of a target for messages and metrics: without a password and without parameters."""
    return _CREDENTIALS.sub("", place.partition("?")[0]) if "://" in place else place


class DirectoryTarget:
    """A directory. One process at a time writes into it."""

    __slots__ = ("_lock", "_path")

    def __init__(self, path: Path, *, writes: bool) -> None:
        self._path = path
        self._lock = -1
        try:
            if writes:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            names = set(os.listdir(path))
        except FileNotFoundError:
            raise OperatorFault(f"{path}: no such directory") from None
        except OSError as error:
            raise OperatorFault(f"{path}: {error.strerror}") from error
        if foreign := sorted(names - _OWN):
            raise OperatorFault(f"{path} is not a directory of backups: {foreign[0]} is in it")
        if writes:
            with storage_faults(path):
                self._lock = open_lock_file(path / _LOCK)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = holders_named(self._lock)
                os.close(self._lock)
                raise OperatorFault(f"another backup writes to {path}: {holder}") from None
            self._remove_parts()

    @property
    def shown(self) -> str:
        return str(self._path)

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> tuple[int, str]:
        target = self._path / path
        part = target.with_name(target.name + _PART)
        with storage_faults(target), StreamDigest() as digest:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Never through a link that another user has put there.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(part, flags, 0o600)
            try:
                try:
                    for chunk in chunks:
                        with digest.beside(chunk):
                            rest = memoryview(chunk)
                            while rest:
                                rest = rest[os.write(descriptor, rest) :]
                finally:
                    os.close(descriptor)
                os.rename(part, target)
            except BaseException:
                with suppress(OSError):
                    part.unlink()
                raise
        return digest.length_bytes, digest.hexdigest()

    def read(self, path: str) -> Iterator[bytes]:
        target = self._path / path
        try:
            descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageFault(f"{target}: {error.strerror}") from error
        try:
            with storage_faults(target):
                while chunk := os.read(descriptor, CHUNK_BYTES):
                    yield chunk
        finally:
            os.close(descriptor)

    def sizes(self, directory: str) -> dict[str, int]:
        found: dict[str, int] = {}
        root = self._path / directory
        with storage_faults(root):
            for folder, _, names in os.walk(root, onerror=_raise_unless_missing):
                below = os.path.relpath(folder, self._path)
                for name in names:
                    if not name.endswith(_PART):
                        with suppress(FileNotFoundError):  # a prune has removed it meanwhile
                            found[f"{below}/{name}"] = os.lstat(f"{folder}/{name}").st_size
        return dict(sorted(found.items()))

    def remove(self, path: str) -> None:
        target = self._path / path
        with storage_faults(target):
            target.unlink(missing_ok=True)
            with suppress(OSError):
                target.parent.rmdir()  # if nothing else is in it

    def flush(self) -> None:
        # One call for tens of thousands of files. It reports a write of the kernel that has failed since the descriptor
        # was opened (Linux 5.8). So it must be one that is older than the writes.
        with storage_faults(self._path):
            sync_file_system(self._lock)
            if (self._path / BACKUPS).is_dir():
                sync_directory(self._path / BACKUPS)

    def check(self) -> None:
        """The lock of the kernel lasts as long as this process."""

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _remove_parts(self) -> None:
        """What a backup that was killed has left. Other files may be below `data`, and stay."""
        for directory in (BACKUPS, DATA):
            for folder, _, names in os.walk(self._path / directory):
                below = os.path.relpath(folder, self._path)
                for name in names:
                    whole = name.removesuffix(_PART)
                    is_manifest = below == BACKUPS and id_of(whole) is not None
                    if whole != name and (is_manifest or is_object_path(f"{below}/{whole}")):
                        with suppress(OSError):
                            os.unlink(f"{folder}/{name}")


class ObjectTarget:
    """An object store, such as `s3://bucket/backups?region=here`. Credentials come from the environment.

    One process at a time writes into it (claim.py).
    """

    __slots__ = ("_claim", "_files", "_place", "_root")

    def __init__(self, place: str, *, writes: bool, say: Callable[[str], None] = _silent) -> None:
        need("pyarrow", needed_by="a backup in an object store")
        from pyarrow import fs

        self._place = shown_place(place)
        try:
            files, root = fs.FileSystem.from_uri(place)
        except (OSError, ValueError) as error:
            raise OperatorFault(f"{self._place}: {error}") from error
        self._files: Any = files
        self._root = root.rstrip("/")
        self._claim = Claim(self._files, self._root, self._place, say=say) if writes else None

    @property
    def shown(self) -> str:
        return self._place

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> tuple[int, str]:
        with self._faults(path), StreamDigest() as digest:
            self._make_directory(path)
            stream = self._files.open_output_stream(f"{self._root}/{path}")
            try:
                for chunk in chunks:
                    with digest.beside(chunk):
                        stream.write(chunk)
            except BaseException:
                if hasattr(stream, "abort"):
                    stream.abort()
                raise
            stream.close()
        return digest.length_bytes, digest.hexdigest()

    def read(self, path: str) -> Iterator[bytes]:
        from pyarrow import fs

        with self._faults(path):
            if self._files.get_file_info(f"{self._root}/{path}").type == fs.FileType.NotFound:
                raise FileNotFoundError(path)
            with self._files.open_input_stream(f"{self._root}/{path}") as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    yield bytes(chunk)

    def sizes(self, directory: str) -> dict[str, int]:
        from pyarrow import fs

        with self._faults(directory):
            selector = fs.FileSelector(f"{self._root}/{directory}", allow_not_found=True, recursive=True)
            found = self._files.get_file_info(selector)
        return {
            info.path.removeprefix(self._root).lstrip("/"): info.size
            for info in sorted(found, key=lambda each: each.path)
            if info.type == fs.FileType.File
        }

    def remove(self, path: str) -> None:
        with self._faults(path), suppress(FileNotFoundError):
            self._files.delete_file(f"{self._root}/{path}")

    def flush(self) -> None:
        """An object is stored when its stream is closed."""

    def check(self) -> None:
        if self._claim is not None:
            self._claim.check()

    def close(self) -> None:
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def _make_directory(self, path: str) -> None:
        if self._files.type_name in ("local", "hdfs"):
            self._files.create_dir(f"{self._root}/{path}".rpartition("/")[0], recursive=True)

    def _faults(self, path: str) -> storage_faults:
        return _missing_passes(f"{self._place}/{path}")


class _missing_passes(storage_faults):  # noqa: N801 - it reads as a statement
    """As `storage_faults`, but an object that is not there is the caller's business."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, FileNotFoundError):
            super().__exit__(kind, error, trace)


def _raise_unless_missing(error: OSError) -> None:
    """A directory that cannot be listed is no empty one: prune would remove what its manifests need."""
    if not isinstance(error, FileNotFoundError):
        raise error


def is_within(path: Path, directory: Path) -> bool:
    """Whether a path is a directory or below it; both may be missing."""
    path, directory = path.resolve(), directory.resolve()
    return path == directory or directory in path.parents


def sync_file_system(descriptor: int) -> None:
    """Force the file system of an open file to the disk. Raises OSError also for an earlier write that has failed since
    the file was opened (Linux 5.8)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(descriptor):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
