from __future__ import annotations

import pytest

from appliance.protocol.records.batch import read_header
from appliance.protocol.records.control import (
    ControlType,
    EndTransactionMarker,
    control_type,
    decode_marker,
    encode_marker_batch,
)
from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.record import Record, decode_records, encode_batch


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_takes_78_bytes_and_comes_back(committed: bool) -> None:
    marker = EndTransactionMarker(committed, coordinator_epoch=7)
    batch = encode_marker_batch(marker, producer_id=42, producer_epoch=3, timestamp_ms=1_000)
    assert len(batch) == 78
    assert decode_marker(batch) == marker
    header = read_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (42, 3, -1)


def test_a_marker_has_the_bytes_that_kafka_writes() -> None:
    batch = encode_marker_batch(
        EndTransactionMarker(True, coordinator_epoch=258), producer_id=1, producer_epoch=0, timestamp_ms=0
    )
    record = decode_records(batch)[0]
    assert record.key == bytes.fromhex("00000001")
    assert record.value == bytes.fromhex("000000000102")


def test_control_records_of_other_types_are_no_markers() -> None:
    batch = encode_batch(
        [Record(b"", (0).to_bytes(2, "big") + int(ControlType.LEADER_CHANGE).to_bytes(2, "big"))]
    )
    assert decode_marker(batch) is None


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_a_control_key_that_does_not_parse_is_refused(key: bytes | None) -> None:
    with pytest.raises(InvalidRecords):
        control_type(key)


def test_a_marker_without_its_value_is_refused() -> None:
    with pytest.raises(InvalidRecords):
        decode_marker(encode_batch([Record(b"\0", b"\0\0\0\1")]))
