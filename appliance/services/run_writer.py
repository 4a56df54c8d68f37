"""Writes the files of the due indexes of one forwarder: run files, and the tail files that look-ups read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from appliance.clock import NS_PER_MS, Clock
from appliance.services.exact_lane import ExactLane

TAIL_MS: Final = 10_000
AGAIN_MS: Final = 10_000
"""The pause after a file could not be written."""


class RunWriter:
    """Args:
    partition: of the internal topics.
    complain: gets a line for the operator.
    changed: called when a state record must be written. Files that end behind the last one would be made again.
    """

    __slots__ = ("_changed", "_clock", "_complain", "_not_before_ns", "_partition", "_tails_ns")

    def __init__(
        self,
        partition: int,
        *,
        clock: Clock,
        complain: Callable[[str], object],
        changed: Callable[[], None],
    ) -> None:
        self._partition = partition
        self._clock = clock
        self._complain = complain
        self._changed = changed
        self._not_before_ns = 0
        self._tails_ns = 0

    def write(self, lanes: Sequence[ExactLane]) -> None:
        """Write what the indexes have in memory, once it is much; the tail files at most every TAIL_MS."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._not_before_ns:
            return
        wants_tails = now_ns >= self._tails_ns
        if wants_tails:
            self._tails_ns = now_ns + TAIL_MS * NS_PER_MS
        for lane in lanes:
            try:
                if lane.wants_write:
                    lane.write()
                    self._changed()
                elif wants_tails:
                    lane.write_tail()
            except OSError as error:
                self._not_before_ns = now_ns + AGAIN_MS * NS_PER_MS
                self._complain(
                    f"{lane.level}-{self._partition}: the index of what waits could not be written, it stays in "
                    f"memory: {error}"
                )
