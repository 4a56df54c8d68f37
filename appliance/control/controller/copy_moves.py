"""Moves of followed copies between log directories: handed on to the replica that holds the copy, its answer back.

A network process has no line to replicas, and needs none for what an operator asks for once in a while. Nothing of it
is the controller's: it decides nothing and keeps nothing but who asked.

| event | who asked hears |
|---|---|
| the replica answers | that |
| it is down, dies, or ASKED_MAX wait already | no error code: to ask again does no harm |
| the controller dies | nothing; it sees that by itself |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.channels.control_channel import Body, CopiesMoved, MoveCopies
from appliance.channels.roles import Role, replica_of
from appliance.control.controller.worker_lines import WorkerSessions

ASKED_MAX: Final = 1024
"""Questions that no replica has answered yet."""


class CopyMoves:
    """The questions under way. `answer` sends to (who asked, the number of its question)."""

    __slots__ = ("_answer", "_asked", "_lines")

    def __init__(self, lines: WorkerSessions, *, answer: Callable[[bytes, int, Body], None]) -> None:
        self._lines = lines
        self._answer = answer
        self._asked: dict[int, tuple[Role, bytes, int]] = {}

    def ask(self, sender: bytes, number: int, request: MoveCopies) -> None:
        """Hands a question on."""
        replica = replica_of(request.slot)
        handed_on = None if len(self._asked) >= ASKED_MAX else self._lines.hand_on(replica, request)
        if handed_on is None:
            self._answer(sender, number, CopiesMoved())
        else:
            self._asked[handed_on] = replica, sender, number

    def answered(self, sender: bytes, number: int, answer: CopiesMoved) -> None:
        """A replica has answered; what nobody waits for, or comes from somebody else, is passed over."""
        asked = self._asked.get(number)
        if asked is not None and self._lines.is_from(asked[0], sender):
            del self._asked[number]
            self._answer(asked[1], asked[2], answer)

    def down(self, role: Role) -> None:
        """That process is gone with what it was asked."""
        for number, (replica, sender, question) in list(self._asked.items()):
            if replica is role:
                del self._asked[number]
                self._answer(sender, question, CopiesMoved())

    def statistics(self) -> dict[str, int]:
        """Questions that are not answered."""
        return {"asked": len(self._asked)}
