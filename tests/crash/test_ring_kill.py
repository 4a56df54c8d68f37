"""kill -9 of either end of a ring, at any instant, under traffic: what the other end finds is whole."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from struct import Struct
from zlib import crc32

import pytest

from appliance.ipc.ring import RingReader, RingWriter, ring_size_bytes
from appliance.ipc.shared_memory import Region
from tests.support.private_directory import private_directory

MESSAGE = Struct("<QQQQQQQQ")
_NUMBER = Struct("<Q")


def fields(number: int) -> tuple[int, ...]:
    check = crc32(_NUMBER.pack(number))
    return (number, check, number ^ check, number, check, 0, 0, number)


@pytest.fixture
def view() -> Iterator[memoryview]:
    with private_directory() as memory:
        region = Region.create(f"{memory}/ring", ring_size_bytes(64))
    yield region.view
    region.close()


def wait_killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_messages_of_a_killed_writer_arrive_whole_and_its_successor_goes_on(view: memoryview) -> None:
    dice = random.Random(11)
    reader, expected = RingReader(view, MESSAGE), 0
    for _ in range(25):
        pid = os.fork()
        if pid == 0:
            writer = RingWriter(view, MESSAGE)
            number = writer.statistics().published
            while True:
                while writer.put(*fields(number)):
                    number += 1
                    if number % 3 == 0:
                        writer.publish()
                writer.publish()
        deadline = time.monotonic() + dice.random() * 0.02
        goal = expected + 100
        while time.monotonic() < deadline or expected < goal:
            for message in reader.drain(7):
                assert message == fields(expected)
                expected += 1
        wait_killed(pid)
        for message in reader.drain(64):
            assert message == fields(expected)
            expected += 1
        assert reader.is_empty()
        reader.check()
        assert reader.statistics().published == expected


def test_a_writer_killed_between_put_and_publish_shows_nothing(view: memoryview) -> None:
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        writer = RingWriter(view, MESSAGE)
        for number in range(5):
            writer.put(*fields(number))
        writer.publish()
        for number in range(5, 40):
            writer.put(*fields(number))
        os.write(told, b"x")
        signal.pause()
    os.read(ready, 1)
    wait_killed(pid)
    os.close(ready)
    os.close(told)
    reader = RingReader(view, MESSAGE)
    assert reader.drain() == [fields(number) for number in range(5)]
    assert reader.drain() == []
    writer = RingWriter(view, MESSAGE)
    assert writer.free_slots() == 64
    writer.put(*fields(100))
    writer.publish()
    assert reader.drain() == [fields(100)]


def test_a_killed_reader_loses_nothing_that_it_had_not_freed(view: memoryview) -> None:
    """Its successor gets every message after the last head that it published: none is skipped."""
    dice = random.Random(12)
    writer, number = RingWriter(view, MESSAGE), 0
    for _ in range(25):
        before = writer.statistics().taken
        pid = os.fork()
        if pid == 0:
            reader = RingReader(view, MESSAGE)
            expected = reader.statistics().taken
            while True:
                for message in reader.drain(5):
                    if message != fields(expected):
                        os._exit(1)
                    expected += 1
        deadline = time.monotonic() + dice.random() * 0.02
        while time.monotonic() < deadline or writer.statistics().taken < before + 100:
            while writer.put(*fields(number)):
                number += 1
            writer.publish()
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the reader met a wrong message"
        wait_killed(pid)
        writer.check()
        assert writer.statistics().published == number
    reader = RingReader(view, MESSAGE)
    first = reader.statistics().taken
    assert reader.drain(64) == [fields(n) for n in range(first, number)]
