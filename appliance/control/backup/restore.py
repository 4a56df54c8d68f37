"""Restoring a backup into a new data directory.

    restore-in-progress     written first, removed last: `appliance serve` refuses a directory that has it
    slot-N/<topic>-<partition>/...   each replica of each partition, from the same objects
    slot-N/meta.properties, checkpoints: high watermarks, log starts, recovery points
    scram-salt-secret
    metadata.db             last: with it the directory is an appliance's

Every byte is compared with its SHA-256 on the way. There is no mark of a clean stop, so the first start recovers the
end of each log: it writes the indexes of the last segment, and rebuilds what is known of producers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from appliance.cluster import TopicPartition
from appliance.control.backup.manifest import METADATA, Manifest, StoredFile
from appliance.control.backup.marker import MARKER
from appliance.control.backup.target import Target
from appliance.errors import CorruptFile, OperatorFault
from appliance.log.checkpoint import replace_file, sync_directory, write_offsets
from appliance.log.faults import storage_faults
from appliance.log.file_names import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
)

_IGNORED: Final = frozenset({"lost+found"})


def restore(manifest: Manifest, target: Target, data_dir: Path, *, say: Callable[[str], None]) -> int:
    """Write a backup into `data_dir`, which must be missing or empty. Return the bytes written.

    Raises:
        OperatorFault: the directory is not empty, or cannot be made.
        CorruptFile: an object is damaged or missing; the text names it. The directory is not usable.
        StorageFault: something cannot be read or written. The directory is not usable.
    """
    _make_empty(data_dir)
    replace_file(data_dir / MARKER, f"{manifest.id}\n".encode())
    written = 0
    for slot, properties in sorted(manifest.slots.items()):
        directory = data_dir / f"slot-{slot}"
        with storage_faults(directory):
            directory.mkdir(mode=0o700)
        replace_file(directory / META_PROPERTIES, properties)
        starts: dict[TopicPartition, int] = {}
        watermarks: dict[TopicPartition, int] = {}
        points: dict[TopicPartition, int] = {}
        for partition in manifest.partitions:
            if slot not in partition.replicas:
                continue
            folder = directory / partition.name
            with storage_faults(folder):
                folder.mkdir(mode=0o700)
            for file in partition.files:
                written += _write(target, file, folder / file.name)
            with storage_faults(folder):
                sync_directory(folder)
            name = TopicPartition(partition.topic, partition.partition)
            watermarks[name] = partition.high_watermark
            points[name] = partition.recovery_point
            if partition.log_start:
                starts[name] = partition.log_start
        write_offsets(directory / HIGH_WATERMARKS, watermarks)
        write_offsets(directory / LOG_STARTS, starts)
        write_offsets(directory / RECOVERY_POINTS, points)
        say(f"slot {slot}: {len(watermarks)} partitions")
    for file in sorted(manifest.files, key=lambda each: each.name == METADATA):
        written += _write(target, file, data_dir / file.name)
    give_to_owner(data_dir)
    with storage_faults(data_dir):
        sync_directory(data_dir)
        os.unlink(data_dir / MARKER)
        sync_directory(data_dir)
    return written


def give_to_owner(data_dir: Path) -> None:
    """Give what root has restored to the owner of the data directory, whose appliance could not open it otherwise.

    Only what belongs to root and has one name: the owner may have put a link to a file of others there.

    Raises:
        StorageFault: it failed.
    """
    with storage_faults(data_dir):
        owner = data_dir.stat()
        if os.geteuid() != 0 or owner.st_uid == 0:
            return
        for _, folders, files, at in os.fwalk(data_dir):
            for name in (*folders, *files):
                descriptor = os.open(
                    name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at
                )
                try:
                    found = os.fstat(descriptor)
                    if found.st_uid == 0 and (name in folders or found.st_nlink == 1):
                        os.fchown(descriptor, owner.st_uid, owner.st_gid)
                finally:
                    os.close(descriptor)


def _make_empty(data_dir: Path) -> None:
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = sorted(set(os.listdir(data_dir)) - _IGNORED)
    except OSError as error:
        raise OperatorFault(f"{data_dir}: {error.strerror}") from error
    if there:
        raise OperatorFault(
            f"{data_dir} is not empty ({there[0]} is in it); nothing was written. Restore into a new directory"
        )


def _write(target: Target, file: StoredFile, path: Path) -> int:
    """Write one file through to the disk, under its name only when it is whole."""
    aside = path.with_name(path.name + ".restored")
    with storage_faults(path):
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for chunk in _content(target, file):
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(aside, path)
    return file.length_bytes


def _content(target: Target, file: StoredFile) -> Iterator[bytes]:
    if file.inline is not None:
        yield file.inline
        return
    for piece in file.pieces:
        digest, length = hashlib.sha256(), 0
        try:
            for chunk in target.read(piece.path):
                digest.update(chunk)
                length += len(chunk)
                yield chunk
        except FileNotFoundError:
            raise CorruptFile(
                f"{target.shown}/{piece.path} is missing; the restore was not finished"
            ) from None
        if length != piece.length_bytes or digest.hexdigest() != piece.sha256:
            raise CorruptFile(f"{target.shown}/{piece.path} is damaged; the restore was not finished")
