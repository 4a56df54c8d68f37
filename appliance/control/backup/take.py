"""Taking a backup: a cut, then the bytes that the target does not have, then the manifest.

1. Leases on all partitions keep their segments. A stopped appliance needs none, so its disk may be full.
2. The cut (`cut.py`), and a look at the names of all files. If compaction renamed one between the two, the cut is
   made again.
3. Each file: what the last backup has of the same file, by inode, times, incarnation and generation, is named again;
   what follows it, or all of it, is copied.
4. The target is forced to the disk, and the manifest is written.

A backup that fails removes the objects that it has stored, because a target that is full would stay full otherwise. A
backup that is killed before 4 leaves objects that no manifest names (`upkeep.prune` removes them).

An object of an earlier backup is named again only if the target lists it with its length. So a file that is missing,
after a rule of a bucket has removed it, or because an operator has removed what `verify` called damaged, is stored
again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.control.backup.cut import Cut, CutPartition, RunningSource, StoppedSource, opened, read_state
from appliance.control.backup.lease import BackupLease
from appliance.control.backup.manifest import (
    DATA,
    INLINE_BYTES_MAX,
    TREE,
    TREE_VERSION,
    VERSION,
    Manifest,
    Mark,
    Piece,
    StoredFile,
    StoredPartition,
    encode,
    id_after,
    manifest_path,
)
from appliance.control.backup.segments import (
    PlannedFileGone,
    SourceFile,
    end_of_segment,
    index_of,
    open_planned,
    plan_segments,
    read_regular,
)
from appliance.control.backup.target import CHUNK_BYTES, DirectoryTarget, Target, is_within
from appliance.control.backup.upkeep import ids, newest
from appliance.errors import HostFault, OperatorFault, StorageFault
from appliance.log.checkpoint import encode_entries
from appliance.log.faults import storage_faults
from appliance.log.file_names import LEADER_EPOCHS, LOG, PARTITION_METADATA
from appliance.log.leader_epochs import read_epochs
from appliance.sasl.salt_secret import FILE as SALT_SECRET
from appliance.version import VERSION as APPLIANCE_VERSION

CUT_TRIES: Final = 20
COPY_TRIES: Final = 5
PIECES_MAX: Final = 200
"""Of one file; with more, the next backup copies the file as one piece."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a backup came to. `copied_bytes` were stored by it; the rest was there."""

    manifest: Manifest
    copied_bytes: int
    elapsed_s: float


def take_backup(
    data_dir: Path, target: Target, *, zookeeper: str | None = None, say: Callable[[str], None]
) -> Taken:
    """Back up the appliance on `data_dir`, which may run.

    Args:
        zookeeper: where the metadata of a stopped appliance are, if they are in ZooKeeper.

    Raises:
        OperatorFault: `data_dir` cannot be backed up, or the target holds another appliance's backups.
        HostFault: the appliance is not ready, or files changed too often. StorageFault: something cannot be read or
            written; the backups in the target are as before. CorruptFile: the metadata or a log is damaged.
    """
    begin = time.monotonic()
    with opened(data_dir, zookeeper) as source:
        if isinstance(target, DirectoryTarget):
            for place in [data_dir, *source.log_directories]:
                if is_within(Path(target.shown), place):
                    raise OperatorFault(f"{target.shown} is inside {place}, which it is to back up")
        for number in range(1, COPY_TRIES + 1):
            try:
                taking = _Taking(source, target, newest(target), say)
                try:
                    manifest = taking.run()
                except BaseException:
                    taking.take_back()
                    raise
                return Taken(manifest, taking.copied_bytes, time.monotonic() - begin)
            except PlannedFileGone as gone:
                if number == COPY_TRIES:
                    raise HostFault(f"{gone} was removed while it was copied; try again") from gone
                say(f"{gone} was removed while it was copied; going on from a new moment")
    raise AssertionError


class _Taking:
    """One try. `copied_bytes` counts what was stored."""

    def __init__(
        self,
        source: RunningSource | StoppedSource,
        target: Target,
        before: Manifest | None,
        say: Callable[[str], None],
    ) -> None:
        self._source = source
        self._target = target
        self._id = ""
        self.copied_bytes = 0
        self._before = before
        self._stored: list[str] = []
        self._known: Mapping[tuple[str, int, str], StoredFile] = (
            {} if before is None else _usable(before, target, say)
        )

    def run(self) -> Manifest:
        owner = self._source.data_dir.stat().st_uid
        with BackupLease(owner) as lease:
            cut, planned = self._cut(lease)
            before = self._before
            if before is not None and before.cluster_id != cut.cluster_id:
                raise OperatorFault(
                    f"{self._target.shown} holds backups of cluster {before.cluster_id}, and {self._source.data_dir} is"
                    f" cluster {cut.cluster_id}; use another target"
                )
            self._id = id_after(ids(self._target), cut.created_ms)
            partitions = tuple(
                self._partition(partition, files, epochs) for partition, files, epochs in planned
            )
        files = [self._store("metadata", cut.metadata_file, cut.metadata)]
        if secret := read_regular(self._source.data_dir / SALT_SECRET):
            files.append(self._store("metadata", SALT_SECRET, secret))
        manifest = Manifest(
            id=self._id,
            cluster_id=cut.cluster_id,
            appliance=APPLIANCE_VERSION,
            created_ms=cut.created_ms,
            files=tuple(files),
            slots=dict(cut.slots),
            partitions=partitions,
            version=TREE_VERSION if cut.metadata_file == TREE else VERSION,
        )
        self._target.flush()
        self._target.check()
        self._stored.append(manifest_path(self._id))
        self._target.write(manifest_path(self._id), [encode(manifest)])
        self._target.flush()
        self._target.check()  # a prune may have removed pieces meanwhile if it took this command for dead
        return manifest

    def take_back(self) -> None:
        """Remove what this try has stored, the manifest first. Stops where the target fails; `prune` removes the rest.

        Nobody else names these objects: their names end with the id of this backup.
        """
        with suppress(StorageFault):
            while self._stored:
                self._target.remove(self._stored[-1])
                self._stored.pop()

    def _cut(self, lease: BackupLease) -> tuple[Cut, list[tuple[CutPartition, list[SourceFile], bytes]]]:
        """The cut, and for each partition the files of that moment and its leader epochs."""
        for _ in range(CUT_TRIES):
            cut = self._source.cut()
            if isinstance(self._source, RunningSource):
                lease.take(each.directory for each in cut.partitions)
                # Of this cut segments may be gone that were there before the leases; they hold for the next one.
                cut = self._source.cut()
                lease.take(each.directory for each in cut.partitions)
            planned = [
                (
                    each,
                    plan_segments(
                        each.directory, log_start=each.log_start, high_watermark=each.high_watermark
                    ),
                    _epochs(each),
                )
                for each in cut.partitions
            ]
            if all(self._source.has_same_files(each) for each in cut.partitions):
                return cut, planned
        raise HostFault("compaction replaced files all the time; try again")

    def _partition(self, cut: CutPartition, files: list[SourceFile], epochs: bytes) -> StoredPartition:
        # Read before the files: a state that is older than they are only lets the next backup copy more.
        state = read_state(cut.directory)
        incarnation, generation = (0, 0) if state is None else (state.incarnation, state.generation)
        stored = [self._file(cut, each, files, incarnation, generation) for each in files]
        if state is not None and (now := read_state(cut.directory)) and now.incarnation != incarnation:
            raise PlannedFileGone(f"the end of {cut.name}")  # an unclean leader has cut it off meanwhile
        stored.append(StoredFile(LEADER_EPOCHS, len(epochs), inline=epochs))
        if content := read_regular(cut.directory / PARTITION_METADATA):
            stored.append(StoredFile(PARTITION_METADATA, len(content), inline=content))
        last = max((each.base_offset for each in files if each.is_open), default=cut.log_start)
        return StoredPartition(
            topic=cut.name.topic,
            partition=cut.name.partition,
            topic_id=str(cut.topic_id),
            replicas=cut.replicas,
            log_start=cut.log_start,
            high_watermark=cut.high_watermark,
            recovery_point=min(last, cut.recovery_point),
            files=tuple(stored),
        )

    def _file(
        self,
        cut: CutPartition,
        file: SourceFile,
        siblings: list[SourceFile],
        incarnation: int,
        generation: int,
    ) -> StoredFile:
        name = file.path.name.removesuffix(".deleted")
        known = self._known.get((str(cut.topic_id), cut.name.partition, name))
        mark = Mark(file.device, file.inode, file.modified_ns, incarnation, file.changed_ns, generation)
        was = None if known is None or known.is_open or file.is_open else known.mark
        if known is not None and was is not None and was.is_unchanged(mark):
            return known
        with storage_faults(file.path):
            descriptor = open_planned(file)
            try:
                length = file.length_bytes
                if name.endswith(LOG):
                    length = end_of_segment(
                        descriptor,
                        index_of(file, siblings),
                        base_offset=file.base_offset,
                        below=cut.high_watermark,
                        length_bytes=os.fstat(descriptor).st_size,
                    )
                elif length <= INLINE_BYTES_MAX:
                    content = os.pread(descriptor, length, 0)
                    return StoredFile(name, len(content), inline=content, mark=mark)
                pieces = _reusable(known, mark, length) if name.endswith(LOG) else ()
                have = sum(piece.length_bytes for piece in pieces)
                if have < length:
                    pieces = (
                        *pieces,
                        self._piece(str(cut.name), name, _range(descriptor, have, length), have),
                    )
                stored = sum(piece.length_bytes for piece in pieces)
                if stored != length:
                    raise StorageFault(f"{file.path} has {stored} bytes, and had {length}")
            finally:
                os.close(descriptor)
        return StoredFile(name, length, pieces=pieces, mark=mark, is_open=file.is_open)

    def _store(self, folder: str, name: str, content: bytes) -> StoredFile:
        if len(content) <= INLINE_BYTES_MAX:
            return StoredFile(name, len(content), inline=content)
        return StoredFile(name, len(content), pieces=(self._piece(folder, name, iter([content]), 0),))

    def _piece(self, folder: str, name: str, chunks: Iterator[bytes | memoryview], position: int) -> Piece:
        path = f"{DATA}/{folder}/{name}.{position}.{self._id}"
        self._stored.append(path)
        length, digest = self._target.write(path, chunks)
        self.copied_bytes += length
        return Piece(path, length, digest)


def _usable(
    before: Manifest, target: Target, say: Callable[[str], None]
) -> dict[tuple[str, int, str], StoredFile]:
    """The files of an earlier backup, by topic id, partition and name, whose objects the target has in full length."""
    there = target.sizes(DATA)
    found, lost = {}, 0
    for partition in before.partitions:
        for file in partition.files:
            if all(there.get(piece.path) == piece.length_bytes for piece in file.pieces):
                found[partition.topic_id, partition.partition, file.name] = file
            else:
                lost += 1
    if lost:
        say(
            f"{target.shown} lacks objects of {lost} files of backup {before.id}, or has them in another length; they"
            " are stored again. See `appliance backup verify`"
        )
    return found


def _reusable(known: StoredFile | None, mark: Mark, length_bytes: int) -> tuple[Piece, ...]:
    """The pieces that hold the first bytes of the file still: it is the same file, and was only appended to."""
    if known is None or known.mark is None or len(known.pieces) >= PIECES_MAX:
        return ()
    is_same = known.mark.is_appended(mark) if known.is_open else known.mark.is_unchanged(mark)
    return known.pieces if is_same and known.length_bytes <= length_bytes else ()


def _range(descriptor: int, position: int, end: int) -> Iterator[memoryview]:
    """The bytes `[position, end)` of a file, in chunks that are valid until the next one."""
    buffer = memoryview(bytearray(min(CHUNK_BYTES, end - position)))
    while position < end:
        count = os.preadv(descriptor, [buffer[: min(len(buffer), end - position)]], position)
        if count == 0:
            return
        yield buffer[:count]
        position += count


def _epochs(cut: CutPartition) -> bytes:
    """The leader epochs that begin below the high watermark, as the file has them."""
    kept = [(epoch, start) for epoch, start in read_epochs(cut.directory) if start < cut.high_watermark]
    return encode_entries(f"{epoch} {start}" for epoch, start in kept)
