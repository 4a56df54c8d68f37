"""How many partitions a client may have created and deleted (KIP-599): a token bucket for each budget in use.

A bucket holds what the rate brings in BURST_S, and may go below zero: a request is never too large, but what follows it
waits longer. Below zero

    strict        a creation or deletion is refused (THROTTLING_QUOTA_EXCEEDED) and takes nothing
    not strict    it is done, takes its tokens, and the client is throttled

until the rate has filled the bucket up to zero. A topic costs as many tokens as it has partitions.

One process decides, so nothing is shared. A controller that takes over begins with full buckets. A bucket that has had
the time to fill up is forgotten.

Source: Kafka's `ControllerMutationQuotaManager.scala` and `TokenBucket.java`, release 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.access.client_quotas import CONTROLLER_MUTATION_RATE, INT32_MAX, QuotaRules
from appliance.channels.control_channel import MutatingClient
from appliance.clock import Clock
from appliance.cluster import ClientQuotas
from appliance.errors import RejectedRequest
from appliance.protocol.errors import ErrorCode

BURST_S: Final = 11
BUCKETS_MAX: Final = 10_000
"""With one more, those that are full are forgotten; if none is, all are. A client chooses its client id."""
_NS_PER_S: Final = 1_000_000_000


class _Bucket:
    __slots__ = ("rate", "seen_ns", "tokens")

    def __init__(self, rate: float, now_ns: int) -> None:
        self.rate = rate
        self.tokens = rate * BURST_S
        self.seen_ns = now_ns

    def refill(self, rate: float, now_ns: int) -> None:
        self.rate = rate
        self.tokens = min(rate * BURST_S, self.tokens + rate * (now_ns - self.seen_ns) / _NS_PER_S)
        self.seen_ns = now_ns

    def delay_ms(self) -> int:
        return min(round(-self.tokens / self.rate * 1_000), INT32_MAX) if self.tokens < 0 else 0

    def is_full(self, now_ns: int) -> bool:
        return self.tokens + self.rate * (now_ns - self.seen_ns) / _NS_PER_S >= self.rate * BURST_S


class MutationBudgets:
    """The buckets of one controller."""

    __slots__ = ("_buckets", "_clock", "_quotas", "_rules")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._quotas: Sequence[ClientQuotas] = ()
        self._rules = QuotaRules(CONTROLLER_MUTATION_RATE, ())
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def spending(self, client: MutatingClient | None, quotas: Sequence[ClientQuotas]) -> Spending:
        """What one request of a client spends, by the quotas of now."""
        if client is None:
            return Spending(None, self._clock, is_strict=False)
        if quotas is not self._quotas:
            self._quotas = quotas
            self._rules = QuotaRules(CONTROLLER_MUTATION_RATE, quotas)
        budget = self._rules.budget(client.user, client.client_id)
        if budget is None:
            return Spending(None, self._clock, is_strict=False)
        now_ns = self._clock.monotonic_ns()
        key = (budget.user, budget.client_id)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._forget(now_ns)
            bucket = self._buckets[key] = _Bucket(budget.bound, now_ns)
        bucket.refill(budget.bound, now_ns)
        return Spending(bucket, self._clock, is_strict=client.is_strict)

    def _forget(self, now_ns: int) -> None:
        left = {key: bucket for key, bucket in self._buckets.items() if not bucket.is_full(now_ns)}
        self._buckets = left if len(left) < BUCKETS_MAX else {}

    def statistics(self) -> dict[str, int]:
        """How many buckets there are."""
        return {"buckets": len(self._buckets)}


class Spending:
    """What one request spends. `throttle_ms`: for how long its client is throttled."""

    __slots__ = ("_bucket", "_clock", "_is_strict", "throttle_ms")

    def __init__(self, bucket: _Bucket | None, clock: Clock, *, is_strict: bool) -> None:
        self._bucket = bucket
        self._clock = clock
        self._is_strict = is_strict
        self.throttle_ms = 0

    def spend(self, partitions: int) -> None:
        """Take the tokens of one creation or deletion.

        Raises:
            RejectedRequest: THROTTLING_QUOTA_EXCEEDED; it must not take place.
        """
        bucket = self._bucket
        if bucket is None:
            return
        bucket.refill(bucket.rate, self._clock.monotonic_ns())
        if self._is_strict and (delay_ms := bucket.delay_ms()):
            self.throttle_ms = delay_ms
            raise RejectedRequest(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                "The throttling quota has been exceeded.",
            )
        bucket.tokens -= partitions
        if not self._is_strict:
            self.throttle_ms = bucket.delay_ms()
