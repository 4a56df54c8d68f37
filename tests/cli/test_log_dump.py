"""log dump on files written here byte by byte: what is sound is shown, what is wrong is named by its place."""

from __future__ import annotations

import json
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from appliance.cli.log_dump import dump_file
from appliance.errors import OperatorFault
from appliance.protocol.records.batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.control import EndTransactionMarker, encode_marker_batch
from appliance.protocol.records.crc32c import checksum
from appliance.protocol.records.record import Record, encode_batch
from tests.cli.command import appliance

TIME_MS = 1_700_000_000_000
LOG_NAME = "00000000000000000100.log"

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")
ABORTED = Struct(">hqqqq")
SNAPSHOT_HEAD = Struct(">hIi")
SNAPSHOT_ENTRY = Struct(">qhiqiqiq")


def batch(base_offset: int, count: int = 3, *, codec: Codec = Codec.NONE, attributes: int = 0) -> bytes:
    records = [
        Record(key=b"k%d" % number, value=b"value", timestamp_ms=TIME_MS + number, headers=(("h", None),))
        for number in range(count)
    ]
    return encode_batch(
        records,
        base_offset=base_offset,
        leader_epoch=7,
        codec=codec,
        attributes=attributes,
        producer_id=42,
        producer_epoch=1,
        base_sequence=5,
    )


def write_log(directory: Path, content: bytes, name: str = LOG_NAME) -> Path:
    path = directory / name
    path.write_bytes(content)
    return path


def facts(path: Path, *, with_records: bool = False) -> list[dict[str, Any]]:
    return list(dump_file(path, with_records=with_records))


def summary(path: Path) -> dict[str, Any]:
    return facts(path)[-1]


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_and_records_are_told_with_every_codec(tmp_path: Path, codec: Codec) -> None:
    first = batch(100, codec=codec)
    path = write_log(tmp_path, first + batch(103, 1, codec=codec))
    told = facts(path, with_records=True)
    assert [fact["kind"] for fact in told] == ["batch", *["record"] * 3, "batch", "record", "summary"]
    assert told[0] == {
        "file": str(path),
        "kind": "batch",
        "position": 0,
        "size_bytes": len(first),
        "base_offset": 100,
        "last_offset": 102,
        "records": 3,
        "leader_epoch": 7,
        "codec": codec.name.lower(),
        "timestamp_type": "CreateTime",
        "base_timestamp_ms": TIME_MS,
        "max_timestamp_ms": TIME_MS + 2,
        "producer_id": 42,
        "producer_epoch": 1,
        "base_sequence": 5,
        "last_sequence": 7,
        "transactional": False,
        "control": False,
        "crc": told[0]["crc"],
        "crc_ok": True,
        "fault": None,
    }
    assert told[2] == {
        "file": str(path),
        "kind": "record",
        "offset": 101,
        "timestamp_ms": TIME_MS + 1,
        "key": "k1",
        "value": "value",
        "headers": [["h", None]],
    }
    assert told[4]["position"] == len(first)
    assert told[-1]["fault"] is None
    assert (told[-1]["batches"], told[-1]["records"], told[-1]["next_offset"]) == (2, 4, 104)


def test_torn_tail_is_named_at_every_byte_of_the_last_batch(tmp_path: Path) -> None:
    first, last = batch(100), batch(103)
    # The first seven bytes of its base offset are zeros, which nobody can tell from room allocated ahead.
    for kept in range(8, len(last)):
        told = summary(write_log(tmp_path, first + last[:kept]))
        assert told["torn_tail_position"] == told["valid_bytes"] == len(first), kept
        assert f"torn tail: {kept} bytes from position {len(first)}" in told["fault"]
        assert told["batches"] == 1


def test_room_allocated_ahead_is_no_torn_tail(tmp_path: Path) -> None:
    first = batch(100)
    told = summary(write_log(tmp_path, first + bytes(3 * 2**20)))
    assert told["fault"] is None
    assert told["torn_tail_position"] is None
    assert told["allocated_ahead_bytes"] == 3 * 2**20


def test_one_byte_in_the_room_ahead_makes_it_a_torn_tail(tmp_path: Path) -> None:
    room = bytearray(3 * 2**20)
    room[-1] = 1
    assert summary(write_log(tmp_path, batch(100) + room))["torn_tail_position"] == len(batch(100))


def test_every_flipped_byte_behind_the_checksum_is_found(tmp_path: Path) -> None:
    sound = batch(100)
    for position in range(17, len(sound)):
        broken = bytearray(sound)
        broken[position] ^= 0x10
        told = facts(write_log(tmp_path, bytes(broken) + batch(103)))
        assert told[0]["crc_ok"] is False, position
        assert "batch at position 0: its checksum is wrong" in told[-1]["fault"]
        assert told[-1]["batches"] == 2, "the next batch is found by the length"


def test_offset_that_goes_back_is_found_and_a_gap_is_none(tmp_path: Path) -> None:
    assert summary(write_log(tmp_path, batch(100) + batch(200)))["fault"] is None
    assert "base offset 102 is below 103" in summary(write_log(tmp_path, batch(100) + batch(102)))["fault"]
    assert "base offset 99 is below 100" in summary(write_log(tmp_path, batch(99)))["fault"]


def test_length_that_lies_costs_no_memory(tmp_path: Path) -> None:
    lying = bytearray(batch(100))
    lying[8:12] = (2**31 - 1).to_bytes(4, "big")
    assert "of 2147483659 bytes has only" in summary(write_log(tmp_path, bytes(lying)))["fault"]
    lying[8:12] = (-1).to_bytes(4, "big", signed=True)
    assert summary(write_log(tmp_path, bytes(lying)))["torn_tail_position"] == 0


def test_old_message_format_is_named(tmp_path: Path) -> None:
    old = bytearray(batch(100))
    old[16] = 1
    assert "message format v1" in summary(write_log(tmp_path, bytes(old)))["fault"]


def test_records_that_do_not_decode_are_said_and_the_rest_is_read(tmp_path: Path) -> None:
    broken = bytearray(batch(100, codec=Codec.GZIP))
    broken[75] ^= 0xFF  # in the compressed stream, behind gzip's header
    broken[17:21] = checksum(memoryview(broken)[21:]).to_bytes(4, "big")
    told = facts(write_log(tmp_path, bytes(broken) + batch(103, 1)), with_records=True)
    assert [fact["kind"] for fact in told] == ["batch", "undecodable", "batch", "record", "summary"]
    assert "records of the batch at position 0" in told[-1]["fault"]


def test_transaction_marker_is_told_as_what_it_is(tmp_path: Path) -> None:
    marker = bytearray(
        encode_marker_batch(
            EndTransactionMarker(committed=False, coordinator_epoch=9),
            producer_id=42,
            producer_epoch=1,
            timestamp_ms=TIME_MS,
        )
    )
    marker[0:8] = (103).to_bytes(8, "big")
    content = batch(100, attributes=TRANSACTIONAL) + marker
    told = facts(write_log(tmp_path, content), with_records=True)
    assert (told[0]["transactional"], told[0]["control"]) == (True, False)
    assert told[4]["control"] is True
    assert (told[5]["control"], told[5]["coordinator_epoch"]) == ("ABORT", 9)


def test_log_append_time_is_told(tmp_path: Path) -> None:
    told = facts(write_log(tmp_path, batch(100, attributes=LOG_APPEND_TIME)), with_records=True)
    assert told[0]["timestamp_type"] == "LogAppendTime"
    assert told[1]["timestamp_ms"] == TIME_MS + 2


def test_control_batch_of_unknown_type_is_shown_by_its_number(tmp_path: Path) -> None:
    strange = encode_batch([Record(key=b"\0\0\0\x63", value=b"")], base_offset=100, attributes=CONTROL)
    told = facts(write_log(tmp_path, strange), with_records=True)
    assert told[1]["control"] == "type 99"


def index(path: Path, entry: Struct, entries: list[tuple[int, int]], *, room: int = 0) -> Path:
    path.write_bytes(b"".join(entry.pack(*each) for each in entries) + bytes(room))
    return path


def test_offset_index_is_compared_with_its_log(tmp_path: Path) -> None:
    first = batch(100)
    write_log(tmp_path, first + batch(103))
    path = tmp_path / "00000000000000000100.index"
    sound = facts(index(path, OFFSET_ENTRY, [(2, 0), (5, len(first))], room=8000))
    assert [(fact["offset"], fact["position"]) for fact in sound[:-1]] == [(102, 0), (105, len(first))]
    assert (sound[-1]["entries"], sound[-1]["fault"]) == (2, None)
    assert "ends with offset 105" in summary(index(path, OFFSET_ENTRY, [(4, len(first))]))["fault"]
    assert "no batch begins at position 9" in summary(index(path, OFFSET_ENTRY, [(4, 9)]))["fault"]
    assert "no batch begins" in summary(index(path, OFFSET_ENTRY, [(4, 10**6)]))["fault"]
    assert "not above" in summary(index(path, OFFSET_ENTRY, [(5, len(first)), (2, 0)]))["fault"]
    path.write_bytes(OFFSET_ENTRY.pack(2, 0) + b"\1")
    assert "not a multiple of the entry size 8" in summary(path)["fault"]


def test_offset_index_without_its_log_is_read_too(tmp_path: Path) -> None:
    path = index(tmp_path / "00000000000000000000.index", OFFSET_ENTRY, [(9, 4100), (20, 9000)])
    assert summary(path)["fault"] is None


def test_time_index_must_rise(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000100.timeindex"
    sound = facts(index(path, TIME_ENTRY, [(TIME_MS, 0), (TIME_MS + 5, 9)], room=24))
    assert [(fact["timestamp_ms"], fact["offset"]) for fact in sound[:-1]] == [
        (TIME_MS, 100),
        (TIME_MS + 5, 109),
    ]
    assert sound[-1]["fault"] is None
    assert "not above" in summary(index(path, TIME_ENTRY, [(TIME_MS, 0), (TIME_MS, 9)]))["fault"]
    assert "not above" in summary(index(path, TIME_ENTRY, [(TIME_MS, 5), (TIME_MS + 1, 4)]))["fault"]


def test_transaction_index_and_producer_snapshot_are_read(tmp_path: Path) -> None:
    aborted = tmp_path / "00000000000000000100.txnindex"
    aborted.write_bytes(ABORTED.pack(0, 42, 101, 105, 100))
    assert facts(aborted)[0] == {
        "file": str(aborted),
        "kind": "aborted transaction",
        "producer_id": 42,
        "first_offset": 101,
        "last_offset": 105,
        "last_stable_offset": 100,
    }
    entries = SNAPSHOT_ENTRY.pack(42, 1, 7, 102, 2, TIME_MS, 3, -1)
    content = bytearray(SNAPSHOT_HEAD.pack(1, 0, 1) + entries)
    content[2:6] = checksum(memoryview(content)[6:]).to_bytes(4, "big")
    snapshot = tmp_path / "00000000000000000103.snapshot"
    snapshot.write_bytes(content)
    told = facts(snapshot)
    assert (told[0]["producer_id"], told[0]["last_sequence"], told[0]["last_offset"]) == (42, 7, 102)
    assert told[0]["transaction_first_offset"] is None
    assert told[-1]["fault"] is None
    content[-1] ^= 1
    snapshot.write_bytes(content)
    assert "checksum" in summary(snapshot)["fault"]


@pytest.mark.parametrize("suffix", [".deleted", ".swap", ".cleaned"])
def test_files_that_wait_for_removal_are_read_too(tmp_path: Path, suffix: str) -> None:
    assert summary(write_log(tmp_path, batch(100), LOG_NAME + suffix))["batches"] == 1


def test_foreign_and_missing_files_are_refused(tmp_path: Path) -> None:
    for name in ("notes.txt", "meta.properties", "1.log"):
        with pytest.raises(OperatorFault, match="not the name of a segment file"):
            facts(write_log(tmp_path, b"", name))
    with pytest.raises(OperatorFault, match="No such file"):
        facts(tmp_path / "00000000000000000001.log")
    with pytest.raises(OperatorFault, match="No such file"):
        facts(tmp_path / "00000000000000000001.txnindex")


def test_command_prints_lines_and_ends_with_1_where_something_is_wrong(tmp_path: Path) -> None:
    sound = write_log(tmp_path, batch(100), "00000000000000000100.log")
    torn = write_log(tmp_path, batch(103)[:-1], "00000000000000000103.log")
    told = appliance("log", "dump", "--records", sound).succeeded()
    assert "offsets 100-102  records 3  codec none" in told.text
    assert "offset 101  2023-11-14T22:13:20.001Z  key 'k1'  value 'value'  h=null" in told.text
    assert f"{sound}: 1 batches, 3 records, offsets 100 up to 103" in told.text
    told = appliance("log", "dump", "--json", sound, torn)
    assert told.code == 1
    assert f"{torn}: torn tail: " in told.errors
    objects = [json.loads(line) for line in told.output.splitlines()]
    assert [each["kind"] for each in objects] == ["batch", "summary", "summary"]
    assert objects[-1]["torn_tail_position"] == 0


def test_long_values_and_control_characters_stay_on_one_bounded_line(tmp_path: Path) -> None:
    content = encode_batch([Record(value=b"line\n\x1b[31m" + b"x" * 10_000)], base_offset=100)
    told = appliance("log", "dump", "--records", write_log(tmp_path, content)).succeeded()
    assert len(told.text.splitlines()) == 3
    assert "\x1b" not in told.text
    assert max(map(len, told.text.splitlines())) < 400
