"""The frames as docs/zeromq.md has them, byte for byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from appliance.errors import MalformedFrame
from appliance.gateway import frames
from appliance.gateway.frames import Code, Hello, Kind, Open, Opened, Welcome

TOKEN = bytes(range(16))


def test_headers_have_the_bytes_of_the_contract() -> None:
    assert frames.client_header(Kind.REQUEST, TOKEN).hex() == "4b5a0105" + "00000000" + TOKEN.hex()
    told = frames.broker_header(Kind.RESPONSE, flags=frames.MORE, mark=0x0102030405060708, subject=9)
    assert told.hex() == "4b5a0106" + "00000001" + "0102030405060708" + "0000000000000009"


def test_bodies_have_the_bytes_of_the_contract() -> None:
    assert Hello(1, -1, "me").encode().hex() == "01" + "ffffffff" + "0002" + "6d65"
    assert Welcome(1, 2, "ipc:///s.0").encode() == b"\x01\0\0\0\x02\0\x0aipc:///s.0\0\0"
    assert Open(2, 65536, "").encode().hex() == "00000002" + "0000000000010000" + "0000"
    assert frames.encode_credit(7, 8).hex() == "0000000000000007" + "0000000000000008"
    assert frames.encode_heartbeat(7).hex() == "0000000000000007"
    assert frames.encode_error(Code.NOT_READY, "no").hex() == "0003" + "0002" + "6e6f"
    opened = Opened(TOKEN, 64, 5, 6, 7, 8, 9, 10).encode()
    assert opened.hex() == TOKEN.hex() + "00000040" + "".join(f"{n:016x}" for n in (5, 6, 7)) + (
        "00000008" + "00000009" + "0000000a"
    )


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (Hello.parse, Hello(1, 3, "client").encode()),
        (Welcome.parse, Welcome(1, 3, "tcp://*:5", "key").encode()),
        (Open.parse, Open(3, 1 << 20, "client").encode()),
        (Opened.parse, Opened(TOKEN, 1, 2, 3, 4, 5, 6, 7).encode()),
        (frames.parse_credit, frames.encode_credit(1, 2)),
        (frames.parse_heartbeat, frames.encode_heartbeat(1)),
        (frames.parse_error, frames.encode_error(Code.REFUSED, "why")),
    ],
)
def test_a_body_is_read_with_bytes_behind_it_and_refused_when_cut_short(
    parse: Callable[[bytes], object], body: bytes
) -> None:
    whole = parse(body)
    assert parse(body + b"later versions") == whole
    for length in range(len(body)):
        with pytest.raises(MalformedFrame):
            parse(body[:length])


@pytest.mark.parametrize(
    "header", [b"", bytes(23), bytes(25), b"GET / HTTP/1.1\r\nHost: a", bytes(24)], ids=len
)
def test_what_is_no_header_is_refused(header: bytes) -> None:
    with pytest.raises(MalformedFrame):
        frames.parse_client_header(header)


@pytest.mark.parametrize("window", [0, frames.WINDOW_LIMIT + 1, 2**64 - 1])
def test_an_open_with_a_window_that_cannot_be_is_refused(window: int) -> None:
    with pytest.raises(MalformedFrame):
        Open.parse(Open(0, window, "").encode())
