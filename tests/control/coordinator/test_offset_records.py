"""Records of committed offsets have Kafka's bytes, in every version that Kafka has written."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import CorruptFile
from appliance.protocol.records.offset_records import (
    CommittedOffset,
    OffsetKey,
    encode_value,
    key_prefix,
    offset_key,
    parse_key,
    parse_value,
    suffix,
)

TOPIC_ID = UUID("01020304-0506-0708-090a-0b0c0d0e0f10")
NAMES = st.text(max_size=40)


def test_key_is_type_group_topic_and_partition() -> None:
    key = offset_key("g1", "top", 3)
    assert key == b"\0\1\0\2g1\0\3top\0\0\0\3"
    assert key == key_prefix("g1", "top") + suffix(3)
    assert parse_key(key) == OffsetKey("g1", "top", 3)


def test_value_is_written_as_version_4_with_the_topic_id_as_a_tagged_field() -> None:
    value = encode_value(CommittedOffset(258, 7, "hi", 1, topic_id=TOPIC_ID))
    assert value == (
        b"\0\4" + bytes([0, 0, 0, 0, 0, 0, 1, 2]) + b"\0\0\0\7" + b"\3hi" + bytes(7) + b"\1" + b"\1\0\x10"
    ) + bytes(range(1, 17))


def test_value_with_a_retention_of_its_own_is_written_as_version_1() -> None:
    value = encode_value(CommittedOffset(258, -1, "hi", 1, 2))
    assert value == b"\0\1" + bytes(6) + b"\1\2" + b"\0\2hi" + bytes(7) + b"\1" + bytes(7) + b"\2"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\0\0" + bytes(7) + b"\5" + b"\0\1m" + bytes(7) + b"\6", CommittedOffset(5, -1, "m", 6)),
        (b"\0\2" + bytes(7) + b"\5" + b"\0\1m" + bytes(7) + b"\6", CommittedOffset(5, -1, "m", 6)),
        (
            b"\0\3" + bytes(7) + b"\5" + b"\0\0\0\7" + b"\0\1m" + bytes(7) + b"\6",
            CommittedOffset(5, 7, "m", 6),
        ),
        (
            b"\0\4" + bytes(7) + b"\5" + b"\0\0\0\7" + b"\2m" + bytes(7) + b"\6" + b"\1\x07\2ab",
            CommittedOffset(5, 7, "m", 6),
        ),
    ],
)
def test_values_of_older_kafkas_and_with_unknown_tags_are_read(
    value: bytes, expected: CommittedOffset
) -> None:
    assert parse_value(value) == expected


@given(
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.text(max_size=200),
    st.integers(0, 2**62),
    st.sampled_from((UUID(int=0), TOPIC_ID)),
)
def test_what_is_written_is_read_back(
    offset: int, epoch: int, metadata: str, at_ms: int, topic: UUID
) -> None:
    committed = CommittedOffset(offset, epoch, metadata, at_ms, topic_id=topic)
    assert parse_value(encode_value(committed)) == committed


@given(NAMES, NAMES, st.integers(0, 2**31 - 1))
def test_key_is_read_back(group: str, topic: str, partition: int) -> None:
    assert parse_key(offset_key(group, topic, partition)) == OffsetKey(group, topic, partition)


@pytest.mark.parametrize("value", [b"", b"\0\5", b"\0\4\0", b"\0\1" + bytes(8) + b"\0\x09ab"])
def test_bytes_that_are_no_value_are_called_corrupt(value: bytes) -> None:
    with pytest.raises(CorruptFile):
        parse_value(value)


@pytest.mark.parametrize("key", [b"\0\1", b"\0\1\0\5ab", b"\0\1\0\1a\0\1b\0\0"])
def test_bytes_that_are_no_key_are_called_corrupt(key: bytes) -> None:
    with pytest.raises(CorruptFile):
        parse_key(key)
