"""Waiting without holding anything up: fetches that need more bytes are handed to the purgatory.

Every watcher is called back exactly once: when its bytes are there, when its time is up, or when the purgatory is
down (then nothing waits: what there is, is answered).

A registration that the ring has no room for, as of a consumer of more partitions than the ring has slots, is put
there bit by bit. One that is cancelled meanwhile lets go of its rows at once, so what waits here is bounded by the
fetches that wait: each holds more than its registration.

All waiting fetches together watch at most `network.waiting.fetch.partitions.max` partitions, because each of these
holds half a kilobyte here and in the purgatory. Beyond that the fetch that has waited the longest among those of many
partitions is answered with what there is, as if its time were up; its client asks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from appliance.channels.purgatory_channel import COMPLETED_ID, OP, REASON, CompletionReason, PurgatoryOp
from appliance.channels.roles import PURGATORY
from appliance.channels.wiring import Attachment
from appliance.delayed.held_answers import Deadlines
from appliance.ipc.agent import Alarm
from appliance.ipc.ring import RingWriter

_WATCH: Final = int(PurgatoryOp.WATCH)
_ARM: Final = int(PurgatoryOp.ARM)
_CANCEL: Final = int(PurgatoryOp.CANCEL)
_HOLD: Final = int(PurgatoryOp.HOLD)
_RELEASE: Final = int(PurgatoryOp.RELEASE)
_OVER: Final = int(PurgatoryOp.OVER)
_EXPIRED: Final = int(CompletionReason.EXPIRED)


WIDE_PARTITIONS: Final = 64
"""A fetch of so many partitions makes room before those of fewer."""


class Watcher(Protocol):
    """Who waits in the purgatory, under the request id it has with the workers.

    `watched` is the line's: of how many partitions, while it waits.
    """

    request_id: int
    watched: int

    def hurried(self) -> None:
        """The wait is over; answer with what there is and do not wait again."""
        ...

    def woken(self) -> None:
        """The wait is over, for whatever reason."""
        ...


class _Registration:
    """What is still to be put on the ring for one wait: its rows from `at` on and then `arm`, or its end."""

    __slots__ = ("arm", "at", "identity", "is_cancelled", "rows")

    def __init__(self, identity: int, rows: list[tuple[int, int, bool]], arm: tuple[int, ...]) -> None:
        self.identity = identity
        self.rows = rows
        self.arm = arm
        self.at = 0
        self.is_cancelled = False

    def cancel(self) -> None:
        """The purgatory is to forget what it has heard of it; where that is nothing, nothing is to be put."""
        self.is_cancelled = True
        self.rows = []

    def put(self, writer: RingWriter) -> bool:
        """Puts what there is room for; whether that was all."""
        if self.is_cancelled:
            return not self.at or writer.put(_CANCEL, 0, 0, self.identity, 0, 0, 0, 0, 0, 0, 0, 0)
        rows, identity = self.rows, self.identity
        while self.at < len(rows):
            row, offset, within = rows[self.at]
            if not writer.put(_WATCH, within, 0, identity, row, 0, offset, 0, 0, 0, 0, 0):
                return False
            self.at += 1
        return writer.put(*self.arm)


class PurgatoryLine:
    """The rings to and from the purgatory, and who waits there for this process."""

    __slots__ = (
        "_attachment",
        "_partitions_max",
        "_stopping",
        "_touched",
        "_unplaced",
        "_unplaced_by_id",
        "_watchers",
        "_wide",
        "deadlines",
        "hurried",
        "partitions",
    )

    def __init__(self, attachment: Attachment, *, partitions_max: int) -> None:
        self._attachment = attachment
        self._partitions_max = partitions_max
        self._wide: dict[int, None] = {}
        self.partitions = 0
        """Of all fetches that wait here."""
        self.hurried = 0
        """Fetches that were answered early, since the start."""
        self._watchers: dict[int, Watcher] = {}
        self._unplaced: deque[_Registration] = deque()
        self._unplaced_by_id: dict[int, _Registration] = {}
        self._stopping = False
        self._touched = False
        # Who holds answers looks often, so nobody needs to be woken for it.
        self.deadlines = Deadlines(self, Alarm())

    @property
    def congested(self) -> bool:
        """Whether a registration is not whole yet: sleep for a short time only."""
        return bool(self._unplaced)

    def wait(
        self,
        watcher: Watcher,
        watches: Iterable[tuple[int, int, bool]],
        *,
        deadline_ns: int,
        needed_bytes: int,
    ) -> bool:
        """Registers `watcher` on each row, rows unlike.

        False when the purgatory is down, when we stop, and when it watches more partitions than may be watched at all.

        Args:
            watches: (row, offset, within), as in `channels.purgatory_channel`.
        """
        writer = self._attachment.outbound.get(PURGATORY)
        if writer is None or self._stopping:
            return False
        rows = list(watches)
        identity = watcher.request_id
        if self.partitions + len(rows) > self._partitions_max and not self._make_room(len(rows)):
            return False
        arm = (_ARM, 0, 0, identity, 0, len(rows), 0, deadline_ns, needed_bytes, 0, 0, 0)
        if not self._unplaced and writer.free_slots() > len(rows):
            for row, offset, within in rows:
                writer.put(_WATCH, within, 0, identity, row, 0, offset, 0, 0, 0, 0, 0)
            writer.put(*arm)
        else:
            registration = _Registration(identity, rows, arm)
            self._unplaced.append(registration)
            self._unplaced_by_id[identity] = registration
        self._watchers[identity] = watcher
        watcher.watched = len(rows)
        self.partitions += len(rows)
        if len(rows) >= WIDE_PARTITIONS:
            self._wide[identity] = None
        self._touched = True
        return True

    def _make_room(self, partitions: int) -> bool:
        """Answers fetches early until there is room for a wait on so many partitions; False: there never will be."""
        if partitions > self._partitions_max:
            self.hurried += 1
            return False
        while self.partitions + partitions > self._partitions_max:
            identity = next(iter(self._wide or self._watchers))
            watcher = self._watchers[identity]
            self.cancel(watcher)
            self.hurried += 1
            watcher.hurried()
        return True

    def _leave(self, identity: int) -> Watcher | None:
        """The watcher of that id waits no longer; None where it did not."""
        watcher = self._watchers.pop(identity, None)
        if watcher is not None:
            self.partitions -= watcher.watched
            if self._wide:
                self._wide.pop(identity, None)
        return watcher

    def cancel(self, watcher: Watcher) -> None:
        """Nobody is to be woken: the connection is gone, or the wait ends early."""
        if self._leave(watcher.request_id) is None:
            return
        identity = watcher.request_id
        registration = self._unplaced_by_id.get(identity)
        if registration is not None:
            registration.cancel()
            return
        writer = self._attachment.outbound.get(PURGATORY)
        if writer is None:
            return
        self._touched = True
        if not writer.put(_CANCEL, 0, 0, identity, 0, 0, 0, 0, 0, 0, 0, 0):
            # Not lost: it would stay there until its deadline, which is the client's to choose.
            registration = _Registration(identity, [], ())
            registration.at = 1
            registration.cancel()
            self._unplaced.append(registration)

    def publish(self) -> None:
        """Makes registrations visible and wakes the purgatory if it sleeps."""
        if not self._touched:
            return
        writer = self._attachment.outbound.get(PURGATORY)
        unplaced = self._unplaced
        while unplaced and writer is not None and unplaced[0].put(writer):
            self._unplaced_by_id.pop(unplaced.popleft().identity, None)
        self._touched = bool(unplaced)
        if writer is not None:
            writer.publish()
            self._attachment.bells[PURGATORY].ring()

    def take_completions(self) -> bool:
        """Wakes whoever was completed; whether there were any."""
        reader = self._attachment.inbound.get(PURGATORY)
        if reader is None:
            return False
        messages = reader.drain()
        over: list[tuple[int, bool]] = []
        for message in messages:
            if message[OP] == _OVER:
                over.append((message[COMPLETED_ID], message[REASON] == _EXPIRED))
                continue
            watcher = self._leave(message[COMPLETED_ID])
            if watcher is not None:
                watcher.woken()
        if over:
            self.deadlines.over(over)
        return bool(messages)

    # Registrar, for answers that this process holds

    def register(self, identity: int, due_ns: int) -> bool:
        """See `Registrar`."""
        writer = self._attachment.outbound.get(PURGATORY)
        if writer is None or self._unplaced or self._stopping:
            return False
        self._touched = True
        return writer.put(_HOLD, 0, 0, identity, 0, 0, 0, due_ns, 0, 0, 0, 0)

    def release(self, identity: int) -> None:
        """See `Registrar`."""
        writer = self._attachment.outbound.get(PURGATORY)
        if writer is not None:
            writer.put(_RELEASE, 0, 0, identity, 0, 0, 0, 0, 0, 0, 0, 0)
            self._touched = True

    def stop(self) -> None:
        """This process stops: nobody waits any more."""
        self._stopping = True
        self.purgatory_down()

    def purgatory_down(self) -> None:
        """Wakes everybody who waited there."""
        self._unplaced.clear()
        self._unplaced_by_id.clear()
        watchers, self._watchers = self._watchers, {}
        self._wide.clear()
        self.partitions = 0
        self.deadlines.purgatory_down()
        for watcher in watchers.values():
            watcher.woken()

    def statistics(self) -> dict[str, int]:
        return {
            "waiting": len(self._watchers),
            "partitions": self.partitions,
            "hurried": self.hurried,
            "unplaced": len(self._unplaced),
        }
