"""Two processes, a million messages: every one arrives once, whole and in order."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from struct import Struct
from zlib import crc32

import pytest

from appliance.ipc.agent import DutyCycle
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.process_table import ProcessTable, process_table_size_bytes
from appliance.ipc.ring import RingReader, RingWriter, ring_size_bytes

from .conftest import Fork, MakeRegion

MESSAGE = Struct("<QQQQQQQQ")
_NUMBER = Struct("<Q")


def fields(number: int) -> tuple[int, ...]:
    check = crc32(_NUMBER.pack(number))
    return (number, check, number ^ check, ~number & 0xFFFF_FFFF, 0, number, check, number)


class Side:
    """A process with a row, a doorbell and a duty cycle, made after the fork."""

    def __init__(self, table: ProcessTable, bells: list[int], me: int) -> None:
        self.bells = [Doorbell(bell, table.row(index).sleeping_cell) for index, bell in enumerate(bells)]
        self.cycle = DutyCycle(self.bells[me], table.row(me), monotonic_ns=time.monotonic_ns)


@pytest.fixture
def side(make_region: MakeRegion) -> Callable[[int], Side]:
    table = ProcessTable(make_region(process_table_size_bytes(2)).view)
    bells = [Doorbell.create_eventfd(), Doorbell.create_eventfd()]
    return lambda me: Side(table, bells, me)


def test_a_million_messages_arrive_in_order_through_blocking_and_draining(
    make_region: MakeRegion, fork: Fork, side: Callable[[int], Side]
) -> None:
    messages, slots = 1_000_000, 512
    view = make_region(ring_size_bytes(slots)).view

    def write() -> None:
        here, writer, dice = side(0), RingWriter(view, MESSAGE), random.Random(1)
        number = 0
        while number < messages:
            burst_end = min(messages, number + dice.choice((1, 2, 7, 64, 400)))
            while number < burst_end and writer.put(*fields(number)):
                number += 1
            writer.publish()
            here.bells[1].ring()
            if number < burst_end:
                os.sched_yield()

    child = fork(write)
    there, reader, dice = side(1), RingReader(view, MESSAGE), random.Random(2)
    there.cycle.add_inbox(reader)
    expected = 0
    while expected < messages:
        there.cycle.wait()
        for message in reader.drain(dice.choice((1, 16, 256))):
            assert message == fields(expected)
            expected += 1
    assert child.join() == 0
    assert reader.is_empty()
    assert reader.statistics().published == reader.statistics().taken == messages


def ping_pong(
    round_trips: int, make_region: MakeRegion, fork: Fork, side: Callable[[int], Side], *, restless: bool
) -> None:
    """Each message is sent only when the one before has come back, so one lost wake-up stops everything."""
    there, back = make_region(ring_size_bytes(2)).view, make_region(ring_size_bytes(2)).view

    def play(me: int, out: memoryview, inward: memoryview) -> None:
        here, writer, reader = side(me), RingWriter(out, MESSAGE), RingReader(inward, MESSAGE)
        here.cycle.add_inbox(reader)
        lost: list[int] = []
        dice = random.Random(me)
        for number in range(round_trips):
            if me == 0:
                writer.put(*fields(number))
                writer.publish()
                here.bells[1].ring()
            alarm = here.cycle.timers.add(time.monotonic_ns() + 30_000_000_000, lambda: lost.append(1))
            while not (messages := reader.drain()):
                here.cycle.wait()
                assert not lost, f"wake-up {number} was lost"
            alarm.cancel()
            assert messages == [fields(number)]
            if restless and dice.random() < 0.3:
                # Moves the moment of announcing across the moment of ringing.
                for _ in range(dice.randrange(60)):
                    pass
            if me == 1:
                writer.put(*fields(number))
                writer.publish()
                here.bells[0].ring()

    child = fork(lambda: play(1, back, there))
    play(0, there, back)
    assert child.join() == 0


def test_no_wake_up_is_lost_in_many_ping_pongs(
    make_region: MakeRegion, fork: Fork, side: Callable[[int], Side]
) -> None:
    ping_pong(30_000, make_region, fork, side, restless=True)


@pytest.mark.slow
def test_no_wake_up_is_lost_in_200_000_ping_pongs(
    make_region: MakeRegion, fork: Fork, side: Callable[[int], Side]
) -> None:
    ping_pong(200_000, make_region, fork, side, restless=True)
