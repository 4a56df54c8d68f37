"""Restoring a backup into a new data directory.

    restore-in-progress     written first, removed last: `appliance serve` refuses a directory that has it
    slot-N/<topic>-<partition>/...   each replica of each partition, from the same objects
    slot-N/meta.properties, checkpoints: high watermarks, log starts, recovery points
    scram-salt-secret
    metadata.db             last: with it the directory is an appliance's
    zookeeper.sessions/     instead, if the metadata are in ZooKeeper (zookeeper_tree.py): they are written there last

Every byte is compared with its SHA-256 on the way. There is no mark of a clean stop, so the first start recovers the
end of each log: it writes the indexes of the last segment, and rebuilds what is known of producers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from appliance.clock import SystemClock
from appliance.cluster import TopicPartition
from appliance.control.backup.digest import StreamDigest
from appliance.control.backup.manifest import METADATA, TREE, Manifest, StoredFile
from appliance.control.backup.marker import MARKER
from appliance.control.backup.target import DirectoryTarget, Target, is_within, sync_file_system
from appliance.control.backup.zookeeper_tree import decode_tree, refuse_used, write_tree
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


def restore(
    manifest: Manifest,
    target: Target,
    data_dir: Path,
    *,
    zookeeper: str | None = None,
    say: Callable[[str], None],
) -> int:
    """Write a backup into `data_dir`, which must be missing or empty. Return the bytes written.

    Args:
        zookeeper: `host:port/chroot` for metadata that were in ZooKeeper; the chroot must be missing or empty.

    Raises:
        OperatorFault: the directory or the chroot is not empty, cannot be made, or does not fit the backup.
        CorruptFile: an object is damaged or missing; the text names it. The directory is not usable.
        StorageFault: something cannot be read or written. The directory is not usable.
    """
    if isinstance(target, DirectoryTarget) and is_within(data_dir, Path(target.shown)):
        raise OperatorFault(
            f"{data_dir} is inside {target.shown}, which holds backups and nothing else; restore into another directory"
        )
    tree = _tree(manifest, target, zookeeper)
    if tree and zookeeper is not None:
        refuse_used(zookeeper)
    _make_empty(data_dir)
    _mark(data_dir, manifest.id)
    with storage_faults(data_dir):
        # Opened before all writes: `syncfs` reports the writes that have failed since then.
        opened = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        written = _write_files(manifest, target, data_dir, say)
        if tree and zookeeper is not None:
            with storage_faults(data_dir):
                sync_file_system(opened)  # ZooKeeper names no partition whose files can be lost
            write_tree(zookeeper, tree, data_dir=data_dir, clock=SystemClock(), backup_id=manifest.id)
            say(f"ZooKeeper: {len(tree)} nodes")
        give_to_owner(data_dir)
        with storage_faults(data_dir):
            # One call for all files, so that the kernel writes while the restore goes on.
            sync_file_system(opened)
    finally:
        os.close(opened)
    with storage_faults(data_dir):
        os.unlink(data_dir / MARKER)
        sync_directory(data_dir)
    return written


def _write_files(manifest: Manifest, target: Target, data_dir: Path, say: Callable[[str], None]) -> int:
    """Write all files of the backup. Return their bytes."""
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
        if file.name != TREE:
            written += _write(target, file, data_dir / file.name)
    return written


def _tree(manifest: Manifest, target: Target, zookeeper: str | None) -> list[tuple[str, bytes]]:
    """The nodes for ZooKeeper; none if the metadata are a file. Raises OperatorFault, CorruptFile, StorageFault."""
    stored = next((file for file in manifest.files if file.name == TREE), None)
    if stored is None:
        if zookeeper is not None:
            raise OperatorFault(
                f"the metadata of backup {manifest.id} were not in ZooKeeper; restore without --zookeeper"
            )
        return []
    if zookeeper is None:
        raise OperatorFault(
            f"the metadata of backup {manifest.id} were in ZooKeeper: give --zookeeper HOST:PORT/CHROOT, a chroot that"
            " is empty or does not exist"
        )
    return decode_tree(b"".join(_content(target, stored)))


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
        raise _not_empty(data_dir, there[0])


def _not_empty(data_dir: Path, name: str) -> OperatorFault:
    return OperatorFault(
        f"{data_dir} is not empty ({name} is in it); nothing was written. Restore into a new directory"
    )


def _mark(data_dir: Path, id: str) -> None:
    """Create the mark, durably. Raises OperatorFault if another restore was quicker."""
    with storage_faults(data_dir / MARKER):
        try:
            descriptor = os.open(
                data_dir / MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
        except FileExistsError:
            raise _not_empty(data_dir, MARKER) from None
        try:
            os.write(descriptor, f"{id}\n".encode())
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(data_dir)


def _write(target: Target, file: StoredFile, path: Path) -> int:
    """Write one file, under its name only when it is whole. It is on the disk when `restore` returns."""
    aside = path.with_name(path.name + ".restored")
    with storage_faults(path):
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for chunk in _content(target, file):
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)
        os.rename(aside, path)
    return file.length_bytes


def _content(target: Target, file: StoredFile) -> Iterator[bytes]:
    if file.inline is not None:
        yield file.inline
        return
    for piece in file.pieces:
        try:
            with StreamDigest() as digest:
                for chunk in target.read(piece.path):
                    with digest.beside(chunk):
                        yield chunk
        except FileNotFoundError:
            raise CorruptFile(
                f"{target.shown}/{piece.path} is missing; the restore was not finished"
            ) from None
        if digest.length_bytes != piece.length_bytes or digest.hexdigest() != piece.sha256:
            raise CorruptFile(f"{target.shown}/{piece.path} is damaged; the restore was not finished")
