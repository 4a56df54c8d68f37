"""What leaves a network process by ZeroMQ: answers in order, as far as each client's window is open.

Nothing here blocks: every send says DONTWAIT. A session that cannot be sent to has lost its client, and ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import zmq

from appliance.gateway.frames import MORE, Kind, broker_header
from appliance.gateway.parts import take_part
from appliance.gateway.session import GatewaySession
from appliance.ipc.process_table import BYTES_OUT
from appliance.requests.session import Session

TURN_BYTES: Final = 2 << 20
"""Sent to one session in one turn."""
COPY_BELOW: Final = 64 * 1024
_NOBLOCK: Final = int(zmq.NOBLOCK)
_SEND_MORE: Final = int(zmq.SNDMORE) | _NOBLOCK
# An enum's member is looked up each time that it is named, which is much for each message.
_RESPONSE: Final = int(Kind.RESPONSE)
_LAST_PART: Final = broker_header(Kind.RESPONSE)
"""The header of nearly every answer: it has one part, and no mark."""


class Outgoing:
    """The messages of one network process to its clients.

    Args:
        cells: the counters of the process; see `process_table`.
        say_closed: writes a line about a session that cannot be sent to.
        lost: ends such a session.
    """

    __slots__ = ("_cells", "_lost", "_say_closed", "unsent")

    def __init__(
        self,
        cells: memoryview,
        *,
        say_closed: Callable[[str], None],
        lost: Callable[[GatewaySession], None],
    ) -> None:
        self._cells = cells
        self._say_closed = say_closed
        self._lost = lost
        self.unsent: set[Session] = set()  # what is sent on in the next turn

    def send_answers(self, session: GatewaySession) -> None:
        """Send the answers in order while the window is open.

        Raises:
            StorageFault, OSError: records cannot be read.
        """
        window, left = session.window, TURN_BYTES
        while not session.closed and (session.out or session.collect()):
            if not session.out:
                continue
            if not self.may_send(session):
                return
            if left <= 0:
                self.unsent.add(session)
                return
            pieces = session.out[0]
            frames, size = take_part(pieces)
            mark = window.sent(size)
            header = _LAST_PART
            if mark or pieces:
                header = broker_header(_RESPONSE, flags=MORE if pieces else 0, mark=mark)
            self.put(session, header, *frames)
            if not pieces and not session.closed:
                session.answer_left()
            self._cells[BYTES_OUT] += size
            left -= size

    def may_send(self, session: GatewaySession) -> bool:
        """Return whether the window is open; where the client cannot open it for want of a mark, send one."""
        window = session.window
        if window.is_open:
            return True
        if window.wants_mark:
            self.put(session, broker_header(Kind.CREDIT, mark=window.mark()))
        return False

    def put(self, session: GatewaySession, *frames: bytes | memoryview) -> None:
        """Send a message; a client that is gone has no session any more."""
        door = session.door
        door.is_quiet = False
        router = door.router
        last = len(frames) - 1
        try:
            router.send(session.routing_id, _SEND_MORE)
            for index, frame in enumerate(frames):
                flags = _NOBLOCK if index == last else _SEND_MORE
                router.send(frame, flags, copy=len(frame) < COPY_BELOW)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                self._say_closed(f"{session} ended: it cannot be sent to ({error.strerror})")
            self._lost(session)
