"""Which requests are slow, and what their line says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.clock import ManualClock
from appliance.journal_events import EVENTS
from appliance.protocol.api_versions import ApiKey
from appliance.requests.session import Request, Session
from appliance.requests.slow_requests import OPEN_MAX, SWEEP_EVERY, SlowRequests
from tests.requests.test_traffic import Counting

PRODUCE, FETCH = 0, 1


class Watching(Counting):
    """The counts of a process that logs requests of more than 100 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.slow = SlowRequests(100, self.said.append, self.clock)
        self.traffic.log_slow(self.slow)
        self.session.name_client("billing")

    def serve(self, key: int, *, answer_ms: int, send_ms: int = 0, wait_ms: int = 0) -> None:
        request = self.request(key, 96)
        self.clock.advance(answer_ms)
        if wait_ms:
            self.traffic.waits(request)
            self.clock.advance(wait_ms)
        request.answer = []
        self.traffic.answered(request)
        self.clock.advance(send_ms)
        assert self.session.queue is not None
        self.session.queue.remove(request)
        self.traffic.sent()


@pytest.fixture
def watching() -> Watching:
    return Watching()


def test_slow_request_is_logged_with_its_stages(watching: Watching) -> None:
    watching.serve(PRODUCE, answer_ms=90, send_ms=40)
    (line,) = watching.said
    session = watching.session
    assert line == (
        f"slow request: Produce version 0 of {session} took 130 ms: answer 90 ms, send 40 ms, wait 0 ms; 96 bytes"
    )
    assert "billing" in line


def test_quick_request_is_not_logged(watching: Watching) -> None:
    for _ in range(50):
        watching.serve(PRODUCE, answer_ms=60, send_ms=40)
    assert not watching.said


def test_every_request_is_timed_while_slow_ones_are_logged(watching: Watching) -> None:
    for _ in range(20):
        watching.serve(PRODUCE, answer_ms=101)
    assert len(watching.said) == 20
    watching.traffic.log_slow(None)
    for _ in range(20):
        watching.serve(PRODUCE, answer_ms=101)
    assert len(watching.said) == 20


def test_fetch_that_waits_for_records_is_not_slow(watching: Watching) -> None:
    watching.serve(FETCH, answer_ms=5, wait_ms=500)
    assert not watching.said
    watching.serve(FETCH, answer_ms=5, wait_ms=500, send_ms=200)
    assert "took 205 ms: answer 5 ms, send 200 ms, wait 500 ms" in watching.said[0]


def test_member_that_waits_for_its_group_is_not_slow(watching: Watching) -> None:
    watching.serve(int(ApiKey.JOIN_GROUP), answer_ms=3000)
    watching.serve(int(ApiKey.SYNC_GROUP), answer_ms=3000)
    assert not watching.said
    watching.serve(int(ApiKey.OFFSET_COMMIT), answer_ms=3000)
    assert "OffsetCommit" in watching.said[0]


def test_requests_of_sessions_that_ended_are_forgotten() -> None:
    slow = SlowRequests(1, lambda _: None, ManualClock())
    gone = cast(Session, SimpleNamespace(closed=True))
    for _ in range(OPEN_MAX + 10):
        slow.arrived(Request(gone, cast(Any, None), PRODUCE, 0, 0), 1)
    assert slow.known <= 10


class _Looked:
    """A session that counts how often somebody asks whether it ended."""

    def __init__(self) -> None:
        self.looks = 0

    @property
    def closed(self) -> bool:
        self.looks += 1
        return False


def test_a_request_beyond_the_bound_does_not_look_at_all_others() -> None:
    slow, looked = SlowRequests(1, lambda _: None, ManualClock()), _Looked()
    session = cast(Session, looked)
    for _ in range(OPEN_MAX + 2 * SWEEP_EVERY):
        slow.arrived(Request(session, cast(Any, None), PRODUCE, 0, 0), 1)
    assert slow.known == OPEN_MAX
    assert looked.looks <= 3 * OPEN_MAX


def test_line_has_the_form_of_its_event(watching: Watching) -> None:
    from appliance.journal_events import described
    from tests.process.test_journal import record

    watching.serve(PRODUCE, answer_ms=90, send_ms=40)
    name, values = described(record(watching.said[0]), watching.said[0])
    assert name == "slow-request"
    assert (values["api"], values["total_ms"], values["answer_ms"], values["bytes"]) == (
        "Produce",
        130,
        90,
        96,
    )
    assert any(event.name == name for event in EVENTS)
