"""`perf latency`: what is on its way is bounded, and records of others do not count."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.cli.connecting import BrokerError
from appliance.cli.perf_latency import IN_FLIGHT_MAX, LOST_S, Flights, in_flight_max


class Taken:
    """What librdkafka gives of a record."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def error(self) -> None:
        return None

    def value(self) -> bytes:
        return self._value

    def latency(self) -> float:
        return 0.002


@pytest.mark.parametrize(
    ("size", "limit"), [(16, IN_FLIGHT_MAX), (1 << 20, 32), (10 << 20, 3), (64 << 20, 1)]
)
def test_records_on_their_way_are_bounded_in_number_and_bytes(size: int, limit: int) -> None:
    assert in_flight_max(size) == limit


def test_next_record_waits_until_one_has_arrived() -> None:
    flights = Flights(2)
    marks = [bytes([number]) * 16 for number in range(2)]
    for mark in marks:
        assert not flights.is_full()
        flights.sends(mark, counts=True)
    assert flights.is_full()
    record: Any = Taken(marks[0] + b"rest")
    flights.takes(record)
    assert flights.is_full(), "it is not acknowledged"
    flights.on_delivery(None, record, counts=True)
    assert not flights.is_full()
    assert (flights.consumed.count, flights.acknowledged.count, flights.is_landed()) == (1, 1, False)


def test_first_records_and_those_of_others_do_not_count() -> None:
    flights = Flights(9)
    flights.sends(b"w" * 16, counts=False)
    for value in (b"w" * 16, b"of somebody else"):
        record: Any = Taken(value)
        flights.takes(record)
    flights.on_delivery(None, record, counts=False)
    assert (flights.consumed.count, flights.acknowledged.count, flights.is_landed()) == (0, 0, True)


def test_record_that_does_not_arrive_is_an_error() -> None:
    flights = Flights(9)
    flights.sends(b"w" * 16, counts=True)
    flights.check()
    flights.moved_s -= LOST_S + 1
    with pytest.raises(BrokerError, match="1 record did not arrive"):
        flights.check()
