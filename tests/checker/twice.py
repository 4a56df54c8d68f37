"""Of records that are in a log twice: under which producer epoch and sequence, which says who numbered them anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from appliance.log.file_names import LOG
from appliance.protocol.records.batch import BatchHeader, batches
from tests.checker.history import History, shown


def told_twice(history: History, data_dir: Path, topic: str) -> Iterator[str]:
    """A sentence for each."""
    for partition, log in enumerate(history.log):
        first_at: dict[int, int] = {}
        for offset, token in zip(log.offsets, log.tokens, strict=True):
            before = first_at.setdefault(token, offset)
            if before != offset:
                numbers = [_numbers(data_dir, f"{topic}-{partition}", each) for each in (before, offset)]
                yield f"{shown(token)} in partition {partition}: {' and '.join(numbers)}"


def _numbers(data_dir: Path, name: str, offset: int) -> str:
    for path in sorted(data_dir.glob(f"slot-*/{name}/*{LOG}")):
        found = _batch_of(path, offset)
        if found is not None:
            sequence = found.base_sequence + offset - found.base_offset
            return f"offset {offset} is epoch {found.producer_epoch}, sequence {sequence}"
    return f"offset {offset} is in no file any more"


def _batch_of(path: Path, offset: int) -> BatchHeader | None:
    for _, header in batches(path.read_bytes()):
        if header.base_offset <= offset <= header.last_offset:
            return header
    return None
