"""Keeps records of several exact levels in due order while some of them are loaded from their logs.

    exact_1m   in the buffer: due at 10, 20, 30     not loaded: from 30 on     ┐ a round delivers up to 30,
    exact_1h   in the buffer: due at 15, 40, 90     not loaded: from 90 on     ┘ and the next one after the load

Without this, 40 would come before what is due at 35 on the other level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.clock import NS_PER_MS, Clock
from appliance.services.exact_lane import ExactLane
from appliance.services.lane_reader import LaneReader

WAIT_MS: Final = 2_000
"""A level that cannot load, for example because its log is damaged, holds up the others for so long."""


class DueOrder:
    """The order of one forwarder's exact levels. A level that nobody serves holds up nothing."""

    __slots__ = ("_clock", "_reader", "_since_ns")

    def __init__(self, reader: LaneReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._since_ns: int | None = None

    def complete_to_ms(self, lanes: Sequence[ExactLane], now_ms: int) -> int:
        """Return up to when a round may deliver: now at most, by the clock as it is set now."""
        complete_ms = min(map(self._reader.complete_to_ms, lanes), default=now_ms)
        if complete_ms >= now_ms:
            self._since_ns = None
            return now_ms
        now_ns = self._clock.monotonic_ns()
        if self._since_ns is None:
            self._since_ns = now_ns
        return complete_ms if now_ns - self._since_ns < WAIT_MS * NS_PER_MS else now_ms
