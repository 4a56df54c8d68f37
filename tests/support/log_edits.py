"""What a test does to the files of a log while no broker runs: batches are read, cut off the end, and appended."""

from __future__ import annotations

from pathlib import Path

from appliance.protocol.records.batch import BatchHeader, batches
from appliance.protocol.records.record import Record, decode_records, encode_batch


def last_segment(partition: Path) -> Path:
    return max(partition.glob("*.log"))


def headers(log: Path) -> list[tuple[int, BatchHeader]]:
    """(position, header) of each batch."""
    return list(batches(log.read_bytes()))


def records_of_the_last_batch(log: Path) -> list[Record]:
    position, header = headers(log)[-1]
    content = log.read_bytes()[position : position + header.size_bytes]
    return [Record(each.value, key=each.key) for each in decode_records(content)]


def cut_off_the_last_batch(log: Path) -> BatchHeader:
    """As if the process had died before that write; what it was."""
    position, header = headers(log)[-1]
    with log.open("r+b") as file:
        file.truncate(position)
    return header


def append_batch(log: Path, records: list[Record]) -> None:
    """A batch behind the last one, with that one's leader epoch."""
    position, before = headers(log)[-1]
    batch = encode_batch(records, base_offset=before.next_offset, leader_epoch=before.partition_leader_epoch)
    with log.open("r+b") as file:
        file.seek(position + before.size_bytes)
        file.write(batch)
