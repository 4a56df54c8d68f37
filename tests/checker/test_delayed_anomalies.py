from __future__ import annotations

import pytest

from tests.checker.anomalies import Anomaly
from tests.checker.delayed_workload import DelayedHistory, came, find, lateness

SENT_MS, DUE_MS = 10_000, 11_000


@pytest.fixture
def history() -> DelayedHistory:
    made = DelayedHistory()
    for value in (b"s0", b"s1"):
        made.sent_ms[value], made.due_ms[value] = SENT_MS, DUE_MS
        made.certain.add(value)
    return made


def kinds(wrong: list[Anomaly]) -> list[str]:
    return [each.kind for each in wrong]


def test_what_came_once_and_in_time_is_no_anomaly(history: DelayedHistory) -> None:
    assert find(history, [(b"s0", DUE_MS), (b"s1", DUE_MS + 50_000)], set_forward_ms=None) == []


def test_what_is_lost_doubled_or_early_is_named(history: DelayedHistory) -> None:
    found = [(b"s0", DUE_MS - 2), (b"s0", DUE_MS - 2), (b"x", 0)]
    assert kinds(find(history, found, set_forward_ms=None)) == ["duplicated", "lost", "phantom", "early"]


def test_while_the_clock_is_set_the_watcher_says_what_is_early(history: DelayedHistory) -> None:
    history.seen_ms |= {b"s0": DUE_MS - 100, b"s1": DUE_MS + 7}
    found = [(b"s0", 5), (b"s1", 5)]  # the times of a clock that was set
    assert kinds(find(history, found, set_forward_ms=[])) == ["early"]
    assert kinds(find(history, found, set_forward_ms=[SENT_MS - 1, DUE_MS + 1])) == ["early"]
    assert find(history, found, set_forward_ms=[SENT_MS + 500]) == []
    assert lateness(history, came(history, found, is_clock_kept=False)).endswith("at most 7 ms")


def test_a_cancelled_record_that_came_is_named(history: DelayedHistory) -> None:
    history.cancelling.add(b"s0")
    history.cancelled.add(b"s0")
    found = [(b"s0", DUE_MS), (b"s1", DUE_MS)]
    assert kinds(find(history, found, set_forward_ms=None)) == ["cancelled"]
    history.seen_ms |= dict(found)
    assert find(history, found, set_forward_ms=[DUE_MS - 1]) == []
