"""The duty cycle of the purgatory: hear pokes and registrations, say who is done, sleep until the next
deadline.

One round: pokes first (they concern those who wait already), then registrations, then the clock, then
everything that came of it is published, one store and at most one ring of a doorbell for each network
process.

A registration and an append may cross. So the watched rows' `watchers` words are set, then comes a fence,
then their high watermarks are read again; a worker publishes its high watermark, then fences, then reads
`watchers`. Whatever the order, one of the two sees the other: either the worker pokes, or the operation is
found satisfied here and now.

Answers that a worker or a network process holds have a deadline here and are completed by their owner: a HOLD goes onto
the timing wheel alone, and is answered once, when its time is up or when its owner releases it.

Does: holds what waits (see `appliance.delayed`); writes the `watchers` words. Never: reads a log, parses a
request, answers a client, polls while idle. Dies: network processes wake everybody who waited here and register again
with the next generation; owners of held answers expire them until they have registered them again; `watchers` words
that the dead one left above zero cost a needless poke each and are cleared then.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from appliance.channels.partition_table import ACTIVE_SEGMENT, HIGH_WATERMARK, WATCHERS
from appliance.channels.purgatory_channel import (
    COUNT,
    DEADLINE_NS,
    HELD_DEADLINE_NS,
    HELD_IDENTITY,
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
from appliance.clock import NS_PER_MS
from appliance.delayed.delayed_operation import DelayedAnswer, DelayedFetch
from appliance.delayed.purgatory import Purgatory
from appliance.errors import ApplianceDefect
from appliance.ipc.fence import full_fence
from appliance.ipc.process_table import ERRORS, REQUESTS
from appliance.process.agent import AgentProcess

# How soon a full completion ring is tried again; its reader does not ring when it has made room.
OWED_RETRY_MS = 1

_COMPLETE, _WATCH, _ARM = int(PurgatoryOp.COMPLETE), int(PurgatoryOp.WATCH), int(PurgatoryOp.ARM)
_CANCEL, _POKE = int(PurgatoryOp.CANCEL), int(PurgatoryOp.POKE)
_HOLD, _RELEASE, _OVER = int(PurgatoryOp.HOLD), int(PurgatoryOp.RELEASE), int(PurgatoryOp.OVER)
_SATISFIED, _EXPIRED = int(CompletionReason.SATISFIED), int(CompletionReason.EXPIRED)
_REQUEST_ID_MASK = (1 << 32) - 1
_IS_ANSWER = 1 << 32
_PEER_SHIFT = 33

log = logging.getLogger(__name__)

Operation = DelayedFetch | DelayedAnswer


class PurgatoryAgent:
    """The loop and its state; `run` returns when the supervisor sends Stop, or is gone."""

    def __init__(self, process: AgentProcess) -> None:
        attachment = process.attachment
        self._process = process
        self._attachment = attachment
        self._clock = process.clock
        self._table = attachment.partitions
        self._purgatory: Purgatory[Operation] = Purgatory(process.clock.monotonic_ns() // NS_PER_MS)
        # An operation's key is one integer: who asked, by its row in the process table, whether it is an answer that is
        # held, and the requester's own number for it. Half-made registrations have such keys, too: what is watched, and
        # the rows that are read from within a segment.
        self._requesters = attachment.wiring.planned
        self._places = {role: place for place, role in enumerate(self._requesters)}
        self._half_made: dict[int, tuple[dict[int, int], set[int]]] = {}
        self._owed: dict[Role, deque[tuple[int, ...]]] = {}
        self._touched: set[Role] = set()
        self._expired_answers = self._held_answers = 0
        self._depth = 0
        self._running = True
        self._clear_left_watchers()

    def run(self) -> None:
        """Serve until Stop."""
        process = self._process
        process.publish_counters(self.counters)
        process.ready()
        while self._running:
            process.wait(self, self._timeout_ms())
            self._hear()
            self._expire()
            self._publish()
        process.stopping()
        process.close()

    def counters(self) -> Mapping[str, int]:
        """Operations that wait, how those that left did so, and completions that found a full ring."""
        counted = self._purgatory.statistics()
        return {
            "waiting": counted.waiting,
            "watched_keys": counted.watched_keys,
            "satisfied": counted.satisfied,
            "expired": counted.expired,
            "cancelled": counted.cancelled,
            "unsent": sum(map(len, self._owed.values())),
            "held_answers": self._held_answers,
            "expired_answers": self._expired_answers,
        }

    # A round

    def _timeout_ms(self) -> int | None:
        if self._owed:
            return OWED_RETRY_MS
        due_ms = self._purgatory.next_expiry_ms()
        return None if due_ms is None else max(0, due_ms - self._clock.monotonic_ns() // NS_PER_MS)

    def _hear(self) -> None:
        registrations: list[tuple[Role, list[tuple[Any, ...]]]] = []
        depth = 0
        for peer, reader in self._attachment.inbound.items():
            messages = reader.drain()
            if not messages:
                continue
            depth += len(messages)
            if peer.kind is RoleKind.IOPROC:
                self._poked(peer, messages)
            else:
                registrations.append((peer, messages))
        for peer, messages in registrations:
            self._registered(peer, messages)
        if depth != self._depth:
            self._depth = depth
            self._attachment.row.set_queue_depth(depth)

    def _poked(self, peer: Role, messages: list[tuple[Any, ...]]) -> None:
        for message in messages:
            op = message[OP]
            if op != _POKE:
                if op == _HOLD:
                    self._hold(peer, message[HELD_IDENTITY], message[HELD_DEADLINE_NS])
                elif op == _RELEASE:
                    self._release(peer, message[HELD_IDENTITY])
                else:
                    self._wrong(f"message {op} from a worker")
                continue
            row = message[POKED_ROW]
            for operation in self._purgatory.poke(row, message[POKED_HIGH_WATERMARK], message[POKED_BYTES]):
                self._complete(operation, _SATISFIED)
            begun_at = self._table.cells[self._table.at(row) + ACTIVE_SEGMENT]
            if begun_at < message[POKED_HIGH_WATERMARK]:
                for operation in self._purgatory.watching(row):
                    if isinstance(operation, DelayedFetch) and operation.is_left_behind(row, begun_at):
                        self._purgatory.satisfy(operation.key)
                        self._complete(operation, _SATISFIED)
            if not self._purgatory.watchers(row):
                # Also for a word that an earlier generation left.
                self._note_watchers(row)

    def _registered(self, peer: Role, messages: list[tuple[Any, ...]]) -> None:
        armed: list[DelayedFetch] = []
        for message in messages:
            op = message[OP]
            if op == _WATCH:
                self._watch(peer, message)
            elif op == _ARM:
                key = self._key(peer, message[REQUEST_ID])
                watches, within = self._half_made.pop(key, ({}, set()))
                operation = DelayedFetch(
                    key, watches, needed_bytes=message[NEEDED_BYTES], within=frozenset(within)
                )
                if self._wait(operation, message[COUNT], deadline_ns=message[DEADLINE_NS]):
                    armed.append(operation)
            elif op == _CANCEL:
                key = self._key(peer, message[REQUEST_ID])
                cancelled = self._purgatory.cancel(key)
                self._half_made.pop(key, None)
                if cancelled is not None:
                    self._forget_watches(cancelled)
            elif op == _HOLD:
                self._hold(peer, message[REQUEST_ID], message[DEADLINE_NS])
            elif op == _RELEASE:
                self._release(peer, message[REQUEST_ID])
            else:
                self._wrong(f"message {op} from {peer}")
        if armed:
            self._attachment.row.cells[REQUESTS] += len(armed)
            self._look_again(armed)

    def _watch(self, peer: Role, message: tuple[Any, ...]) -> None:
        row = message[ROW]
        if row >= len(self._table):
            self._wrong(f"{peer} watches row {row} of {len(self._table)}")
            return
        watches, within = self._half_made.setdefault(self._key(peer, message[REQUEST_ID]), ({}, set()))
        watches[row] = message[OFFSET]
        if message[WITHIN]:
            within.add(row)

    def _wait(self, operation: DelayedFetch, watches: int, *, deadline_ns: int) -> bool:
        """Lets it wait, or answers at once what could only wait in vain."""
        if not watches or len(operation.watches) != watches:
            self._wrong(f"operation armed with {len(operation.watches)} of {watches} watches")
            self._complete(operation, _SATISFIED)
            return False
        try:
            # Rounded up: never before the deadline.
            self._purgatory.wait(operation, -(-deadline_ns // NS_PER_MS))
        except ApplianceDefect as error:
            # The first of that name still waits and will be answered.
            self._wrong(str(error))
            return False
        return True

    def _key(self, peer: Role, number: int) -> int:
        return (self._places[peer] << _PEER_SHIFT) | number

    def _hold(self, peer: Role, identity: int, deadline_ns: int) -> None:
        """Put the deadline of an answer that `peer` holds onto the wheel."""
        operation = DelayedAnswer(self._key(peer, identity) | _IS_ANSWER)
        try:
            self._purgatory.wait(operation, -(-deadline_ns // NS_PER_MS))
        except ApplianceDefect as error:
            self._wrong(str(error))
            return
        self._held_answers += 1

    def _release(self, peer: Role, identity: int) -> None:
        """Its owner has answered it. One that has expired meanwhile was said to be over before."""
        operation = self._purgatory.satisfy(self._key(peer, identity) | _IS_ANSWER)
        if operation is not None:
            self._complete(operation, _SATISFIED)

    def _look_again(self, armed: list[DelayedFetch]) -> None:
        """Announce, fence, check: the purgatory's half of what the head of this file describes."""
        cells, at = self._table.cells, self._table.at
        for operation in armed:
            for row in operation.watches:
                self._note_watchers(row)
        full_fence()
        for operation in armed:
            # How many bytes came is not known here, so the requester looks for itself; it may wait again.
            moved = any(cells[at(row) + HIGH_WATERMARK] > offset for row, offset in operation.watches.items())
            if moved and self._purgatory.satisfy(operation.key) is not None:
                self._complete(operation, _SATISFIED)

    def _look_at_everybody(self) -> None:
        """After a worker came back: its recovered high watermarks may have been published with nobody to
        poke."""
        self._look_again([each for each in self._purgatory.operations() if isinstance(each, DelayedFetch)])

    def _expire(self) -> None:
        for operation in self._purgatory.expire(self._clock.monotonic_ns() // NS_PER_MS):
            if isinstance(operation, DelayedAnswer):
                self._expired_answers += 1
            self._complete(operation, _EXPIRED)

    def _complete(self, operation: Operation, reason: int) -> None:
        """Says once to the requester that `operation` has left; it must have."""
        self._forget_watches(operation)
        peer = self._requesters[operation.key >> _PEER_SHIFT]
        op = _OVER if operation.key & _IS_ANSWER else _COMPLETE
        message = (op, reason, 0, operation.key & _REQUEST_ID_MASK, 0, 0, 0, 0, 0, 0, 0)
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

    # Words in shared memory

    def _note_watchers(self, row: int) -> None:
        self._table.cells[self._table.at(row) + WATCHERS] = self._purgatory.watchers(row)

    def _forget_watches(self, operation: Operation) -> None:
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

    def _wrong(self, what: str) -> None:
        """A mistake of ours elsewhere: counted and said, and nobody waits for ever because of it."""
        self._attachment.row.cells[ERRORS] += 1
        log.error("%s", what)

    # The supervisor and the peers

    def stop(self, within_ms: int) -> None:
        """End after this turn: network processes drop what waits here by themselves."""
        self._running = False

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """A network process may register; a worker may have recovered more than operations wait for."""
        if peer.kind is RoleKind.IOPROC:
            self._look_at_everybody()

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """Forget what a dead process asked for. Operations that wait for a dead worker's records wait for the next one.

        Pokes of the worker that were not read yet are lost: the look at every operation when it is back makes up for
        them.
        """
        if not had_rings:
            return
        self._owed.pop(peer, None)
        self._touched.discard(peer)
        place = self._places[peer]
        for operation in self._purgatory.operations():
            if operation.key >> _PEER_SHIFT == place:
                self._purgatory.cancel(operation.key)
                self._forget_watches(operation)
        for key in [key for key in self._half_made if key >> _PEER_SHIFT == place]:
            del self._half_made[key]
