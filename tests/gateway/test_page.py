"""The example messages of docs/zeromq.md are those that the broker writes and reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.gateway.frames import (
    FROM_BROKER,
    FROM_CLIENT,
    MAGIC,
    VERSION,
    Code,
    Hello,
    Kind,
    Open,
    Opened,
    Subscribe,
    Welcome,
    broker_header,
    client_header,
    encode_credit,
    encode_error,
    encode_heartbeat,
)

PAGE = Path(__file__).parents[2] / "docs" / "zeromq.md"
TOKEN = bytes(range(0x10, 0x20))
MARK = 0x51
FROM_THE_BROKER = {Kind.WELCOME, Kind.OPENED, Kind.RESPONSE, Kind.SUBSCRIBED, Kind.ERROR}


def examples() -> dict[str, list[bytes]]:
    """Return name → frames of the messages in the page."""
    block = PAGE.read_text(encoding="utf-8").partition("## Example messages")[2].split("```")[1]
    found: dict[str, list[str]] = {}
    name = ""
    for line in block.strip().splitlines():
        match = re.fullmatch(r"(?P<name>[A-Z]*) +(?P<number>[0-9]  )? *(?P<digits>[0-9a-f ]+)", line)
        assert match is not None, line
        name = match["name"] or name
        frames = found.setdefault(name, [])
        if match["number"]:
            frames.append("")
        frames[-1] += match["digits"]
    return {name: [bytes.fromhex(each) for each in frames] for name, frames in found.items()}


BODIES = {
    Kind.HELLO: Hello(1, -1, "app").encode(),
    Kind.WELCOME: Welcome(1, 0, "ipc:///run/z.0").encode(),
    Kind.OPEN: Open(0, 4 << 20, "app").encode(),
    Kind.OPENED: Opened(TOKEN, 64, 100 << 20, 16 << 20, 16 << 20, 64, 2_000, 10_000).encode(),
    Kind.REQUEST: bytes.fromhex("0012 0000 00000007 0003") + b"app",
    Kind.RESPONSE: bytes.fromhex("00000007 0000 00000001 0012 0000 0004"),
    Kind.CREDIT: encode_credit(MARK, 4 << 20),
    Kind.HEARTBEAT: encode_heartbeat(0),
    Kind.SUBSCRIBE: Subscribe(1, 0, 100, 1, 1 << 20, "orders").encode(),
    Kind.SUBSCRIBED: None,
    Kind.ERROR: encode_error(Code.UNKNOWN_SESSION, "no session"),
    Kind.CLOSE: None,
}


@pytest.mark.parametrize("kind", list(BODIES), ids=lambda kind: kind.name)
def test_an_example_is_what_the_code_says(kind: Kind) -> None:
    head, *body = examples()[kind.name]
    if kind in FROM_THE_BROKER:
        mark = MARK if kind is Kind.RESPONSE else 0
        subject = 1 if kind is Kind.SUBSCRIBED else 0
        assert head == broker_header(kind, mark=mark, subject=subject)
        assert FROM_BROKER.unpack(head)[:3] == (MAGIC, VERSION, kind)
    else:
        assert head == client_header(kind, bytes(16) if kind in (Kind.HELLO, Kind.OPEN) else TOKEN)
        assert FROM_CLIENT.unpack(head)[:3] == (MAGIC, VERSION, kind)
    expected = BODIES[kind]
    assert body == ([] if expected is None else [expected])


def test_the_page_has_no_other_example() -> None:
    assert examples().keys() == {kind.name for kind in BODIES}
