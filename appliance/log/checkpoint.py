"""Checkpoint files: small texts that are replaced whole.

    0                       version
    2                       entries
    orders 0 4711           one entry a line
    orders 1 12

A new text is written to `<name>.tmp`, forced to the disk and renamed, so that a reader, or a crash, meets the
old text or the new one and nothing between. Source: `server-common/.../checkpoint/CheckpointFile.java`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from appliance.cluster import TopicPartition
from appliance.errors import CorruptFile
from appliance.log.faults import storage_faults

VERSION = 0
_SMALL_BYTES = 1 << 16
_IS_NONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP})


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replaces `path` by a file of this content, in one step.

    A link under the temporary name is not followed: root writes into directories of the appliance's user (restore) and
    of node_exporter's (`backup --metrics`).

    Raises:
        StorageFault: it could not be written; the old file stands. DiskFull where that was the cause.
    """
    temporary = path.with_name(path.name + ".tmp")
    with storage_faults(path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(temporary, flags, 0o644)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if durable:
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
        if durable:
            sync_directory(path.parent)


def read_small(path: Path | str) -> bytes | None:
    """The content of a file that is read whole, by as few system calls as there can be; None where there is none.

    Raises:
        OSError: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        content = os.read(descriptor, _SMALL_BYTES)
        if len(content) == _SMALL_BYTES:
            pieces = [content]
            while piece := os.read(descriptor, _SMALL_BYTES):
                pieces.append(piece)
            content = b"".join(pieces)
        return content
    finally:
        os.close(descriptor)


def is_directory(path: str) -> bool:
    """Whether there is one, as `Path.is_dir` says it.

    Raises:
        OSError: it cannot be told. (`os.path.isdir` says no then, and what a disk has failed to show is made anew.)
    """
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        if error.errno in _IS_NONE:
            return False
        raise


def sync_directory(path: Path) -> None:
    """Forces names (creations, renames, removals) of a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def encode_entries(entries: Iterable[str]) -> bytes:
    """The text of a checkpoint file with one line for each entry."""
    lines = list(entries)
    return "\n".join([str(VERSION), str(len(lines)), *lines, ""]).encode()


def read_entries(path: Path | str) -> list[list[str]]:
    """The fields of every entry; no file has no entries.

    Raises:
        CorruptFile: the version is unknown, or the count is not that of the lines.
        StorageFault: the file cannot be read.
    """
    with storage_faults(path):
        content = read_small(path)
    if not content:
        return []
    lines = content.decode("utf-8", "replace").splitlines()
    try:
        version, count = int(lines[0]), int(lines[1])
    except (ValueError, IndexError):
        raise CorruptFile(f"{path} does not begin with a version and a count of entries") from None
    entries = [line.split() for line in lines[2:] if line.strip()]
    if version != VERSION or count != len(entries):
        raise CorruptFile(
            f"{path} is version {version} and declares {count} entries, but holds {len(entries)}"
        )
    return entries


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Writes `topic partition offset` lines, in order.

    Raises:
        StorageFault: as `replace_file`.
    """
    lines = (f"{name.topic} {name.partition} {offset}" for name, offset in sorted(offsets.items()))
    replace_file(path, encode_entries(lines))


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """Reads what `write_offsets` wrote.

    Raises:
        CorruptFile: an entry is not `topic partition offset`.
        StorageFault: the file cannot be read.
    """
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partition, offset in read_entries(path)
        }
    except ValueError:
        raise CorruptFile(f"{path} has an entry that is not `topic partition offset`") from None
