"""What Kafka's DumpLogSegments accepts of a segment, said again in Python and held against our files.

.index       an entry's offset is the last offset of the batch that begins at its position
.timeindex   timestamps rise; an entry's offset is the last of a batch whose largest record timestamp it is
.log         offsets follow one another; batch sizes and checksums hold; nothing is behind the last batch
"""

from __future__ import annotations

import random
from pathlib import Path
from struct import iter_unpack

import pytest

from appliance.log.config import LogSettings
from appliance.protocol.records.batch import batches, crc_holds
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.record import Record, decode_records, encode_batch
from tests.log.batches import NOW_MS, crash, open_log


def dump_faults(log_file: Path) -> list[str]:
    """Everything that the dump tool would complain of; nothing if the segment is sound."""
    faults = []
    data = log_file.read_bytes()
    base = int(log_file.stem)
    last_offsets: dict[int, int] = {}
    largest_ms: dict[int, int] = {}
    expected = base
    end = 0
    for position, header in batches(data):
        if not crc_holds(memoryview(data)[position : position + header.size_bytes]):
            faults.append(f"invalid checksum at {position}")
        for record in decode_records(data, position):
            if record.offset != expected:
                faults.append(f"non-consecutive offset {record.offset} after {expected - 1}")
            expected = record.offset + 1
            largest_ms[header.last_offset] = max(largest_ms.get(header.last_offset, -1), record.timestamp_ms)
        last_offsets[position] = header.last_offset
        end = position + header.size_bytes
    if end != len(data):
        faults.append(f"{len(data) - end} bytes after the last batch")
    for relative, position in iter_unpack(">ii", log_file.with_suffix(".index").read_bytes()):
        if last_offsets.get(position) != base + relative:
            faults.append(
                f"index says {base + relative} at {position}, log says {last_offsets.get(position)}"
            )
    previous_ms = -1
    for timestamp_ms, relative in iter_unpack(">qi", log_file.with_suffix(".timeindex").read_bytes()):
        if timestamp_ms <= previous_ms:
            faults.append(f"time index does not rise at {timestamp_ms}")
        previous_ms = timestamp_ms
        if largest_ms.get(base + relative) != timestamp_ms:
            faults.append(
                f"time index says {timestamp_ms} at {base + relative}: {largest_ms.get(base + relative)}"
            )
    return faults


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
@pytest.mark.parametrize("append_time", [False, True])
def test_the_dump_tool_finds_no_fault_in_any_segment(
    tmp_path: Path, clean: bool, codec: Codec, append_time: bool
) -> None:
    rng = random.Random(clean * 4 + codec)
    settings = LogSettings(
        segment_bytes=20_000,
        index_interval_bytes=500,
        message_timestamp_type="LogAppendTime" if append_time else "CreateTime",
    )
    log = open_log(tmp_path, settings=settings)
    for number in range(200):
        records = [
            Record(
                rng.randbytes(rng.randrange(300)), timestamp_ms=NOW_MS + number // 5 + rng.randrange(-50, 50)
            )
            for _ in range(rng.randrange(1, 6))
        ]
        log.append(memoryview(encode_batch(records, codec=codec)), leader_epoch=number // 50)
    if clean:
        log.close(clean=True)
    else:
        crash(log)
        open_log(tmp_path, settings=settings).close(clean=True)
    segments = sorted(tmp_path.glob("*.log"))
    assert len(segments) > 3
    assert {path.name: dump_faults(path) for path in segments} == {path.name: [] for path in segments}
    assert all(path.with_suffix(".timeindex").stat().st_size for path in segments)
    assert all(path.with_suffix(".index").stat().st_size for path in segments[:-1])


def test_the_rules_notice_what_is_wrong(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=LogSettings(index_interval_bytes=100))
    for number in range(30):
        log.append(
            memoryview(encode_batch([Record(bytes(90), timestamp_ms=NOW_MS + number)])), leader_epoch=0
        )
    log.close(clean=True)
    (path,) = tmp_path.glob("*.log")
    assert dump_faults(path) == []
    for suffix, position in (
        (".index", 3),
        (".index", 7),
        (".timeindex", 7),
        (".timeindex", 11),
        (".log", 70),
    ):
        file = path.with_suffix(suffix)
        sound = file.read_bytes()
        damaged = bytearray(sound)
        damaged[position] ^= 1
        file.write_bytes(damaged)
        assert dump_faults(path), suffix
        file.write_bytes(sound)
