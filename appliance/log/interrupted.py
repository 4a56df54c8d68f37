"""Files that an interrupted rename has left in a partition directory, resolved as Kafka does (`LogLoader.load`).

.deleted   removed, if no reader has a lease
.cleaned   removed, and every `.swap` whose base offset is not below the smallest of them
.swap      finished: plain segments that lie inside of what they replace are removed, then the suffix is taken off
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from appliance.log.file_names import CLEANED, DELETED, LOG, SEGMENT_SUFFIXES, SWAP, parse_segment_file_name
from appliance.log.segment_file import SegmentFile
from appliance.protocol.records.batch import H_BASE_OFFSET, H_LAST_OFFSET_DELTA

_INTERRUPTED: Final = (DELETED, CLEANED, SWAP)
_logger = logging.getLogger(__name__)


def has_interrupted(names: Iterable[str]) -> bool:
    """Return whether one of the names is such a file's."""
    return any(name.endswith(_INTERRUPTED) for name in names)


def _named(names: Iterable[str], suffix: str) -> list[tuple[str, int]]:
    """(name, offset) of the segment files whose name ends with `suffix`."""
    found = []
    for name in names:
        parsed = parse_segment_file_name(name)
        if parsed is not None and name.endswith(suffix):
            found.append((name, parsed[0]))
    return found


def remove_left(directory: Path, names: Collection[str]) -> None:
    """Remove files that an interrupted operation has left."""
    for name in names:
        _logger.info("%s: removing %s, left by an interrupted operation", directory, name)
        (directory / name).unlink(missing_ok=True)


def resolve_interrupted(directory: Path, names: Collection[str], *, is_leased: bool) -> None:
    """Finish or undo what the `names` in a directory were part of. `is_leased`: readers may have its files open.

    Raises:
        OSError: the directory cannot be read or written.
    """
    if not is_leased:
        remove_left(directory, [name for name in names if name.endswith(DELETED)])
    if not any(name.endswith((CLEANED, SWAP)) for name in names):
        return
    cleaned = _named(names, CLEANED)
    swaps = _named(names, SWAP)
    smallest = min((offset for _, offset in cleaned), default=None)
    unfinished = [name for name, offset in swaps if smallest is not None and offset >= smallest]
    remove_left(directory, unfinished)
    remove_left(directory, [name for name, _ in cleaned])
    finished = [(name, offset) for name, offset in swaps if name not in unfinished]
    logs = [(name, offset) for name, offset in finished if name.endswith(LOG + SWAP)]
    if logs:
        first = min(offset for _, offset in logs)
        end = max(_end_of_swap(directory, name, offset) for name, offset in logs)
        plain = [
            name
            for suffix in SEGMENT_SUFFIXES
            for name, offset in _named(names, suffix)
            if first <= offset < end
        ]
        remove_left(directory, plain)
    for name, _ in finished:
        os.rename(directory / name, directory / name.removesuffix(SWAP))


def _end_of_swap(directory: Path, name: str, offset: int) -> int:
    size_bytes = (directory / name).stat().st_size
    file = SegmentFile(directory, offset, size_bytes=size_bytes, suffix=LOG + SWAP)
    try:
        for _, header in file.headers(0, end=file.size_bytes):
            offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
        return offset
    finally:
        file.abandon()
