from __future__ import annotations

import struct

import pytest

from appliance.errors import MalformedFrame
from appliance.protocol.framing import REQUEST_BYTES_MIN, frame_size

LIMIT = 1000


@pytest.mark.parametrize("size", [REQUEST_BYTES_MIN, LIMIT])
def test_size_that_a_request_can_have_is_read_where_it_stands(size: int) -> None:
    assert frame_size(memoryview(b"before" + struct.pack(">i", size)), 6, size_max=LIMIT) == size


@pytest.mark.parametrize("size", [0, -1, -(2**31), 1, 7, LIMIT + 1, 2**31 - 1])
def test_size_that_no_request_can_have_is_refused_and_named(size: int) -> None:
    with pytest.raises(MalformedFrame, match=str(size)):
        frame_size(memoryview(struct.pack(">i", size) + bytes(20)), 0, size_max=LIMIT)
