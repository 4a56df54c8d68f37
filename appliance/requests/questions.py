"""Questions to the controller on a client's behalf: each is answered once, or given up at its deadline.

Bounded: at most QUESTIONS_MAX wait at once; one more is answered as if its time were up.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.channels.control_channel import Body
from appliance.channels.controller_link import ControllerLink
from appliance.ipc.agent import Timer, Timers

QUESTIONS_MAX = 4096
# An answer may be as costly as a list of every topic; sockets are looked at between these many.
ANSWERS_AT_ONCE = 16

Done = Callable[[Body | None], None]


class PendingRequest:
    """One that waits: `done` is called once, with None where no answer came in time."""

    __slots__ = ("done", "identity", "timer")

    def __init__(self, done: Done) -> None:
        self.done = done
        self.identity: int | None = None
        self.timer: Timer | None = None


class ControllerRequests:
    """What this process waits to hear from the controller."""

    __slots__ = ("_link", "_timers", "_waiting")

    def __init__(self, link: ControllerLink, timers: Timers) -> None:
        self._link = link
        self._timers = timers
        self._waiting: dict[int, PendingRequest] = {}

    def ask(self, body: Body, *, due_ns: int, done: Done) -> PendingRequest | None:
        """Asks; None where `done` has been called already, because too many wait or the controller does not read."""
        identity = self._link.ask(body) if len(self._waiting) < QUESTIONS_MAX else None
        if identity is None:
            done(None)
            return None
        question = self._waiting[identity] = PendingRequest(done)
        question.identity = identity
        question.timer = self._timers.add(due_ns, lambda: self._finish(question, None))
        return question

    def forget(self, question: PendingRequest) -> None:
        """Nobody waits for the answer any more."""
        if question.identity is not None and self._waiting.pop(question.identity, None) is not None:
            self._cancel(question)

    def take_answers(self) -> bool:
        """Delivers what the controller answered, some of it in each turn of the cycle; whether it did."""
        envelopes = self._link.receive(ANSWERS_AT_ONCE)
        for envelope in envelopes:
            question = self._waiting.get(envelope.id)
            if question is not None:  # else it was given up or forgotten
                self._finish(question, envelope.body)
        return bool(envelopes)

    def controller_down(self) -> None:
        """The controller died with what it was asked: nobody knows what became of it, and nobody waits longer."""
        for question in list(self._waiting.values()):
            self._finish(question, None)

    def _finish(self, question: PendingRequest, answer: Body | None) -> None:
        if question.identity is not None:
            self._waiting.pop(question.identity, None)
        self._cancel(question)
        question.done(answer)

    @staticmethod
    def _cancel(question: PendingRequest) -> None:
        timer, question.timer = question.timer, None
        if timer is not None:
            timer.cancel()

    def statistics(self) -> dict[str, int]:
        return {"waiting": len(self._waiting)}
