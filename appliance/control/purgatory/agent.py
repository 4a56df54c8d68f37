"""The duty cycle of the purgatory: hear pokes and registrations, say who is done, sleep until the next
deadline.

One round: pokes first (they concern those who wait already), then registrations, then the clock, then
everything that came of it is published, one store and at most one ring of a doorbell for each network
process.

A registration and an append may cross. So the watched rows' `watchers` words are set, then comes a fence,
then their high watermarks are read again; a worker publishes its high watermark, then fences, then reads
`watchers`. Whatever the order, one of the two sees the other: either the worker pokes, or the operation is
found satisfied here and now.

Does: holds what waits (see `appliance.delayed`); writes the `watchers` words. Never: reads a log, parses a
request, answers a client, polls while idle. Dies: network processes wake everybody who waited here and
register anew with the next generation; words that the dead one left above zero cost a needless poke each
and are cleared then.
"""

from __future__ import annotations

import logging
import select
from collections import deque
from typing import Any

from appliance.channels.partition_table import ACTIVE_SEGMENT, HIGH_WATERMARK, WATCHERS
from appliance.channels.purgatory_channel import (
    COUNT,
    DEADLINE_NS,
    NEEDED_BYTES,
    OFFSET,
    OP,
    POKED_BYTES,
    POKED_HIGH_WATERMARK,
    POKED_ROW,
    REQUEST_ID,
    ROW,
    WITHIN,
    CompletionReason,
    PurgatoryOp,
)
from appliance.channels.roles import Role, RoleKind
from appliance.channels.supervised import obey_supervisor
from appliance.channels.supervision import SupervisionSocket
from appliance.channels.wiring import Attachment
from appliance.clock import Clock
from appliance.delayed.delayed_operation import DelayedFetch
from appliance.delayed.purgatory import Purgatory, PurgatoryStatistics
from appliance.errors import ApplianceDefect
from appliance.ipc.agent import DutyCycle
from appliance.ipc.fence import full_fence
from appliance.ipc.process_table import COUNTER_0, ERRORS, REQUESTS, ProcessState

# The process row's counters of its own, by place.

# How soon a full completion ring is tried again; its reader does not ring when it has made room.
OWED_RETRY_MS = 1

_COMPLETE, _WATCH, _ARM = int(PurgatoryOp.COMPLETE), int(PurgatoryOp.WATCH), int(PurgatoryOp.ARM)
_CANCEL, _POKE = int(PurgatoryOp.CANCEL), int(PurgatoryOp.POKE)
_SATISFIED, _EXPIRED = int(CompletionReason.SATISFIED), int(CompletionReason.EXPIRED)
_NS_PER_MS = 1_000_000
_REQUEST_ID_BITS = 32
_REQUEST_ID_MASK = (1 << _REQUEST_ID_BITS) - 1

log = logging.getLogger(__name__)


class PurgatoryDutyCycle:
    """The loop and its state; `run` returns when the supervisor said stop, or is gone."""

    def __init__(self, attachment: Attachment, supervision: SupervisionSocket, *, clock: Clock) -> None:
        self._attachment = attachment
        self._supervision = supervision
        self._clock = clock
        self._table = attachment.partitions
        self._purgatory: Purgatory[DelayedFetch] = Purgatory(clock.monotonic_ns() // _NS_PER_MS)
        self._cycle = DutyCycle(attachment.doorbell, attachment.row, monotonic_ns=clock.monotonic_ns)
        self._cycle.epoll.register(supervision.fileno(), select.EPOLLIN)
        for reader in attachment.inbound.values():
            self._cycle.add_inbox(reader)
        self._askers = {peer.index: peer for peer in attachment.outbound}
        # Operations are named by network process and request id, in one integer; so are half-made
        # registrations: what is watched, and the rows that are read from within a segment.
        self._half_made: dict[int, tuple[dict[int, int], set[int]]] = {}
        self._owed: dict[Role, deque[tuple[int, ...]]] = {}
        self._touched: set[Role] = set()
        self._depth = 0
        self._running = True
        self._clear_left_watchers()

    def run(self) -> None:
        """Serves until told to stop."""
        supervision_fd = self._supervision.fileno()
        while self._running:
            for descriptor, _ in self._cycle.wait(self._timeout_ms()):
                if descriptor == supervision_fd:
                    self._supervised()
            self._hear()
            self._expire()
            self._publish()
        self._attachment.row.set_state(ProcessState.STOPPING)
        self._cycle.close()

    def statistics(self) -> PurgatoryStatistics:
        return self._purgatory.statistics()

    # A round

    def _timeout_ms(self) -> int | None:
        if self._owed:
            return OWED_RETRY_MS
        due_ms = self._purgatory.next_expiry_ms()
        return None if due_ms is None else max(0, due_ms - self._clock.monotonic_ns() // _NS_PER_MS)

    def _hear(self) -> None:
        registrations: list[tuple[Role, list[tuple[Any, ...]]]] = []
        depth = 0
        for peer, reader in self._attachment.inbound.items():
            messages = reader.drain()
            if not messages:
                continue
            depth += len(messages)
            if peer.kind is RoleKind.IOPROC:
                self._poked(messages)
            else:
                registrations.append((peer, messages))
        for peer, messages in registrations:
            self._registered(peer, messages)
        if depth != self._depth:
            self._depth = depth
            self._attachment.row.set_queue_depth(depth)

    def _poked(self, messages: list[tuple[Any, ...]]) -> None:
        for message in messages:
            if message[OP] != _POKE:
                self._wrong(f"message {message[OP]} from a worker")
                continue
            row = message[POKED_ROW]
            for operation in self._purgatory.poke(row, message[POKED_HIGH_WATERMARK], message[POKED_BYTES]):
                self._complete(operation, _SATISFIED)
            begun_at = self._table.cells[self._table.at(row) + ACTIVE_SEGMENT]
            if begun_at < message[POKED_HIGH_WATERMARK]:
                for operation in self._purgatory.watching(row):
                    if operation.is_left_behind(row, begun_at):
                        self._purgatory.satisfy(operation.key)
                        self._complete(operation, _SATISFIED)
            if not self._purgatory.watchers(row):
                # Also for a word that an earlier generation left.
                self._note_watchers(row)

    def _registered(self, peer: Role, messages: list[tuple[Any, ...]]) -> None:
        armed: list[DelayedFetch] = []
        for message in messages:
            op = message[OP]
            key = (peer.index << _REQUEST_ID_BITS) | message[REQUEST_ID]
            if op == _WATCH:
                row = message[ROW]
                if row < len(self._table):
                    watches, within = self._half_made.setdefault(key, ({}, set()))
                    watches[row] = message[OFFSET]
                    if message[WITHIN]:
                        within.add(row)
                else:
                    self._wrong(f"{peer} watches row {row} of {len(self._table)}")
            elif op == _ARM:
                watches, within = self._half_made.pop(key, ({}, set()))
                operation = DelayedFetch(
                    key, watches, needed_bytes=message[NEEDED_BYTES], within=frozenset(within)
                )
                if self._wait(operation, message[COUNT], deadline_ns=message[DEADLINE_NS]):
                    armed.append(operation)
            elif op == _CANCEL:
                cancelled = self._purgatory.cancel(key)
                self._half_made.pop(key, None)
                if cancelled is not None:
                    self._forget_watches(cancelled)
            else:
                self._wrong(f"message {op} from {peer}")
        if armed:
            self._attachment.row.cells[REQUESTS] += len(armed)
            self._look_again(armed)

    def _wait(self, operation: DelayedFetch, watches: int, *, deadline_ns: int) -> bool:
        """Lets it wait, or answers at once what could only wait in vain."""
        if not watches or len(operation.watches) != watches:
            self._wrong(f"operation armed with {len(operation.watches)} of {watches} watches")
            self._complete(operation, _SATISFIED)
            return False
        try:
            # Rounded up: never before the deadline.
            self._purgatory.wait(operation, -(-deadline_ns // _NS_PER_MS))
        except ApplianceDefect as error:
            # The first of that name still waits and will be answered.
            self._wrong(str(error))
            return False
        return True

    def _look_again(self, armed: list[DelayedFetch]) -> None:
        """Announce, fence, check: the purgatory's half of what the head of this file describes."""
        cells, at = self._table.cells, self._table.at
        for operation in armed:
            for row in operation.watches:
                self._note_watchers(row)
        full_fence()
        for operation in armed:
            # How many bytes came is not known here, so the asker looks for itself; it may wait again.
            moved = any(cells[at(row) + HIGH_WATERMARK] > offset for row, offset in operation.watches.items())
            if moved and self._purgatory.satisfy(operation.key) is not None:
                self._complete(operation, _SATISFIED)

    def _look_at_everybody(self) -> None:
        """After a worker came back: its recovered high watermarks may have been published with nobody to
        poke."""
        self._look_again(self._purgatory.operations())

    def _expire(self) -> None:
        for operation in self._purgatory.expire(self._clock.monotonic_ns() // _NS_PER_MS):
            self._complete(operation, _EXPIRED)

    def _complete(self, operation: DelayedFetch, reason: int) -> None:
        """Says once to the asker that `operation` has left; it must have."""
        self._forget_watches(operation)
        peer = self._askers[operation.key >> _REQUEST_ID_BITS]
        message = (_COMPLETE, reason, 0, operation.key & _REQUEST_ID_MASK, 0, 0, 0, 0, 0, 0, 0)
        owed = self._owed.get(peer)
        if owed is not None:
            owed.append(message)
        elif self._attachment.outbound[peer].put(*message):
            self._touched.add(peer)
        else:
            self._owed[peer] = deque([message])

    def _publish(self) -> None:
        for peer, owed in list(self._owed.items()):
            writer = self._attachment.outbound[peer]
            while owed and writer.put(*owed[0]):
                owed.popleft()
                self._touched.add(peer)
            if not owed:
                del self._owed[peer]
        for peer in self._touched:
            self._attachment.outbound[peer].publish()
            self._attachment.bells[peer].ring()
        self._touched.clear()
        self._count()

    # Words in shared memory

    def _note_watchers(self, row: int) -> None:
        self._table.cells[self._table.at(row) + WATCHERS] = self._purgatory.watchers(row)

    def _forget_watches(self, operation: DelayedFetch) -> None:
        for row in operation.watches:
            self._note_watchers(row)

    def _clear_left_watchers(self) -> None:
        """A later life clears what an earlier one left, for the rows that are in use.

        Only those: looking at a row that was never used would make the system give it memory.
        """
        if self._attachment.generation == 1:
            return
        image = self._attachment.image.current()
        topics = image.topics.values() if image is not None else ()
        for topic in topics:
            for partition in topic.partitions:
                if partition.row < len(self._table):
                    self._note_watchers(partition.row)

    def _count(self) -> None:
        cells, statistics = self._attachment.row.cells, self._purgatory.statistics()
        cells[COUNTER_0] = statistics.waiting
        cells[COUNTER_0 + 1] = statistics.watched_keys
        cells[COUNTER_0 + 2] = statistics.satisfied
        cells[COUNTER_0 + 3] = statistics.expired
        cells[COUNTER_0 + 4] = statistics.cancelled
        cells[COUNTER_0 + 5] = sum(map(len, self._owed.values()))

    def _wrong(self, what: str) -> None:
        """A mistake of ours elsewhere: counted and said, and nobody waits for ever because of it."""
        self._attachment.row.cells[ERRORS] += 1
        log.error("%s", what)

    # Peers

    def _supervised(self) -> None:
        obey_supervisor(
            self._supervision,
            self._attachment,
            peer_up=self._peer_up,
            peer_down=self._peer_down,
            stop=self._stop,
            warn=log.warning,
        )

    def _stop(self) -> None:
        self._running = False

    def _peer_up(self, peer: Role, generation: int) -> None:
        if self._attachment.generations.get(peer) != generation:
            self._peer_down(peer)
            if not self._attachment.peer_up(peer, generation):
                return
            self._cycle.add_inbox(self._attachment.inbound[peer])
            if peer.kind is RoleKind.NETPROC:
                self._askers[peer.index] = peer
        if peer.kind is RoleKind.IOPROC:
            self._look_at_everybody()

    def _peer_down(self, peer: Role) -> None:
        """What a dead network process asked for is forgotten; who waits for a dead worker waits for the next one.

        Its pokes that were not read yet go unread: the look at everybody when it is back makes up for them.
        """
        reader = self._attachment.inbound.get(peer)
        if reader is None:
            return
        self._cycle.remove_inbox(reader)
        if peer.kind is RoleKind.NETPROC:
            self._owed.pop(peer, None)
            self._touched.discard(peer)
            for operation in self._purgatory.operations():
                if operation.key >> _REQUEST_ID_BITS == peer.index:
                    self._purgatory.cancel(operation.key)
                    self._forget_watches(operation)
            for key in [key for key in self._half_made if key >> _REQUEST_ID_BITS == peer.index]:
                del self._half_made[key]
        self._attachment.peer_down(peer)
