from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.protocol.records.errors import InvalidRecords
from appliance.protocol.records.varint import read_varint, read_varlong, write_varint


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (8191, "fe7f"),
        (8192, "808001"),
    ],
)
def test_integers_are_written_as_the_format_says(value: int, encoded: str) -> None:
    out = bytearray()
    write_varint(out, value)
    assert out.hex() == encoded
    assert read_varint(bytes(out), 0) == (value, len(out))


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=3))
def test_every_32_bit_integer_comes_back(value: int, before: bytes) -> None:
    out = bytearray(before)
    write_varint(out, value)
    assert read_varint(bytes(out), len(before)) == (value, len(out))


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_64_bit_integer_comes_back(value: int) -> None:
    out = bytearray()
    write_varint(out, value)
    assert read_varlong(bytes(out), 0) == (value, len(out))


@pytest.mark.parametrize("encoded", ["", "80", "8080", "808080", "80808080"])
def test_an_integer_that_is_cut_off_is_refused(encoded: str) -> None:
    with pytest.raises(InvalidRecords):
        read_varint(bytes.fromhex(encoded), 0)


def test_an_integer_of_too_many_bytes_is_refused() -> None:
    with pytest.raises(InvalidRecords):
        read_varint(b"\x80" * 5 + b"\x01", 0)
    with pytest.raises(InvalidRecords):
        read_varlong(b"\x80" * 10 + b"\x01", 0)
