"""Reads the files beside a `.log`: offset index, time index, transaction index, producer snapshot.

The two indexes are read by the format's definition (`OffsetIndex.java`, `TimeIndex.java`) and checked as Kafka's
DumpLogSegments checks them, not by the code that writes them, so that a mistake of that code shows. Each
generator ends with a `summary` whose `fault` is null or a sentence; all of them raise OSError where the file
cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final

from appliance.cli.segment_dump import Fact, joined
from appliance.errors import CorruptFile
from appliance.log.file_names import LOG, OFFSET_INDEX
from appliance.log.producer_state import Producers
from appliance.log.transaction_index import read_transactions
from appliance.protocol.records.batch import HEADER_BYTES, read_header
from appliance.protocol.records.errors import BatchFault

_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")


def offset_index_facts(path: Path, base_offset: int) -> Iterator[Fact]:
    """An `entry` each: offset and position, checked against the `.log` beside it if there is one."""
    entries = 0
    faults: list[str] = []
    before = (-1, -1)
    content = path.read_bytes()
    log = path.with_name(path.name.replace(OFFSET_INDEX, LOG))
    with ExitStack() as stack:
        log_file = stack.enter_context(log.open("rb")) if log.is_file() else None
        for relative, position in _entries(content, _OFFSET_ENTRY):
            fault = None
            if (relative, position) <= before or relative <= before[0]:
                fault = "not above the entry before it"
            elif log_file is not None:
                fault = _disagreement(log_file, position, base_offset + relative)
            yield {"kind": "entry", "offset": base_offset + relative, "position": position, "fault": fault}
            if fault:
                faults.append(f"entry {entries} (offset {base_offset + relative}): {fault}")
            before = (relative, position)
            entries += 1
    yield _index_summary("offset index", base_offset, content, _OFFSET_ENTRY, entries=entries, faults=faults)


def _disagreement(log: BinaryIO, position: int, offset: int) -> str | None:
    """What the log says against an entry: the batch at `position` must end with `offset`."""
    log.seek(max(position, 0))
    try:
        header = read_header(log.read(HEADER_BYTES))
    except BatchFault as fault:
        return f"no batch begins at position {position} of the log: {fault.message}"
    if header.last_offset != offset:
        return f"the batch at position {position} of the log ends with offset {header.last_offset}"
    return None


def time_index_facts(path: Path, base_offset: int) -> Iterator[Fact]:
    """An `entry` each: timestamp and offset, both rising."""
    entries = 0
    faults: list[str] = []
    before = (-1, -1)
    content = path.read_bytes()
    for timestamp_ms, relative in _entries(content, _TIME_ENTRY):
        fault = None
        if timestamp_ms <= before[0] or relative < before[1]:
            fault = "not above the entry before it"
            faults.append(f"entry {entries} (timestamp {timestamp_ms}): {fault}")
        yield {
            "kind": "entry",
            "timestamp_ms": timestamp_ms,
            "offset": base_offset + relative,
            "fault": fault,
        }
        before = (timestamp_ms, relative)
        entries += 1
    yield _index_summary("time index", base_offset, content, _TIME_ENTRY, entries=entries, faults=faults)


def _entries(content: bytes, entry: Struct) -> Iterator[tuple[int, int]]:
    """The entries of an index. Zeros after them are room that was allocated ahead."""
    used = len(content.rstrip(b"\0"))
    whole = len(content) - len(content) % entry.size
    for position in range(0, whole, entry.size):
        if position >= used:
            return
        first, second = entry.unpack_from(content, position)
        yield first, second


def _index_summary(
    kind: str, base_offset: int, content: bytes, entry: Struct, *, entries: int, faults: list[str]
) -> Fact:
    if len(content) % entry.size:
        faults.append(f"{len(content)} bytes are not a multiple of the entry size {entry.size}")
    return {
        "kind": "summary",
        "type": kind,
        "base_offset": base_offset,
        "entries": entries,
        "size_bytes": len(content),
        "fault": joined(faults),
    }


def transaction_index_facts(path: Path, base_offset: int) -> Iterator[Fact]:
    """An `aborted transaction` each."""
    # An empty or missing file has no entries, so a missing one must be found out here.
    size_bytes = path.stat().st_size
    entries = read_transactions(path)
    for entry in entries:
        yield {"kind": "aborted transaction", **entry._asdict()}
    yield {
        "kind": "summary",
        "type": "transaction index",
        "base_offset": base_offset,
        "entries": len(entries),
        "size_bytes": size_bytes,
        "fault": None,
    }


def snapshot_facts(path: Path, base_offset: int) -> Iterator[Fact]:
    """A `producer` each; `base_offset` is the offset up to which the snapshot knows."""
    content = path.read_bytes()
    fault = None
    producers = Producers()
    try:
        producers = Producers.decode_snapshot(content, path)
    except CorruptFile as corrupt:
        fault = str(corrupt)
    for entry in producers.entries():
        last = entry.batches[-1] if entry.batches else None
        yield {
            "kind": "producer",
            "producer_id": entry.producer_id,
            "producer_epoch": entry.epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": None if last is None else last.last_offset,
            "last_timestamp_ms": entry.last_timestamp_ms,
            "coordinator_epoch": entry.coordinator_epoch,
            "transaction_first_offset": (
                None if entry.transaction_first_offset < 0 else entry.transaction_first_offset
            ),
        }
    yield {
        "kind": "summary",
        "type": "producer snapshot",
        "base_offset": base_offset,
        "producers": len(producers),
        "size_bytes": len(content),
        "fault": fault,
    }
