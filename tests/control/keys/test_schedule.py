"""When the keys are fetched."""

from __future__ import annotations

from appliance.clock import NS_PER_MS
from appliance.control.keys.schedule import EXPEDITED_PAUSE_MS, RefreshSchedule

HOUR_MS = 3_600_000


def made(now_ms: int = 0) -> RefreshSchedule:
    return RefreshSchedule(
        refresh_ms=HOUR_MS, backoff_ms=100, backoff_max_ms=10_000, now_ns=now_ms * NS_PER_MS
    )


def due_ms(schedule: RefreshSchedule) -> int:
    return schedule.due_ns // NS_PER_MS


def test_the_first_fetch_is_due_at_once_and_then_one_each_interval() -> None:
    schedule = made(5)
    assert due_ms(schedule) == 5
    schedule.began(5 * NS_PER_MS)
    schedule.succeeded(7 * NS_PER_MS)
    assert due_ms(schedule) == HOUR_MS + 7


def test_failures_back_off_to_a_maximum_and_never_give_up() -> None:
    schedule = made()
    pauses = [schedule.failed(0) for _ in range(100)]
    assert pauses[:9] == [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
    assert pauses[-1] == 10_000
    assert schedule.failures == 100
    schedule.succeeded(0)
    assert (schedule.failures, schedule.failed(0)) == (0, 100)


def test_an_unknown_key_has_the_keys_fetched_at_once_but_only_once_in_a_while() -> None:
    schedule = made()
    schedule.began(0)
    schedule.succeeded(0)
    second = 1000 * NS_PER_MS
    schedule.asked(second)
    assert due_ms(schedule) == 1000
    schedule.began(second)
    schedule.succeeded(second)
    for _ in range(1000):
        schedule.asked(2 * second)
    assert due_ms(schedule) == 1000 + EXPEDITED_PAUSE_MS, "it waits, and is not forgotten"
    schedule.asked(50 * second)
    assert due_ms(schedule) == 1000 + EXPEDITED_PAUSE_MS


def test_an_unknown_key_during_a_fetch_has_them_fetched_once_more() -> None:
    schedule = made()
    schedule.began(0)
    schedule.asked(5 * NS_PER_MS)
    schedule.succeeded(10 * NS_PER_MS)
    assert due_ms(schedule) == 10
    schedule.began(10 * NS_PER_MS)
    schedule.asked(11 * NS_PER_MS)
    schedule.failed(12 * NS_PER_MS)
    assert due_ms(schedule) == 112, "the back-off is sooner"
    schedule.began(112 * NS_PER_MS)
    schedule.succeeded(113 * NS_PER_MS)
    # The question from before was a reason of that fetch.
    assert due_ms(schedule) == 113 + HOUR_MS


def test_questions_do_not_shorten_the_back_off_of_a_failing_endpoint_for_long() -> None:
    schedule = made()
    fetches = 0
    for now_ms in range(0, 600_000, 50):
        schedule.asked(now_ms * NS_PER_MS)
        if due_ms(schedule) <= now_ms:
            fetches += 1
            schedule.began(now_ms * NS_PER_MS)
            schedule.failed(now_ms * NS_PER_MS)
    assert fetches <= 8 + 2 * 60
