"""Reads a `.log` file as it lies on the disk: a fact for each batch, one for each record if wanted, a summary.

Nothing is mapped, since a file may be cut while it is read, and nothing is written, locked or asked of a broker.
The file of a running appliance can be read too: it ends where whole batches end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from appliance.cli.record_format import text_or_base64
from appliance.protocol.records.batch import HEADER_BYTES, BatchHeader, crc_holds, read_header
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.control import ControlType, control_type, decode_marker
from appliance.protocol.records.errors import BatchFault, CorruptBatch
from appliance.protocol.records.record import decode_records

Fact = dict[str, Any]
Decoder: TypeAlias = Callable[[bytes | None, bytes | None], dict[str, Any] | None]
"""(key, value) of a record of an internal topic → what it says; None where that is not known."""

FAULTS_TOLD: Final = 10
_ZEROS_STEP_BYTES: Final = 1 << 20


def log_facts(path: Path, base_offset: int, *, with_records: bool) -> Iterator[Fact]:
    """Facts of kind `batch`, `record`, `undecodable`, and at last a `summary` whose `fault` is null or a sentence.

    Raises:
        OSError: the file cannot be read.
    """
    batches = records = position = 0
    next_offset = base_offset
    faults: list[str] = []
    decode = _decoder(path) if with_records else None
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        tail: str | None = None
        while position < size_bytes:
            try:
                header, batch = _read_batch(file, position, size_bytes)
            except BatchFault as fault:
                tail = "zeros" if _is_zero(file, position, size_bytes) else fault.message
                break
            crc_ok = crc_holds(batch)
            fault_text = _batch_fault(header, next_offset, crc_ok=crc_ok)
            if fault_text:
                faults.append(f"batch at position {position}: {fault_text}")
            yield _batch_fact(position, header, crc_ok=crc_ok, fault=fault_text)
            if with_records:
                for fact in _record_facts(batch, header, decode):
                    if fact["kind"] == "undecodable":
                        faults.append(f"records of the batch at position {position}: {fact['fault']}")
                    yield fact
            batches += 1
            records += header.records_count
            next_offset = header.next_offset
            position += header.size_bytes
    if tail is not None and tail != "zeros":
        faults.append(f"torn tail: {size_bytes - position} bytes from position {position}: {tail}")
    yield {
        "kind": "summary",
        "type": "log",
        "base_offset": base_offset,
        "next_offset": next_offset,
        "batches": batches,
        "records": records,
        "size_bytes": size_bytes,
        "valid_bytes": position,
        "allocated_ahead_bytes": size_bytes - position if tail == "zeros" else 0,
        "torn_tail_position": position if tail not in (None, "zeros") else None,
        "fault": joined(faults),
    }


def joined(faults: list[str]) -> str | None:
    """The first faults in one sentence, with the number of the others; None without any."""
    more = len(faults) - FAULTS_TOLD
    told = faults[:FAULTS_TOLD] + ([f"and {more} more"] if more > 0 else [])
    return "; ".join(told) or None


def _read_batch(file: BinaryIO, position: int, size_bytes: int) -> tuple[BatchHeader, memoryview]:
    file.seek(position)
    header = read_header(file.read(HEADER_BYTES))
    if header.size_bytes > size_bytes - position:
        # Checked before anything of the declared size is read.
        raise CorruptBatch(
            f"a batch of {header.size_bytes} bytes has only {size_bytes - position} in the file"
        )
    file.seek(position)
    return header, memoryview(file.read(header.size_bytes))


def _batch_fault(header: BatchHeader, next_offset: int, *, crc_ok: bool) -> str | None:
    if not crc_ok:
        return "its checksum is wrong"
    if header.base_offset < next_offset:
        return f"its base offset {header.base_offset} is below {next_offset}, where the batch before it ends"
    return None


def _is_zero(file: BinaryIO, position: int, size_bytes: int) -> bool:
    file.seek(position)
    while position < size_bytes:
        block = file.read(min(_ZEROS_STEP_BYTES, size_bytes - position))
        if block.count(0) != len(block) or not block:
            return not block
        position += len(block)
    return True


def _batch_fact(position: int, header: BatchHeader, *, crc_ok: bool, fault: str | None) -> Fact:
    return {
        "kind": "batch",
        "position": position,
        "size_bytes": header.size_bytes,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.records_count,
        "leader_epoch": header.partition_leader_epoch,
        "codec": _codec_name(header.codec),
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "base_timestamp_ms": header.base_timestamp_ms,
        "max_timestamp_ms": header.max_timestamp_ms,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": f"{header.crc:08x}",
        "crc_ok": crc_ok,
        "fault": fault,
    }


def _codec_name(number: int) -> str:
    try:
        return Codec(number).name.lower()
    except ValueError:
        return f"unknown {number}"


def _decoder(path: Path) -> Decoder | None:
    # The coordinator's rooms are loaded for the two topics that need them.
    if not path.absolute().parent.name.startswith("__"):
        return None
    from appliance.cli.internal_records import decoder_of

    return decoder_of(path)


def _record_facts(batch: memoryview, header: BatchHeader, decode: Decoder | None) -> Iterator[Fact]:
    try:
        records = decode_records(batch)
        marker = decode_marker(batch) if header.is_control else None
        for record in records:
            fact: Fact = {
                "kind": "record",
                "offset": record.offset,
                "timestamp_ms": record.timestamp_ms,
                "key": text_or_base64(record.key),
                "value": text_or_base64(record.value),
                "headers": [[name, text_or_base64(value)] for name, value in record.headers],
            }
            if header.is_control:
                number = control_type(record.key)
                known = number in ControlType.__members__.values()
                fact["control"] = ControlType(number).name if known else f"type {number}"
                fact["coordinator_epoch"] = None if marker is None else marker.coordinator_epoch
            elif decode is not None:
                fact["decoded"] = decode(record.key, record.value)
            yield fact
    except BatchFault as fault:
        yield {"kind": "undecodable", "base_offset": header.base_offset, "fault": fault.message}
