"""Which files of a partition belong to a backup, and where the bytes of a segment end.

Names are looked at once, right after the cut, and files are recognized by their inodes afterwards. Retention and
compaction rename a file to `.deleted` and keep it, because the backup holds a lease on the partition.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Final

from appliance.errors import CorruptFile, StorageFault
from appliance.log.faults import storage_faults
from appliance.log.file_names import (
    LOG,
    OFFSET_INDEX,
    PRODUCER_SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    parse_segment_file_name,
    segment_file_name,
)
from appliance.protocol.records.batch import (
    H_BASE_OFFSET,
    H_BATCH_LENGTH,
    H_LAST_OFFSET_DELTA,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
)

_ENTRY: Final = Struct(">II")
_INDEXES: Final = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)


class PlannedFileGone(Exception):
    """A file that the plan names is not there any more: compaction ran twice, or the partition was moved."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the plan. `base_offset` is that of its segment, -1 for other files. `is_open`: it is appended to."""

    path: Path
    inode: int
    device: int
    modified_ns: int
    length_bytes: int
    base_offset: int = -1
    is_open: bool = False
    changed_ns: int = 0


def plan_segments(directory: Path, *, log_start: int, high_watermark: int) -> list[SourceFile]:
    """The files to copy: `.log` files with records in `[log_start, high_watermark)`, and the indexes of closed ones.

    The last segment comes without indexes, because recovery writes them. A log without records has one empty segment,
    whose name says where it begins. Producer snapshots up to the high watermark come along.

    Raises:
        StorageFault: the directory cannot be read.
        CorruptFile: no segment has the log start.
    """
    found: dict[tuple[int, str], SourceFile] = {}
    with storage_faults(directory), os.scandir(directory) as entries:
        for entry in entries:
            parsed = parse_segment_file_name(entry.name)
            if parsed is None or not entry.is_file(follow_symlinks=False):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            found[parsed] = SourceFile(
                Path(entry.path),
                status.st_ino,
                status.st_dev,
                status.st_mtime_ns,
                status.st_size,
                parsed[0],
                changed_ns=status.st_ctime_ns,
            )
    bases = sorted(base for base, suffix in found if suffix == LOG and base <= high_watermark)
    if not bases:
        if log_start < high_watermark:
            raise CorruptFile(f"{directory} has no segment with offset {log_start}")
        return []
    first = max((at for at, base in enumerate(bases) if base <= log_start), default=-1)
    if first < 0 and log_start < high_watermark:
        raise CorruptFile(f"{directory} has no segment with offset {log_start}, its log start")
    bases = bases[max(first, 0) :]
    if len(bases) > 1 and bases[-1] == high_watermark:
        bases.pop()  # nothing of it is in the backup
    planned: list[SourceFile] = []
    for base in bases:
        log = found[base, LOG]
        is_last = base == bases[-1]
        planned.append(_open(log) if is_last else log)
        if not is_last:
            planned += [found[base, suffix] for suffix in _INDEXES if (base, suffix) in found]
    snapshots = sorted(
        base for base, suffix in found if suffix == PRODUCER_SNAPSHOT and bases[0] < base <= high_watermark
    )
    planned += [found[base, PRODUCER_SNAPSHOT] for base in snapshots]
    return planned


def read_regular(path: Path) -> bytes:
    """The content of a small file of the appliance; empty if there is none.

    A link is not followed: the command may run as root, and the appliance's user could put a link to a file there that
    only root may read. The restore would give its content to this user.

    Raises:
        StorageFault: it cannot be read, or is no regular file.
    """
    with storage_faults(path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return b""
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StorageFault(f"{path} is no regular file")
            return file.read()


def open_planned(file: SourceFile) -> int:
    """A descriptor of the file that the plan saw, whatever its name is now.

    Raises:
        PlannedFileGone: it is not there any more.
    """
    for path in (file.path, file.path.with_name(file.path.name + ".deleted")):
        descriptor = _opened_as(path, file)
        if descriptor >= 0:
            return descriptor
    raise PlannedFileGone(str(file.path))


def end_of_segment(descriptor: int, index: bytes, *, base_offset: int, below: int, length_bytes: int) -> int:
    """Where the batches below the offset `below` end in a `.log` file, in bytes. O(index interval), with an index.

    Args:
        index: the content of its `.index`, which is a hint; it may end with zeros.
        length_bytes: the file's size; room that was taken ahead may follow the last batch.
    """
    position = _start(descriptor, index, base_offset=base_offset, below=below, length_bytes=length_bytes)
    while position + HEADER_BYTES <= length_bytes:
        header = os.pread(descriptor, HEADER_BYTES, position)
        if len(header) < HEADER_BYTES:
            break
        fields = HEADER.unpack(header)
        offset, length = fields[H_BASE_OFFSET], fields[H_BATCH_LENGTH]
        if length <= 0 or offset >= below or position + LOG_OVERHEAD + length > length_bytes:
            break
        position += LOG_OVERHEAD + length
    return position


def index_of(file: SourceFile, siblings: Sequence[SourceFile]) -> bytes:
    """The offset index of a `.log` file, from the plan or beside it; empty if it cannot be read."""
    name = segment_file_name(file.base_offset, OFFSET_INDEX)
    planned = [each for each in siblings if each.path.name == name]
    try:
        descriptor = open_planned(planned[0]) if planned else os.open(file.path.with_name(name), os.O_RDONLY)
    except (OSError, PlannedFileGone):
        return b""
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def _start(descriptor: int, index: bytes, *, base_offset: int, below: int, length_bytes: int) -> int:
    """A position at which a batch below `below` begins: that of the last index entry that holds, or 0."""
    low, high = 0, len(index) // _ENTRY.size
    while low < high:
        middle = (low + high) // 2
        relative, position = _ENTRY.unpack_from(index, middle * _ENTRY.size)
        if relative and position and base_offset + relative < below:
            low = middle + 1
        else:
            high = middle
    for entry in range(low - 1, max(low - 4, -1), -1):
        relative, position = _ENTRY.unpack_from(index, entry * _ENTRY.size)
        if position + HEADER_BYTES > length_bytes:
            continue
        header = os.pread(descriptor, HEADER_BYTES, position)
        if len(header) == HEADER_BYTES:
            fields = HEADER.unpack(header)
            offset = fields[H_BASE_OFFSET]
            last = offset + fields[H_LAST_OFFSET_DELTA]
            if base_offset <= offset <= base_offset + relative <= last < below:
                return int(position)
    return 0


def _open(file: SourceFile) -> SourceFile:
    return replace(file, is_open=True)


def _opened_as(path: Path, file: SourceFile) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return -1
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) == (file.device, file.inode):
        return descriptor
    os.close(descriptor)
    return -1
