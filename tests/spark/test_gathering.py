"""A column's bytes are the same, whoever copies them together."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from appliance.protocol.columns import arrow_arrays
from appliance.protocol.columns.compiled import has_compiler


def gathered(values: list[bytes | None], kind: pa.DataType, *, gap_bytes: int) -> pa.Array:
    """The values, laid with gaps between them into a buffer, as a column."""
    data, bounds = bytearray(b"?" * gap_bytes), []
    for value in values:
        bounds += [len(data), len(data) + len(value or b"")]
        data += (value or b"") + b"?" * gap_bytes
    nulls = np.array([value is None for value in values])
    return arrow_arrays.gathered(data, np.array(bounds, np.int32), nulls, kind)


@pytest.mark.parametrize("compiled", [has_compiler(), False])
@pytest.mark.parametrize("gap_bytes", [0, 1, 7])
@pytest.mark.parametrize("longest", [0, 1, 9, 3000])
def test_a_column_has_the_bytes_and_nulls_of_its_fields(
    monkeypatch: pytest.MonkeyPatch, longest: int, gap_bytes: int, *, compiled: bool
) -> None:
    monkeypatch.setattr(arrow_arrays, "has_compiler", lambda: compiled)
    chance = random.Random(longest)
    values = [chance.randbytes(chance.randint(0, longest)) for _ in range(500)]
    with_nulls = [None if chance.random() < 0.2 else value for value in values]
    for wanted in (values, with_nulls, values[:1], [None], [b"", None, b""]):
        column = gathered(list(wanted), pa.binary(), gap_bytes=gap_bytes)
        column.validate(full=True)
        assert column.to_pylist() == wanted


@pytest.mark.parametrize("compiled", [has_compiler(), False])
def test_text_and_no_rows_at_all_are_columns_too(monkeypatch: pytest.MonkeyPatch, *, compiled: bool) -> None:
    monkeypatch.setattr(arrow_arrays, "has_compiler", lambda: compiled)
    assert gathered(["ähm".encode(), b"b"], pa.string(), gap_bytes=3).to_pylist() == ["ähm", "b"]
    assert gathered([], pa.string(), gap_bytes=3).to_pylist() == []


def test_a_column_keeps_its_bytes_when_the_buffer_is_used_again() -> None:
    data = bytearray(b"-one-two-")
    column = arrow_arrays.gathered(data, np.array([1, 4, 5, 8], np.int32), np.zeros(2, bool), pa.binary())
    data[:] = bytes(len(data))
    assert column.to_pylist() == [b"one", b"two"]
