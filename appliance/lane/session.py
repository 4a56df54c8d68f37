"""A client's session over a lane. State only, and all of it in our own memory: the lane's words are claims."""

from __future__ import annotations

import mmap
from collections import deque
from socket import SocketType
from typing import Final

from appliance.channels.connection_channel import Assignment
from appliance.lane.layout import Layout
from appliance.requests.answer import FilePiece, Piece
from appliance.requests.session import Session

NUMBERS_FROM: Final = 1 << 29
"""A TCP connection's number is its descriptor, which is below; a ZeroMQ session's is above."""

Sent = bytes | memoryview | FilePiece


class Guest:
    """A client that has not said hello."""

    __slots__ = ("assignment", "deadline_ns", "sock")

    def __init__(self, assignment: Assignment, sock: SocketType, deadline_ns: int) -> None:
        self.assignment = assignment
        self.sock = sock
        self.deadline_ns = deadline_ns


class LaneSession(Session):
    """A session over a lane.

    Args:
        sock: the Unix socket: the client's life, and how it is woken.
        bell: the eventfd that the client rings.
        memory: the lane's memory.
    """

    __slots__ = (
        "answer_head",
        "answer_tail",
        "answers_begin",
        "answers_end",
        "area",
        "bell",
        "empty_rings",
        "is_deaf",
        "memory",
        "out",
        "owed_bytes",
        "parts",
        "pid",
        "request_head",
        "sock",
        "uid",
        "view",
        "words",
    )

    def __init__(
        self,
        sock: SocketType,
        bell: int,
        memory: mmap.mmap,
        layout: Layout,
        *,
        principal: str,
        connection_id: int,
        number: int,
        slot: int,
        listener: str,
        host: str,
        pid: int,
        uid: int,
        now_ns: int,
    ) -> None:
        super().__init__(
            connection_id=connection_id,
            number=number,
            slot=slot,
            listener=listener,
            peer_host=host,
            peer_port=pid,
            now_ns=now_ns,
            told_host=None,
        )
        self.principal = principal
        self.sock = sock
        self.bell = bell
        self.memory = memory
        self.view = memoryview(memory)
        self.words = self.view[:4096].cast("Q")
        self.area = self.view[layout.answers : layout.answers + layout.area_bytes]
        self.pid = pid
        self.uid = uid
        self.request_head = 0
        self.answer_tail = 0
        self.answer_head = 0
        # Bytes of the area of answers, counted since the beginning: [begin, end) may be read by the client.
        self.answers_begin = 0
        self.answers_end = 0
        self.parts: deque[int] = deque()  # the sizes of the parts in the ring
        self.out: list[Sent] = []  # what leaves next is the last
        self.owed_bytes = 0
        self.empty_rings = 0
        self.is_deaf = False

    def collect(self) -> bool:
        """Move the answer at the head of the queue into `out`; return whether there was one."""
        queue = self.queue
        if queue is None or (answer := queue[0].answer) is None:
            return False
        if len(queue) == 1:
            self.queue = None
        else:
            del queue[0]
        self.out.extend(reversed(answer))
        return True

    def abandon(self) -> None:
        """Release the segments that answers would have been sent from."""
        _release(self.out)
        self.out = []
        for request in self.queue or ():
            _release(request.answer or [])

    def let_go(self) -> None:
        """Let go of the views of the memory."""
        self.words.release()
        self.area.release()
        self.view.release()

    def __str__(self) -> str:
        name = f" ({self.client_id})" if self.client_id else ""
        return f"lane {self.connection_id} of {self.principal}, process {self.pid}{name}"


def _release(pieces: list[Sent] | list[Piece]) -> None:
    for piece in pieces:
        if isinstance(piece, FilePiece):
            piece.file.release()
