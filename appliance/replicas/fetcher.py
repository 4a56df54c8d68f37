"""The replica fetcher: which copies are behind, and a stretch of each in turn.

    due          looked at in this turn, behind those that have waited longer
    later        its leader's files are being renamed (5 ms); it was refused (200 ms, doubling up to 30 s);
                 its rates leave no room (`throttle`)

A turn ends after 20 ms, however much there is to catch up with: then others are heard. What "fetching" is stands in
`follower.py`; nothing goes over a network. Source: `AbstractFetcherThread.java`, whose partitions wait likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from appliance.channels.control_channel import ReplicationRates
from appliance.channels.roles import Role
from appliance.clock import Clock
from appliance.errors import ApplianceError
from appliance.ipc.agent import Timers
from appliance.partition_host.checkpoints import Checkpoints
from appliance.partition_host.listener import PartitionListener
from appliance.replicas.durable_copies import DurableCopies
from appliance.replicas.follower import Follower
from appliance.replicas.leader_lines import LeaderLines
from appliance.replicas.leader_log import ReadBuffer
from appliance.replicas.throttle import FREE, Throttle, Throttled

COPY_BYTES_A_TURN: Final = 1 << 20
COPY_NS_A_TURN: Final = 20_000_000
AGAIN_MS: Final = 5
REFUSED_AGAIN_MS: Final = 200
REFUSED_AGAIN_MAX_MS: Final = 30_000


class Fetcher:
    """The fetching of one replica process; nothing is due before `open`.

    Args:
        listener: Learns of retired segments, and of what keeps a copy from going on; it is tried again.
    """

    __slots__ = (
        "_buffer",
        "_by_row",
        "_checkpoints",
        "_clock",
        "_due",
        "_durable",
        "_lines",
        "_listener",
        "_pauses_ms",
        "_throttle",
        "_throttled_rows",
        "_timers",
    )

    def __init__(
        self,
        timers: Timers,
        clock: Clock,
        *,
        lines: LeaderLines,
        durable: DurableCopies,
        checkpoints: Checkpoints,
        listener: PartitionListener[Follower],
    ) -> None:
        self._timers = timers
        self._clock = clock
        self._lines = lines
        self._durable = durable
        self._checkpoints = checkpoints
        self._listener = listener
        self._by_row: Mapping[int, Follower] = {}
        self._buffer = ReadBuffer()
        self._due: dict[int, Follower] = {}
        self._pauses_ms: dict[int, int] = {}
        self._throttle = Throttle(clock)
        self._throttled_rows: set[int] = set()

    def open(self, by_row: Mapping[int, Follower]) -> None:
        """These, at any time, are what is followed from now on."""
        self._by_row = by_row
        self._durable.open(by_row)

    def go_by(self, rates: ReplicationRates) -> None:
        """From now on no faster than these."""
        self._throttle.go_by(rates)

    def look_at(self, follower: Follower) -> None:
        """There may be something to copy."""
        self._due[follower.row] = follower

    def look_at_all(self, leader: Role | None = None) -> None:
        """As `look_at`, all copies, or all that one worker leads."""
        for follower in self._by_row.values():
            if leader is None or follower.worker is leader:
                self.look_at(follower)

    def turn(self) -> bool:
        """Hears leaders, copies, tells them; whether there may be more."""
        heard = self._lines.hear()
        for peer, row, incarnation in heard:
            follower = self._by_row.get(row)
            if follower is not None and follower.incarnation == incarnation:
                self.look_at(follower)
                self._lines.owe_to(peer, follower)
        more = self._copy()
        for follower in self._durable.turn():
            self._lines.owe(follower)
        self._lines.tell()
        return bool(heard) or more

    def _copy(self) -> bool:
        """One stretch of each partition that is due; whether some have more to do at once."""
        if not self._due:
            return False
        now_ms, monotonic_ns = self._clock.now_ms(), self._clock.monotonic_ns
        until_ns = monotonic_ns() + COPY_NS_A_TURN

        def is_time_up() -> bool:
            return monotonic_ns() >= until_ns

        more = False
        for row, follower in list(self._due.items()):
            if self._by_row.get(row) is not follower:
                del self._due[row]  # let go of since
                continue
            how = FREE if follower.is_in_sync else follower.throttled
            if how is not FREE and self._must_wait(row, follower, how):
                continue
            more |= self._copy_one(row, follower, how, now_ms=now_ms, is_time_up=is_time_up)
            if is_time_up():
                return bool(self._due)
        return more

    def _copy_one(
        self, row: int, follower: Follower, how: Throttled, *, now_ms: int, is_time_up: Callable[[], bool]
    ) -> bool:
        """One stretch; whether it has more to do at once. A throttled copy takes one read at a time."""
        more = False
        budget_bytes, copied = COPY_BYTES_A_TURN if how is FREE else 1, follower.copied_bytes
        end, cuts, start = follower.log.log_end_offset, follower.log.cuts, follower.log.log_start_offset
        try:
            if follower.look(self._buffer, now_ms=now_ms, budget_bytes=budget_bytes, is_time_up=is_time_up):
                del self._due[row]
            elif follower.log.log_end_offset == end:
                self._later(row, follower, AGAIN_MS)
            else:
                more = True
                self._due[row] = self._due.pop(row)  # behind those that wait for their turn
            self._pauses_ms.pop(row, None)
            if follower.trim():
                self._listener.segments_retired()
        except ApplianceError as fault:
            self._refuse(row, follower, fault)
        self._throttle.copied(how, follower.copied_bytes - copied)
        self._buffer.shrink()
        if follower.log.cuts != cuts:
            self._checkpoints.note_cut()
        if follower.log.log_end_offset != end:
            self._checkpoints.note_dirty()
        if follower.log.log_start_offset != start:
            self._checkpoints.note_start_moved()
        self._durable.cover(follower)
        self._lines.owe(follower)
        return more

    def _later(self, row: int, follower: Follower, pause_ms: int) -> None:
        """Looks at a partition again in a while."""
        self._due.pop(row, None)

        def again() -> None:
            if self._by_row.get(row) is follower:
                self._due[row] = follower

        self._timers.after_ms(pause_ms, again)

    def _must_wait(self, row: int, follower: Follower, how: Throttled) -> bool:
        """Whether its rates leave no room: then it is looked at later, once for however many words of its leader."""
        pause_ms = self._throttle.pause_ms(how)
        if pause_ms and row in self._throttled_rows:
            del self._due[row]
        elif pause_ms:
            self._throttled_rows.add(row)
            self._timers.after_ms(pause_ms, lambda: self._throttled_rows.discard(row))
            self._later(row, follower, pause_ms)
        return bool(pause_ms)

    def _refuse(self, row: int, follower: Follower, fault: ApplianceError) -> None:
        """Our disk, or what the leader's file holds: the slot falls behind, leaves the ISR, and tries again."""
        self._listener.refused(follower, fault)
        follower.stop()
        pause_ms = self._pauses_ms.get(row, REFUSED_AGAIN_MS)
        self._pauses_ms[row] = min(2 * pause_ms, REFUSED_AGAIN_MAX_MS)
        self._later(row, follower, pause_ms)

    def statistics(self) -> dict[str, int]:
        """Partitions with something to copy."""
        return {"due": len(self._due)}
