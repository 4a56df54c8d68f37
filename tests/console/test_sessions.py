"""Sessions: who is let in, for how long, and how many."""

from __future__ import annotations

from appliance.clock import NS_PER_MS
from appliance.console.kafka_link import Credentials, Link
from appliance.console.sessions import LIFE_MS, NOTICES_MAX, Session, Sessions

IDLE_MS = 1000


class RecordingLink(Link):
    """A link without an address, which remembers that it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def session(now_ns: int = 0) -> Session:
    return Session(RecordingLink(), None, now_ns=now_ns)


def is_closed(each: Session) -> bool:
    assert isinstance(each.link, RecordingLink)
    return each.link.is_closed


def test_a_token_finds_its_session_and_no_other_one_does() -> None:
    sessions = Sessions(sessions_max=3, idle_ms=IDLE_MS)
    one = session()
    token = sessions.add(one)
    assert sessions.find(token, now_ns=1) is one
    assert sessions.find(token[:-1], now_ns=1) is None
    assert sessions.find("", now_ns=1) is None
    assert sessions.find("\udcff", now_ns=1) is None
    assert len(token) >= 43


def test_a_session_ends_when_nobody_uses_it() -> None:
    sessions = Sessions(sessions_max=3, idle_ms=IDLE_MS)
    one = session()
    token = sessions.add(one)
    assert sessions.find(token, now_ns=(IDLE_MS - 1) * NS_PER_MS) is one
    assert sessions.find(token, now_ns=(2 * IDLE_MS - 2) * NS_PER_MS) is one
    assert sessions.find(token, now_ns=(3 * IDLE_MS - 1) * NS_PER_MS) is None
    sessions.expire(3 * IDLE_MS * NS_PER_MS)
    assert len(sessions) == 0
    assert is_closed(one)


def test_a_session_in_use_ends_after_its_life() -> None:
    sessions = Sessions(sessions_max=1, idle_ms=2 * LIFE_MS)
    token = sessions.add(session())
    assert sessions.find(token, now_ns=(LIFE_MS - 1) * NS_PER_MS) is not None
    assert sessions.find(token, now_ns=LIFE_MS * NS_PER_MS) is None


def test_one_more_ends_the_session_that_was_used_the_longest_time_ago() -> None:
    sessions = Sessions(sessions_max=2, idle_ms=IDLE_MS)
    first, second = session(), session()
    of_first, of_second = sessions.add(first), sessions.add(second)
    assert sessions.find(of_first, now_ns=1) is first
    sessions.add(session())
    assert sessions.find(of_second, now_ns=2) is None
    assert is_closed(second)
    assert sessions.find(of_first, now_ns=2) is first
    assert len(sessions) == 2


def test_a_logout_closes_the_connections() -> None:
    sessions = Sessions(sessions_max=2, idle_ms=IDLE_MS)
    one = session()
    token = sessions.add(one)
    assert sessions.is_open(one, now_ns=1)
    sessions.end(token)
    sessions.end(token)
    assert is_closed(one)
    assert not sessions.is_open(one, now_ns=1)
    assert sessions.find(token, now_ns=1) is None


def test_forms_of_one_session_are_not_those_of_another() -> None:
    one, other = session(), session()
    assert one.is_right(one.csrf)
    assert not one.is_right(other.csrf)
    assert not one.is_right("")
    assert not one.is_right("\udcff")


def test_notices_are_shown_once_and_do_not_pile_up() -> None:
    one = session()
    for number in range(NOTICES_MAX + 5):
        one.notify("done", str(number))
    assert [text for _, text in one.take_notices()] == [str(each) for each in range(5, NOTICES_MAX + 5)]
    assert one.take_notices() == []


def test_no_text_of_credentials_has_the_password() -> None:
    credentials = Credentials("PLAIN", "alice", "secret")
    assert "secret" not in f"{credentials!r} {credentials}"
