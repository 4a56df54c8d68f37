"""Sessions: how many there are, and whose ends when one more comes."""

from __future__ import annotations

from types import SimpleNamespace

from appliance.console.kafka_link import Credentials
from appliance.console.sessions import Session, Sessions


def session(user: str, at: int) -> Session:
    link = SimpleNamespace(close=lambda: None)
    return Session(link, Credentials("PLAIN", user, "x"), now_ns=at)  # type: ignore[arg-type]


def test_a_user_who_logs_in_again_and_again_pushes_out_only_own_sessions() -> None:
    sessions = Sessions(sessions_max=4, idle_ms=1000)
    admin = sessions.add(session("admin", 0))
    tokens = [sessions.add(session("intern", at)) for at in range(50)]
    assert len(sessions) == 4
    assert sessions.find(admin, now_ns=60) is not None
    assert [sessions.find(each, now_ns=60) is not None for each in tokens[-4:]] == [False, True, True, True]


def test_of_equals_the_one_that_was_used_the_longest_time_ago_gives_way() -> None:
    sessions = Sessions(sessions_max=2, idle_ms=1000)
    first, second = sessions.add(session("a", 0)), sessions.add(session("b", 1))
    assert sessions.find(first, now_ns=2) is not None
    sessions.add(session("c", 3))
    assert sessions.find(second, now_ns=4) is None
    assert sessions.find(first, now_ns=4) is not None
