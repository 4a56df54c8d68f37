"""Markers for partitions of `__consumer_offsets` that belong to another coordinator process, over rings between them.

    ask(partition, marker, done) ─→ the ring to its process        done(error) when that has answered, or is gone
    take(messages)               ─→ serve(partition, marker, …)    a marker of another process for one of our partitions

Bounded: UNDER_WAY_MAX questions to each process, so as many answers wait for room on a ring at most. What a dead
process had asked is written nevertheless, and answered to nobody.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from appliance.channels.marker_channel import (
    COMMITTED,
    COORDINATOR_EPOCH,
    ERROR,
    FLAGS,
    ID,
    ID_LIMIT,
    OP,
    PARTITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTION_VERSION,
    MarkerOp,
    Message,
    marker_message,
    written_message,
)
from appliance.channels.roles import Role, RoleKind, coordinator_index
from appliance.channels.wiring import Attachment
from appliance.control.coordinator.transaction.effects import Marker
from appliance.protocol.errors import ErrorCode

UNDER_WAY_MAX: Final = 4096
_MARKER: Final = int(MarkerOp.MARKER)
_NOT_COORDINATOR: Final = int(ErrorCode.NOT_COORDINATOR)
_LOADING: Final = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
_UNKNOWN_OUTCOME: Final = int(ErrorCode.REQUEST_TIMED_OUT)

Done = Callable[[int], None]


class MarkerLink:
    """The rings to and from the other coordinator processes. `publish` once a turn.

    `serve` writes a marker to one of our partitions (`GroupMachines.write_marker`); it is set before the first `take`.
    """

    def __init__(self, attachment: Attachment, *, processes: int) -> None:
        self.serve: Callable[[int, Marker, Done], None] | None = None
        self._attachment = attachment
        self._processes = processes
        self._ids = itertools.count()
        self._asked: dict[Role, dict[int, Done]] = {}
        self._lives: dict[Role, int] = {}
        self._owed: dict[Role, deque[Message]] = {}
        self._touched: set[Role] = set()

    # Asking

    def ask(self, partition: int, marker: Marker, done: Done) -> None:
        """Have a marker written by the process to which the partition belongs.

        `done` gets 0 when it is committed, else an error that is worth asking again, or the final one of the log's
        owner. It may be called at once.
        """
        peer = Role(RoleKind.COORDINATOR, coordinator_index(partition, processes=self._processes))
        writer = self._attachment.outbound.get(peer)
        if writer is None:
            done(_NOT_COORDINATOR)
            return
        asked = self._asked.setdefault(peer, {})
        identity = next(self._ids) % ID_LIMIT
        message = marker_message(
            identity,
            partition,
            committed=marker.commit,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
        )
        if len(asked) >= UNDER_WAY_MAX or not writer.put(*message):
            done(_LOADING)
            return
        asked[identity] = done
        self._touched.add(peer)

    # Hearing

    def take(self, peer: Role, messages: Sequence[tuple[Any, ...]]) -> None:
        """Take what another process asks or answers."""
        for message in messages:
            if message[OP] == _MARKER:
                self._serve(peer, message)
                continue
            done = self._asked.get(peer, {}).pop(message[ID], None)
            if done is not None:
                done(message[ERROR])

    def _serve(self, peer: Role, message: tuple[Any, ...]) -> None:
        assert self.serve is not None
        identity, life = message[ID], self._lives.get(peer, 0)

        def written(error: int) -> None:
            if self._lives.get(peer, 0) == life:
                self._owed.setdefault(peer, deque()).append(written_message(identity, error))

        marker = Marker(
            message[PRODUCER_ID],
            message[PRODUCER_EPOCH],
            bool(message[FLAGS] & COMMITTED),
            message[COORDINATOR_EPOCH],
            message[TRANSACTION_VERSION],
        )
        self.serve(message[PARTITION], marker, written)

    def publish(self) -> None:
        """Make visible what was asked and answered, and wake the processes that sleep."""
        for peer, owed in self._owed.items():
            writer = self._attachment.outbound.get(peer)
            while owed and writer is not None and writer.put(*owed[0]):
                owed.popleft()
                self._touched.add(peer)
        for peer in self._touched:
            writer = self._attachment.outbound.get(peer)
            if writer is not None:
                writer.publish()
                self._attachment.bells[peer].ring()
        self._touched.clear()

    @property
    def congested(self) -> bool:
        """Whether an answer waits for room on a ring: look again soon."""
        return any(self._owed.values())

    def peer_down(self, peer: Role) -> None:
        """A process died, and its rings are gone: whether it has written what it was asked is not known."""
        self._lives[peer] = self._lives.get(peer, 0) + 1
        self._owed.pop(peer, None)
        self._touched.discard(peer)
        for done in self._asked.pop(peer, {}).values():
            done(_UNKNOWN_OUTCOME)

    def statistics(self) -> dict[str, int]:
        return {
            "asked": sum(map(len, self._asked.values())),
            "owed": sum(map(len, self._owed.values())),
        }
