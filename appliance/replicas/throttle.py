"""How fast what is not in sync may be copied: the two rates of KIP-73. A reassignment then leaves clients their disk.

    a follower's bytes count            where the topic's configs name it, and it is not in the ISR
    against its own slot's rate         follower.replication.throttled.rate
    and against its leader's            leader.replication.throttled.rate, divided among the other slots: each of them
                                        copies by itself, so together they never take more, and may take less

A copy takes whole reads, so a rate is exceeded by one read and paid back before the next: 100,000 B/s and reads of
1 MiB make one read in ten seconds. A second's worth may be saved up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from appliance.channels.control_channel import ReplicationRates
from appliance.clock import Clock

THROTTLED_FOLLOWERS: Final = "follower.replication.throttled.replicas"
THROTTLED_LEADERS: Final = "leader.replication.throttled.replicas"
PAUSE_MAX_MS: Final = 1_000
_NS_PER_S: Final = 1_000_000_000


class Throttled(msgspec.Struct, frozen=True):
    """By which rates a copy goes while it is not in sync. `leader`: whom it copies from, -1 where that has no say."""

    by_follower: bool = False
    leader: int = -1

    def __bool__(self) -> bool:
        return self.by_follower or self.leader >= 0


FREE: Final = Throttled()


def throttled(configs: Mapping[str, str], partition: int, *, slot: int, leader: int) -> Throttled:
    """What the topic's `configs` say of a copy on `slot`."""
    return (
        Throttled(
            _names(configs.get(THROTTLED_FOLLOWERS), partition, slot),
            leader if _names(configs.get(THROTTLED_LEADERS), partition, leader) else -1,
        )
        or FREE
    )


def _names(text: str | None, partition: int, slot: int) -> bool:
    if not text:
        return False
    return text == "*" or f"{partition}:{slot}" in text.split(",")


class _Bucket:
    """Bytes that may be copied now; below 0 what was copied too early."""

    __slots__ = ("_filled_ns", "_rate", "_room")

    def __init__(self, rate: int, now_ns: int) -> None:
        self._rate = rate
        self._room = float(rate)
        self._filled_ns = now_ns

    def set_rate(self, rate: int, now_ns: int) -> None:
        self.room(now_ns)
        self._rate = rate
        self._room = min(self._room, float(rate))

    def room(self, now_ns: int) -> float:
        """A second's worth at most."""
        self._room = min(self._room + self._rate * (now_ns - self._filled_ns) / _NS_PER_S, float(self._rate))
        self._filled_ns = now_ns
        return self._room

    def take(self, count: int) -> None:
        self._room -= count

    def pause_ms(self) -> int:
        """Until there is room again, as far as is known now."""
        if self._rate <= 0:
            return PAUSE_MAX_MS
        return min(int(-self._room * 1000 / self._rate) + 1, PAUSE_MAX_MS)


class Throttle:
    """The rates of one replica process, and what is left of them. Single-threaded."""

    __slots__ = ("_clock", "_follower", "_leaders")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._follower: _Bucket | None = None
        self._leaders: dict[int, _Bucket] = {}

    def go_by(self, rates: ReplicationRates) -> None:
        """From now on by these."""
        now_ns = self._clock.monotonic_ns()
        self._follower = _changed(self._follower, rates.follower, now_ns)
        leaders: dict[int, _Bucket] = {}
        for leader, rate in rates.leaders.items():
            bucket = _changed(self._leaders.get(leader), rate, now_ns)
            if bucket is not None:
                leaders[leader] = bucket
        self._leaders = leaders

    def pause_ms(self, how: Throttled) -> int:
        """How long such a copy has to wait; 0: it may go on."""
        now_ns = self._clock.monotonic_ns()
        return max((each.pause_ms() for each in self._buckets(how) if each.room(now_ns) <= 0), default=0)

    def copied(self, how: Throttled, count: int) -> None:
        """`count` bytes were."""
        for bucket in self._buckets(how) if how else ():
            bucket.take(count)

    def _buckets(self, how: Throttled) -> list[_Bucket]:
        named = (self._follower if how.by_follower else None, self._leaders.get(how.leader))
        return [bucket for bucket in named if bucket is not None]


def _changed(bucket: _Bucket | None, rate: int | None, now_ns: int) -> _Bucket | None:
    if rate is None:
        return None
    if bucket is None:
        return _Bucket(rate, now_ns)
    bucket.set_rate(rate, now_ns)
    return bucket
