"""What a recovery cut off a log, or a repair replaced in it, kept aside in `<partition>/recovered/`.

    00000000000000000000.log.at-4711      bytes of that segment from position 4711 on, as they were
    00000000000000000057.log              a whole segment that followed what was cut
    00000000000000000000.log.at-815       a damaged batch that another copy's has replaced (`repair`)

Neither Apache Kafka nor its tools look into a folder of a partition's directory, and it goes with its topic. At most
KEPT_BYTES_MAX and KEPT_FILES_MAX are kept for a partition, the newest; of one tail the first TAIL_BYTES_MAX. Keeping is
a favour: where it fails (a full disk) that is said, and the recovery goes on. The copy is forced to the disk before the
log is cut, so a crash between the two leaves both, and the next recovery finds the copy there.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from appliance.log.segment_file import SegmentFile

FOLDER: Final = "recovered"
KEPT_BYTES_MAX: Final = 256 << 20
KEPT_FILES_MAX: Final = 16
TAIL_BYTES_MAX: Final = 64 << 20
_PIECE_BYTES: Final = 1 << 20

_logger = logging.getLogger(__name__)


def keep_tail(file: SegmentFile, position: int, length_bytes: int) -> Path | None:
    """Copies `length_bytes` of a segment from `position` on; where to, or None if that failed."""
    target = _target(file.path, f".at-{position}")
    left = min(length_bytes, TAIL_BYTES_MAX)
    try:
        target.parent.mkdir(exist_ok=True)
        with target.open("wb") as copy:
            while left > 0:
                piece = file.read(position, min(left, _PIECE_BYTES))
                if not piece:
                    break
                copy.write(piece)
                position += len(piece)
                left -= len(piece)
            copy.flush()
            os.fdatasync(copy.fileno())
        _drop_oldest(target.parent)
    except OSError as error:
        _logger.warning("%s: truncated bytes could not be kept: %s", file.path, error)
        target.unlink(missing_ok=True)
        return None
    return target


def keep_bytes(path: Path, position: int, data: bytes, *, durable: bool) -> Path | None:
    """Keep bytes of a segment that are about to be replaced; where, or None if that failed."""
    target = _target(path, f".at-{position}")
    try:
        target.parent.mkdir(exist_ok=True)
        with target.open("wb") as copy:
            copy.write(data[:TAIL_BYTES_MAX])
            copy.flush()
            if durable:
                os.fdatasync(copy.fileno())
        _drop_oldest(target.parent)
    except OSError as error:
        _logger.warning("%s: replaced bytes could not be kept: %s", path, error)
        target.unlink(missing_ok=True)
        return None
    return target


def keep_segment(path: Path) -> Path | None:
    """Moves the `.log` file of a segment; where to, or None if that failed and the file is where it was."""
    target = _target(path, "")
    try:
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
        _drop_oldest(target.parent)
    except OSError as error:
        _logger.warning("%s could not be kept: %s", path, error)
        return None
    return target


def _target(path: Path, suffix: str) -> Path:
    """A name that is free."""
    folder = path.parent / FOLDER
    target = folder / (path.name + suffix)
    number = 2
    while target.exists() and number <= KEPT_FILES_MAX:
        target = folder / f"{path.name}{suffix}-{number}"
        number += 1
    return target


def _drop_oldest(folder: Path) -> None:
    found = sorted(
        ((entry.stat(), entry.path) for entry in os.scandir(folder)), key=lambda each: -each[0].st_mtime_ns
    )
    size_bytes = 0
    for number, (status, path) in enumerate(found):
        size_bytes += status.st_size
        # The newest stays, whatever its size: it takes no more room than it took before.
        if number and (size_bytes > KEPT_BYTES_MAX or number >= KEPT_FILES_MAX):
            os.unlink(path)
