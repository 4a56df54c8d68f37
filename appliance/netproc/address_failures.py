"""How often authentications from an address have failed lately, and how long the next failure waits for its answer.

    failure             1 … FREE_FAILURES    the next ones
    is answered after   delay                2 × delay, 4 × delay, …, at most DELAY_MAX_MS

A success waits for nothing. The failures of an address cost the other addresses nothing. An address is forgotten
FORGET_NS after its last failure, and so is the one that failed longest ago when the table is full. An IPv6 host usually
has a network of 64 bits to itself, so that is counted as one address.
"""

from __future__ import annotations

import ipaddress
from typing import Final

FREE_FAILURES: Final = 10
DELAY_MAX_MS: Final = 5_000
FORGET_NS: Final = 60_000_000_000
ADDRESSES_MAX: Final = 10_000
_NETWORK_BITS: Final = 64


class AddressFailures:
    """The table of one network process.

    Args:
        delay_ms: `connection.failed.authentication.delay.ms`.
    """

    __slots__ = ("_delay_ms", "_failures")

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        # The address that failed last is the last one.
        self._failures: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, host: str, now_ns: int) -> int:
        """Count a failure; return how long its answer waits, in milliseconds."""
        key = _network_of(host)
        count, last_ns = self._failures.pop(key, (0, now_ns))
        if now_ns - last_ns > FORGET_NS:
            count = 0
        self._failures[key] = (count + 1, now_ns)
        if len(self._failures) > ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        doublings = min(max(count + 1 - FREE_FAILURES, 0), DELAY_MAX_MS.bit_length())
        return max(min(self._delay_ms << doublings, DELAY_MAX_MS), self._delay_ms)


def _network_of(host: str) -> str:
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _NETWORK_BITS), strict=False))
