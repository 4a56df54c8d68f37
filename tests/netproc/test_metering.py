"""Whom quotas mute, and for how long: on real shared memory, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.clock import NS_PER_MS, ManualClock
from appliance.cluster import ClientQuotas, QuotaEntity
from appliance.ipc.agent import Timers
from appliance.netproc.metering import TIMER_MS, Metering
from appliance.protocol.api_versions import ApiKey
from appliance.requests.session import Session
from tests.requests.serving import Serving, serving

RATE = 1_000.0
QUOTAS = (ClientQuotas(QuotaEntity(user="ANONYMOUS"), {"producer_byte_rate": RATE}),)


class Bench:
    """A metering, and the sessions that it has muted and let go on."""

    def __init__(self, made: Serving) -> None:
        self.clock = ManualClock(monotonic_ns=50 * 10**9)
        self.timers = Timers(self.clock.monotonic_ns)
        self.muted: list[Session] = []
        self.resumed: list[Session] = []
        self.metering = Metering(
            made.attachment,
            timers=self.timers,
            clock=self.clock,
            mute=self.muted.append,
            resume=self.resumed.append,
        )
        self.metering.set_quotas(QUOTAS)

    def produce(self, session: Session, size_bytes: int) -> None:
        self.metering.meter.arrived(session, int(ApiKey.PRODUCE), size_bytes)

    def advance(self, duration_ms: int) -> None:
        """Runs the timers of each moment."""
        until_ns = self.clock.monotonic_ns() + duration_ms * NS_PER_MS
        while (due_ns := self.timers.next_due_ns()) is not None and due_ns <= until_ns:
            self.clock.advance(max(0, -(-(due_ns - self.clock.monotonic_ns()) // NS_PER_MS)))
            self.timers.run_due(self.clock.monotonic_ns())
        self.clock.advance((until_ns - self.clock.monotonic_ns()) // NS_PER_MS)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with serving(tmp_path) as made:
        yield Bench(made)


def test_a_session_goes_on_when_the_budget_has_room_again_and_not_before(bench: Bench) -> None:
    first, second = Serving.session(1), Serving.session(2)
    bench.produce(first, 12_000)
    assert bench.muted == [first]
    bench.advance(1_990)
    assert not bench.resumed
    bench.produce(second, 3_000)  # the two share the budget
    assert bench.muted == [first, second]
    bench.advance(4_000)
    assert not bench.resumed
    bench.advance(8_000)
    assert set(bench.resumed) == {first, second}
    assert [each.throttled_until_ns for each in (first, second)] == [0, 0]


def test_a_session_is_muted_once_however_often_it_is_throttled(bench: Bench) -> None:
    session = Serving.session()
    for _ in range(5):
        bench.produce(session, 11_000)
    assert bench.muted == [session]
    assert bench.metering.statistics()["muted"] == 1


def test_a_session_that_ends_leaves_nothing_behind_for_longer_than_a_timer(bench: Bench) -> None:
    for number in range(100):
        session = Serving.session(number)
        bench.produce(session, 10**9)
        bench.metering.ended(session)
    assert bench.metering.statistics()["muted"] == 0
    bench.advance(TIMER_MS)
    assert bench.timers.next_due_ns() is None
    assert not bench.resumed


def test_a_closed_session_is_not_let_go_on(bench: Bench) -> None:
    session = Serving.session()
    bench.produce(session, 11_000)
    session.closed = True
    bench.advance(20_000)
    assert not bench.resumed
