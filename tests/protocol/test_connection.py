from __future__ import annotations

import struct

import pytest

from appliance.errors import MalformedFrame
from appliance.protocol.connection import Connection, Frame, NeedMore

LIMIT = 1000


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def test_frames_come_out_whole_however_the_bytes_arrive() -> None:
    payloads = [b"12345678", b"x" * 300, b"y" * LIMIT]
    stream = b"".join(frame(payload) for payload in payloads)
    connection, seen = Connection(LIMIT), []
    buffer = memoryview(stream)
    for filled in range(len(stream) + 1):
        event = connection.next_event(buffer, filled)
        if isinstance(event, Frame):
            seen.append(bytes(buffer[event.start : event.end]))
    assert seen == payloads


def test_pipelined_frames_come_out_of_one_read() -> None:
    stream = memoryview(frame(b"a" * 8) + frame(b"b" * 9) + b"\x00\x00")
    connection = Connection(LIMIT)
    assert connection.next_event(stream, len(stream)) == Frame(4, 12)
    assert connection.next_event(stream, len(stream)) == Frame(16, 25)
    assert connection.next_event(stream, len(stream)) == NeedMore(2, 0)


def test_what_is_missing_is_told_to_the_byte() -> None:
    stream = memoryview(frame(b"a" * 100))
    connection = Connection(LIMIT)
    assert connection.next_event(stream, 0) == NeedMore(4, 0)
    assert connection.next_event(stream, 3) == NeedMore(1, 0)
    assert connection.next_event(stream, 4) == NeedMore(100, 104)
    assert connection.next_event(stream, 103) == NeedMore(1, 104)


def test_bytes_that_were_moved_are_read_where_they_are_now() -> None:
    connection = Connection(LIMIT)
    first = memoryview(frame(b"a" * 8) + b"\x00\x00\x00")
    assert connection.next_event(first, len(first)) == Frame(4, 12)
    assert connection.next_event(first, len(first)) == NeedMore(1, 0)
    second = memoryview(b"\x00\x00\x00\x08bbbbbbbb")
    connection.moved(0)
    assert connection.next_event(second, len(second)) == Frame(4, 12)


@pytest.mark.parametrize("size", [0, -1, -(2**31), 1, 7, LIMIT + 1, 2**31 - 1])
def test_size_that_no_request_can_have_breaks_the_connection_and_is_named(size: int) -> None:
    stream = memoryview(struct.pack(">i", size) + bytes(20))
    connection = Connection(LIMIT)
    for _ in range(2):
        with pytest.raises(MalformedFrame, match=str(size)):
            connection.next_event(stream, len(stream))


def test_frame_of_exactly_the_limit_is_taken() -> None:
    stream = memoryview(frame(bytes(LIMIT)))
    assert Connection(LIMIT).next_event(stream, len(stream)) == Frame(4, LIMIT + 4)


@pytest.mark.parametrize(
    ("first_bytes", "name"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"POST /x HTTP/1.1", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"\x16\x03\x03\x00\x50\x01", "TLS"),
    ],
)
def test_other_protocols_are_called_by_their_name(first_bytes: bytes, name: str) -> None:
    with pytest.raises(MalformedFrame, match=name):
        Connection(LIMIT).next_event(memoryview(first_bytes), len(first_bytes))


def test_limit_may_be_raised_after_authentication() -> None:
    stream = memoryview(frame(bytes(8)) + frame(bytes(5000)))
    connection = Connection(LIMIT)
    connection.next_event(stream, len(stream))
    connection.size_max = 10_000
    assert connection.next_event(stream, len(stream)) == Frame(16, 5016)
