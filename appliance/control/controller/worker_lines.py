"""The lines to the workers and the replica processes: who said hello, what was sent, what is not answered yet.

| event | what follows |
|---|---|
| a hello of a new life | a full Assign; what was sent to the life before is forgotten |
| a hello of a known life | nothing: it has its Assign, or will have |
| a hello of an older life | nothing: each life has its own connection, so the hello of a dead one may be read last |
| Assigned with a known id | whoever waited for it is told |
| Assigned with an unknown id, or the epoch of a controller before | nothing |
| PeerDown | what was sent is forgotten; those who wait go on waiting, for the next hello or their deadline |

Who has not said hello is sent nothing: its first full Assign will hold it all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

import msgspec

from appliance.channels.control_channel import Assign, Assigned, Body, Envelope, ReplicationRates
from appliance.channels.roles import Role
from appliance.control.controller.copies import Order

Send = Callable[[bytes, Envelope], None]


def identity_of(worker: Role, generation: int) -> bytes:
    """A DEALER's identity, as `channels.control_channel` says."""
    return f"{worker.token}.g{generation}".encode()


class Sent(msgspec.Struct, frozen=True):
    """An Assign on its way, for these waves."""

    number: int
    worker: Role
    full: bool
    waves: tuple[int, ...]


class _Line(msgspec.Struct):
    identity: bytes
    generation: int
    assigned: bool = False
    outstanding: set[int] = msgspec.field(default_factory=set)


class Confirmation(msgspec.Struct, frozen=True):
    """What a worker answered to what. `waves`: those that waited for it, and wait for no other of its answers."""

    sent: Sent
    waves: tuple[int, ...]
    failures: dict[str, tuple[int, str]]


class WorkerSessions:
    """Lines to all workers of this configuration. Every call costs what it sends."""

    __slots__ = ("_cluster_id", "_controller_epoch", "_ended", "_ids", "_lines", "_send", "_sent")

    def __init__(self, send: Send, *, controller_epoch: int, cluster_id: str) -> None:
        self._send = send
        self._controller_epoch = controller_epoch
        self._cluster_id = cluster_id
        self._lines: dict[Role, _Line] = {}
        self._ended: dict[
            Role, int
        ] = {}  # the last generation of which the supervisor has said that it has ended
        self._sent: dict[int, Sent] = {}
        self._ids = count(1)

    def hello(self, worker: Role, generation: int) -> bool:
        """Whether that is a life we had not heard of: then a full Assign must follow, and nothing counts any more of
        what was sent to the life before.

        A worker says hello when it starts, and again when the supervisor names a new controller; both may reach the
        same one. Taken for a new life, a dead one would leave the living one without any later message.
        """
        line = self._lines.get(worker)
        known = self._ended.get(worker, 0) if line is None else line.generation
        if generation <= known:
            return False
        self._forget(worker)
        self._lines[worker] = _Line(identity_of(worker, generation), generation)
        return True

    def down(self, worker: Role, generation: int) -> list[int] | None:
        """That life of the worker is over: the numbers of the commands that nobody will answer. None where a later
        life has said hello since."""
        self._ended[worker] = max(generation, self._ended.get(worker, 0))
        line = self._lines.get(worker)
        if line is None:
            return []
        if line.generation != generation:
            return None
        unanswered = list(line.outstanding)
        self._forget(worker)
        return unanswered

    def is_from(self, worker: Role, sender: bytes) -> bool:
        """Whether `sender` is the life of `worker` that said hello last."""
        line = self._lines.get(worker)
        return line is not None and line.identity == sender

    def is_up(self, worker: Role) -> bool:
        return worker in self._lines

    def all_assigned(self, workers: Iterable[Role]) -> bool:
        """Whether each of `workers` has answered a full Assign in this life."""
        return all(worker in self._lines and self._lines[worker].assigned for worker in workers)

    def assign(
        self,
        worker: Role,
        order: Order,
        *,
        waves: tuple[int, ...],
        full: bool = False,
        log_defaults: dict[str, str] | None = None,
        rates: ReplicationRates | None = None,
    ) -> int:
        """Sends to a worker that is up; the command's number. `waves`: who waits for the answer."""
        line = self._lines[worker]
        number = next(self._ids)
        line.outstanding.add(number)
        self._sent[number] = Sent(number, worker, full, waves)
        command = Assign(
            controller_epoch=self._controller_epoch,
            cluster_id=self._cluster_id,
            full=full,
            partitions=tuple(order.partitions),
            removed=tuple(order.removed),
            log_defaults=log_defaults,
            released=tuple(order.released),
            rates=rates,
        )
        self._send(line.identity, Envelope(number, command))
        return number

    def hand_on(self, worker: Role, body: Body) -> int | None:
        """Sends what somebody else asks; its number, as no Assign has it. None: the worker is down."""
        line = self._lines.get(worker)
        if line is None:
            return None
        number = next(self._ids)
        self._send(line.identity, Envelope(number, body))
        return number

    def confirmed(self, number: int, answer: Assigned) -> Confirmation | None:
        """What an Assigned answers; None when nobody waits for it.

        The numbers of the controller before began at 1, too: an answer to it is told by its epoch.
        """
        if answer.controller_epoch != self._controller_epoch:
            return None
        sent = self._sent.pop(number, None)
        if sent is None:
            return None
        line = self._lines[sent.worker]
        line.outstanding.discard(number)
        line.assigned = line.assigned or sent.full
        waited_for = (
            {wave for each in line.outstanding for wave in self._sent[each].waves} if sent.waves else ()
        )
        return Confirmation(
            sent, tuple(wave for wave in sent.waves if wave not in waited_for), answer.failures
        )

    def _forget(self, worker: Role) -> None:
        line = self._lines.pop(worker, None)
        if line is not None:
            for number in line.outstanding:
                del self._sent[number]

    def statistics(self) -> dict[str, int]:
        """Workers that said hello, Assigns not answered."""
        return {"workers": len(self._lines), "outstanding": len(self._sent)}
