"""The client of the workers: place operations on their rings, and give each answer to the listener that waits for it.

An `AnswerListener` places operations under one request id. It is called once for each of them: with the answer, or
because the worker died, whichever comes first. An answer of an earlier generation of the worker cannot come, because
that generation's ring is gone.

When a ring is full the operation waits here in order and the process stops reading sockets until it is placed, so
what waits is bounded by what the pool holds.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from appliance.channels.request_channel import (
    CONNECTION_LIMIT,
    LENGTH_BYTES,
    NOTICE_ID,
    REQUEST_ID,
    REQUEST_ID_LIMIT,
    Op,
    partition_request,
)
from appliance.channels.roles import Role, RoleKind
from appliance.channels.wiring import Attachment
from appliance.ipc.brief_wait import BriefWait

Operation = tuple[int, ...]
Answer = tuple[Any, ...]

ANSWERS_AT_ONCE: Final = 128

# An answer to more than this takes the worker longer than a look-out lasts.
LONE_BYTES_MAX: Final = 64 * 1024


class AnswerListener(Protocol):
    """A request that has placed operations and waits for their answers."""

    request_id: int

    def answered(self, answer: Answer) -> None:
        """One operation was answered (fields as in `channels.request_channel`)."""
        ...

    def worker_lost(self, worker: Role) -> None:
        """Every operation of this request on `worker` that is not answered never will be."""
        ...


class WorkerClient:
    """The rings to and from the workers, and the listeners that wait for answers."""

    __slots__ = (
        "_attachment",
        "_brief_wait",
        "_ids",
        "_in_flight",
        "_listeners",
        "_notices",
        "_overflow",
        "_touched",
        "_work_bytes",
        "inboxes",
    )

    def __init__(self, attachment: Attachment, *, brief_wait: BriefWait) -> None:
        self._attachment = attachment
        self._brief_wait = brief_wait
        self._ids = itertools.count()
        self._notices = _Notices(self)
        self._listeners: dict[int, AnswerListener] = {NOTICE_ID: self._notices}
        self._touched: set[Role] = set()
        self._in_flight = 0
        self._work_bytes = 0
        self._overflow: dict[Role, deque[Operation]] = {}
        self.inboxes: dict[Role, Any] = {
            role: reader for role, reader in attachment.inbound.items() if role.kind is RoleKind.IOPROC
        }

    def enter(self, listener: AnswerListener) -> int:
        """Gives `listener` its request id; `leave` must follow when nothing more is expected."""
        identity = next(self._ids) % (REQUEST_ID_LIMIT - 1) + 1
        listener.request_id = identity
        self._listeners[identity] = listener
        return identity

    def on_removed(self, listener: Callable[[], None]) -> None:
        """Calls `listener` whenever a worker says that it has removed files."""
        self._notices.listener = listener

    def leave(self, listener: AnswerListener) -> None:
        """Drop late answers: `listener` waits for nothing more."""
        self._listeners.pop(listener.request_id, None)

    def is_up(self, worker: Role) -> bool:
        return worker in self._attachment.outbound

    def place(self, worker: Role, operation: Operation) -> bool:
        """Puts one operation on the worker's ring (published by `publish`); False when the worker is down."""
        writer = self._attachment.outbound.get(worker)
        if writer is None:
            return False
        waiting = self._overflow.get(worker)
        if waiting is not None or not writer.put(*operation):
            self._overflow.setdefault(worker, deque()).append(operation)
        self._touched.add(worker)
        self._in_flight += 1
        self._work_bytes = operation[LENGTH_BYTES]
        return True

    def drop_connection(self, connection_id: int) -> None:
        """Tell the workers that a connection with requests under way has closed: they need not work on them.

        A ring that is full keeps the notice out: then the worker does the work, and nobody reads its answer.
        """
        notice = _connection_closed(connection_id)
        for worker in self.inboxes:
            writer = self._attachment.outbound.get(worker)
            if writer is not None and worker not in self._overflow and writer.put(*notice):
                self._touched.add(worker)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way: the next operation is a lone one."""
        return not self._in_flight

    @property
    def congested(self) -> bool:
        """Whether a ring is full: read no sockets until it is not."""
        return bool(self._overflow)

    def publish(self) -> None:
        """Makes what was placed visible, and wakes the workers that sleep."""
        if self._overflow:
            self._place_waiting()
        if not self._touched:
            return
        attachment = self._attachment
        for worker in self._touched:
            writer = attachment.outbound.get(worker)
            if writer is not None:
                writer.publish()
                attachment.bells[worker].ring()
        self._touched.clear()

    def await_lone_answer(self) -> None:
        """After publishing: where one small operation is all that is under way, looks out for its answer.

        With more under way there is other work, and cores are better left to whoever does it.
        """
        if self._in_flight == 1 and self._work_bytes <= LONE_BYTES_MAX:
            self._brief_wait.look_out(list(self.inboxes.values()))

    def take_answers(self) -> bool:
        """Delivers answers that have arrived; whether there were any."""
        listeners = self._listeners
        arrived = False
        for reader in self.inboxes.values():
            if reader.is_empty():
                continue
            answers = reader.drain(ANSWERS_AT_ONCE)
            arrived = True
            self._in_flight -= len(answers)
            for answer in answers:
                listener = listeners.get(answer[REQUEST_ID])
                if listener is not None:
                    listener.answered(answer)
        if self._in_flight < 0:  # noqa: PLR1730 (a call for every answer)
            # A worker died: all was forgotten that was under way, also what others answer now.
            self._in_flight = 0
        return arrived

    def worker_up(self, worker: Role) -> Any:
        """A worker serves again: its new inbox, for the duty cycle."""
        self.inboxes[worker] = self._attachment.inbound[worker]
        return self.inboxes[worker]

    def worker_down(self, worker: Role) -> Any:
        """A worker died: notify every listener, and return its old inbox, which the duty cycle no longer polls."""
        inbox = self.inboxes.pop(worker, None)
        self._overflow.pop(worker, None)
        self._touched.discard(worker)
        self._in_flight = 0
        for listener in list(self._listeners.values()):
            listener.worker_lost(worker)
        return inbox

    def noticed(self) -> None:
        """What came was no answer to anything under way."""
        self._in_flight += 1

    def _place_waiting(self) -> None:
        for worker, operations in list(self._overflow.items()):
            writer = self._attachment.outbound[worker]
            while operations and writer.put(*operations[0]):
                operations.popleft()
            self._touched.add(worker)
            if not operations:
                del self._overflow[worker]

    def statistics(self) -> dict[str, int]:
        return {"listeners": len(self._listeners) - 1, "overflow": sum(map(len, self._overflow.values()))}


def _connection_closed(connection_id: int) -> Operation:
    connection = connection_id % CONNECTION_LIMIT
    return partition_request(
        Op.CONNECTION_CLOSED, request_id=NOTICE_ID, row=0, incarnation=0, connection=connection
    )


class _Notices:
    """The listener for notices, under the id that no request has, so that the answers need no extra check."""

    __slots__ = ("_lines", "listener", "request_id")

    def __init__(self, lines: WorkerClient) -> None:
        self._lines = lines
        self.request_id = NOTICE_ID
        self.listener: Callable[[], None] | None = None

    def answered(self, _answer: Answer) -> None:
        self._lines.noticed()
        if self.listener is not None:
            self.listener()

    def worker_lost(self, _worker: Role) -> None:
        """A notice has no request that could fail."""
