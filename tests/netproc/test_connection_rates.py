"""Rates of new connections, by a clock that the test moves."""

from __future__ import annotations

import pytest

from appliance.access.client_quotas import IpRates
from appliance.cluster import ClientQuotas, QuotaEntity
from appliance.netproc.connection_rates import ADDRESSES_MAX, PAUSE_MS_MAX, ConnectionRates, Opening

NS_PER_MS = 1_000_000
START_NS = 1_000 * 10**9


def ips(**rates: float) -> IpRates:
    return IpRates(
        [
            ClientQuotas(QuotaEntity(ip="" if ip == "default" else ip), {"connection_creation_rate": rate})
            for ip, rate in rates.items()
        ]
    )


def opened(rates: ConnectionRates, *, seconds: int, listener: str = "L", host: str = "10.0.0.1") -> int:
    """How many connections come through if there is always one that waits, with pauses kept."""
    now_ns, count = START_NS, 0
    while now_ns < START_NS + seconds * 10**9:
        opening = rates.opened(listener, host, now_ns)
        count += not opening.closed_after_ms
        now_ns += NS_PER_MS * max(1, opening.pause_ms)
    return count


def test_without_a_bound_nothing_is_counted() -> None:
    rates = ConnectionRates()
    assert not rates.are_bounded
    rates.set_bounds(5, {}, IpRates(()))
    assert rates.are_bounded


@pytest.mark.parametrize("kind", ["all", "listener", "ip"])
def test_over_a_long_time_the_rate_is_kept(kind: str) -> None:
    rates = ConnectionRates()
    rates.set_bounds(
        20 if kind == "all" else None,
        {"L": 20} if kind == "listener" else {},
        ips(default=20) if kind == "ip" else IpRates(()),
    )
    assert opened(rates, seconds=110) == pytest.approx(20 * 110, rel=0.1)


def test_the_strictest_pause_counts_and_says_whom_it_concerns() -> None:
    rates = ConnectionRates()
    rates.set_bounds(1, {"L": 0.5}, IpRates(()))
    for _ in range(6):
        last = rates.opened("L", "h", START_NS)
    assert last == Opening(pause_ms=PAUSE_MS_MAX)
    for _ in range(5):
        other = rates.opened("M", "h", START_NS)
    assert other == Opening(pause_ms=PAUSE_MS_MAX, of_all=True)


def test_an_address_that_is_closed_does_not_count_and_hurts_no_other() -> None:
    rates = ConnectionRates()
    rates.set_bounds(100, {}, ips(default=1))
    done = [rates.opened("L", "::ffff:10.0.0.1", START_NS) for _ in range(500)]
    assert sum(not each.closed_after_ms for each in done) == 10
    assert done[10].closed_after_ms == 1_000
    assert rates.opened("L", "10.0.0.2", START_NS) == Opening()
    assert rates.opened("L", "10.0.0.1", START_NS + 11 * 10**9) == Opening()


@pytest.mark.parametrize(
    ("quota", "host"),
    [
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "::ffff:10.0.0.1"),
    ],
)
def test_a_quota_counts_however_its_address_is_spelled(quota: str, host: str) -> None:
    rates = ConnectionRates()
    rates.set_bounds(None, {}, ips(**{quota: 1}))
    assert sum(not rates.opened("L", host, START_NS).closed_after_ms for _ in range(50)) == 10


def test_many_addresses_make_nothing_grow() -> None:
    rates = ConnectionRates()
    rates.set_bounds(None, {}, ips(default=1))
    for number in range(3 * ADDRESSES_MAX):
        rates.opened("L", f"h{number}", START_NS)
    assert rates.statistics()["addresses"] <= ADDRESSES_MAX
