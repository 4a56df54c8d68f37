"""What records and names hold cannot control the terminal of the person who reads them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.cli.command import appliance, environment
from tests.support.broker import Appliance

HOSTILE: Final = b"\x1b]0;owned\x07\x1b[2Jtab\there\xff"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    started = Appliance(tmp_path_factory.mktemp("terminal") / "data")
    started.start()
    producer = Producer({"bootstrap.servers": started.address})
    producer.produce("hostile", HOSTILE, key=b"k\x9b31m", headers=[("h\x1b[31m", b"\x1b[0m")])
    assert producer.flush(30) == 0
    yield started
    started.stop()


def on_a_terminal(*arguments: object) -> bytes:
    """Return what a command writes to a terminal."""
    here, there = pty.openpty()
    try:
        command = [sys.executable, "-m", "appliance", *map(str, arguments)]
        subprocess.run(command, stdout=there, stderr=there, env=environment(None), timeout=60, check=False)
        os.close(there)
        said = b""
        while True:
            try:
                found = os.read(here, 65536)
            except OSError:  # the terminal has gone
                return said
            if not found:
                return said
            said += found
    finally:
        os.close(here)


@pytest.mark.parametrize("more", [(), ("--print", "key,value,headers"), ("--format", "%k %v %h\\n")])
def test_consume_shows_escapes_on_a_terminal(broker: Appliance, more: tuple[str, ...]) -> None:
    said = on_a_terminal("consume", "hostile", *more, "-b", broker.address)
    assert b"\\x1b]0;owned\\x07\\x1b[2Jtab\there\\xff" in said
    assert not {0x1B, 0x07, 0x9B} & set(said)


def test_consume_writes_the_bytes_where_they_are_asked_for(broker: Appliance, tmp_path: Path) -> None:
    assert HOSTILE in on_a_terminal("consume", "hostile", "--encoding", "raw", "-b", broker.address)
    assert appliance("consume", "hostile", "-b", broker.address).succeeded().output == HOSTILE + b"\n"


def test_an_error_shows_escapes(broker: Appliance) -> None:
    said = on_a_terminal("topics", "describe", "no\x1b[2Jtopic", "-b", broker.address)
    assert b"\\x1b[2J" in said
    assert b"\x1b" not in said
