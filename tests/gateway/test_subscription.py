"""A Fetch that brings nothing is followed by the next one, the later the more often it came back at once."""

from __future__ import annotations

from appliance.gateway.subscription import FETCH_AGAIN_MS, again_ms

AT_ONCE_NS = 1_000_000
MINUTE_NS = 60_000_000_000


def test_subscriptions_that_end_one_anothers_waits_do_so_less_and_less() -> None:
    delays = [FETCH_AGAIN_MS]
    while len(delays) < 12:
        delays.append(again_ms(delays[-1], AT_ONCE_NS))
    assert delays[:4] == [10, 20, 40, 80]
    assert delays == sorted(delays)
    assert max(delays) < 1_000


def test_one_that_has_waited_is_followed_by_the_next_soon() -> None:
    assert again_ms(640, MINUTE_NS) == FETCH_AGAIN_MS
