"""What was cancelled in one partition of the internal topics, and may still wait there.

    __delayed_cancels   ... position ── group ── group ── open group ── read to
                            └ below: nothing that was cancelled waits any more

A cancellation names an id, and the offset that the Produce answer named for itself. It counts for the records of the
same partition with this id and a lower offset. Every record that waits is read once in the delay of the largest level,
because longer delays take steps. So a cancellation is needed until each level was delivered up to where it ended when
the cancellation came. An exact level, on which a record can wait for a month, counts only if its index has one of the
cancelled ids:

    close    no delivery is open, so all that waits is on a level: note where each level ends
    expire   each level was delivered up to there, and KEPT_MS are over: forget the group

Producers need not wait for the answer to a record before they cancel it. Another network process can store the record
later than the cancellation, therefore KEPT_MS. This file does no I/O and reads no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from appliance.clock import NS_PER_MS
from appliance.delivery.stored import Stored
from appliance.delivery.waiting import NotWaiting, Waiting, waiting_of
from appliance.protocol.records.record import Record
from appliance.services.due_keys import fingerprint, id_key

GROUP_MS: Final = 10_000
"""Cancellations of so much time share what is noted about levels."""
KEPT_MS: Final = 60_000
BYTES_MAX: Final = 16 << 20
ENTRY_BYTES: Final = 250
"""What an entry takes beside its id, about."""


class _Group:
    """Cancellations that expire together. `ends`: offset in each level; none while the group is open."""

    __slots__ = ("began_ns", "ends", "first_offset", "keys")

    def __init__(self, first_offset: int, now_ns: int) -> None:
        self.first_offset = first_offset
        self.began_ns = now_ns
        self.ends: dict[str, int] | None = None
        self.keys: set[bytes] = set()


class Cancellations:
    """Args:
    position: from where on the log is read.
    """

    __slots__ = ("_groups", "_known", "read_to", "size_bytes", "unread")

    def __init__(self, position: int) -> None:
        self.read_to = position
        self.size_bytes = 0
        self.unread = 0
        self._groups: deque[_Group] = deque()
        self._known: dict[bytes, tuple[int, _Group]] = {}

    def __len__(self) -> int:
        return len(self._known)

    @property
    def position(self) -> int:
        """Return the offset from which on a next process must read."""
        return self._groups[0].first_offset if self._groups else self.read_to

    @property
    def has_room(self) -> bool:
        """Whether more may be read. If not, later cancellations do not count until others have expired."""
        return self.size_bytes < BYTES_MAX

    def begin_at(self, offset: int) -> None:
        """The log begins at `offset`, or ends there because a power cut has taken its end."""
        self.read_to = offset

    def take(self, records: list[Record], *, next_offset: int, now_ns: int) -> None:
        """Take the records of one batch; `next_offset` is the one behind it. Those below `read_to` are known."""
        for record in records:
            if record.offset >= self.read_to:
                self._take_one(record, now_ns)
        self.read_to = max(self.read_to, next_offset)

    def _take_one(self, record: Record, now_ns: int) -> None:
        try:
            waiting = waiting_of(record)
        except NotWaiting:
            self.unread += 1
            return
        name = waiting.cancels
        if name is None:
            self.unread += 1
            return
        if not self._groups or self._groups[-1].ends is not None:
            self._groups.append(_Group(record.offset, now_ns))
        group, key = self._groups[-1], _key(waiting, name)
        known = self._known.get(key)
        if known is None:
            self.size_bytes += ENTRY_BYTES + len(key)
        elif known[0] > waiting.offset:
            return  # the same one was sent again
        self._known[key] = waiting.offset, group
        group.keys.add(key)

    def has(self, record: Stored | Waiting) -> bool:
        """Return whether a record was cancelled. Time: constant."""
        if not self._known:
            return False
        name = record.delivery_id
        if name is None:
            return False
        known = self._known.get(_key(record, name))
        return known is not None and record.offset < known[0]

    def wants_close(self, now_ns: int) -> bool:
        """Return whether the last group is open for long enough."""
        if not self._groups:
            return False
        last = self._groups[-1]
        return last.ends is None and now_ns - last.began_ns >= GROUP_MS * NS_PER_MS

    def fingerprints(self) -> list[int]:
        """Return the fingerprints of what the last group cancels."""
        return [fingerprint(key) for key in self._groups[-1].keys]

    def close(self, ends: Mapping[str, int]) -> None:
        """End the last group.

        Args:
            ends: where each level ends, while no delivery is open. A level can be left out if nothing waits there that
                the group cancels.
        """
        self._groups[-1].ends = dict(ends)

    def expire(self, positions: Mapping[str, int], now_ns: int) -> None:
        """Forget groups of which nothing can wait any more. `positions`: below them each level was delivered."""
        while self._groups:
            first = self._groups[0]
            if first.ends is None or now_ns - first.began_ns < KEPT_MS * NS_PER_MS:
                return
            if any(positions.get(level, end) < end for level, end in first.ends.items()):
                return
            self._groups.popleft()
            for key in first.keys:
                if self._known[key][1] is first:
                    del self._known[key]
                    self.size_bytes -= ENTRY_BYTES + len(key)

    def check(self) -> None:
        """Raise AssertionError if what is kept contradicts itself."""
        assert self.size_bytes == sum(ENTRY_BYTES + len(key) for key in self._known)
        assert all(group in self._groups and key in group.keys for key, (_, group) in self._known.items())
        assert all(group.ends is not None for group in list(self._groups)[:-1])
        assert [group.first_offset for group in self._groups] == sorted(
            group.first_offset for group in self._groups
        )


def _key(record: Stored | Waiting, name: bytes) -> bytes:
    return id_key(record.topic_id, record.partition, name)
