"""Waiting without holding anything up: fetches that need more bytes are handed to the purgatory.

Every watcher is called back exactly once: when its bytes are there, when its time is up, or when the purgatory is
down (then nothing waits: what there is, is answered).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from appliance.channels.purgatory_channel import PurgatoryOp
from appliance.channels.roles import PURGATORY
from appliance.channels.wiring import Attachment

_WATCH = int(PurgatoryOp.WATCH)
_ARM = int(PurgatoryOp.ARM)
_CANCEL = int(PurgatoryOp.CANCEL)


class Watcher(Protocol):
    """Who waits in the purgatory, under the request id it has with the workers."""

    request_id: int

    def woken(self) -> None:
        """The wait is over, for whatever reason."""
        ...


class PurgatoryLine:
    """The rings to and from the purgatory, and who waits there for this process."""

    __slots__ = ("_attachment", "_touched", "_watchers")

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._watchers: dict[int, Watcher] = {}
        self._touched = False

    def wait(
        self, watcher: Watcher, watches: Iterable[tuple[int, int]], *, deadline_ns: int, needed_bytes: int
    ) -> bool:
        """Registers `watcher` on each (row, offset); False when it cannot wait (purgatory down or ring full)."""
        writer = self._attachment.outbound.get(PURGATORY)
        if writer is None:
            return False
        rows = list(watches)
        if writer.free_slots() <= len(rows):
            return False
        identity = watcher.request_id
        for row, offset in rows:
            writer.put(_WATCH, 0, 0, identity, row, 0, offset, 0, 0, 0, 0, 0)
        writer.put(_ARM, 0, 0, identity, 0, len(rows), 0, deadline_ns, needed_bytes, 0, 0, 0)
        self._watchers[identity] = watcher
        self._touched = True
        return True

    def cancel(self, watcher: Watcher) -> None:
        """The connection is gone: nobody is to be woken."""
        if self._watchers.pop(watcher.request_id, None) is None:
            return
        writer = self._attachment.outbound.get(PURGATORY)
        if writer is not None and writer.put(_CANCEL, 0, 0, watcher.request_id, 0, 0, 0, 0, 0, 0, 0, 0):
            self._touched = True  # a full ring loses the courtesy only: its deadline ends it

    def publish(self) -> None:
        """Makes registrations visible and wakes the purgatory if it sleeps."""
        if not self._touched:
            return
        self._touched = False
        writer = self._attachment.outbound.get(PURGATORY)
        if writer is not None:
            writer.publish()
            self._attachment.bells[PURGATORY].ring()

    def take_completions(self) -> bool:
        """Wakes whoever was completed; whether there were any."""
        reader = self._attachment.inbound.get(PURGATORY)
        if reader is None:
            return False
        messages = reader.drain()
        for message in messages:
            watcher = self._watchers.pop(message[3], None)
            if watcher is not None:
                watcher.woken()
        return bool(messages)

    def purgatory_down(self) -> None:
        """Wakes everybody who waited there."""
        watchers, self._watchers = self._watchers, {}
        for watcher in watchers.values():
            watcher.woken()

    def statistics(self) -> dict[str, int]:
        return {"waiting": len(self._watchers)}
