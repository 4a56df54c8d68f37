"""Questions to the controller on a client's behalf: asked in order, answered or given up by a deadline.

Bounded: at most QUESTIONS_MAX wait at once; one more is answered as if its time were up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.channels.control_channel import Body, Envelope
from appliance.channels.controller_link import ControllerLink
from appliance.clock import Clock
from appliance.ipc.agent import Timer, Timers
from appliance.netproc.local_handlers.view import AskController

QUESTIONS_MAX = 4096
# An answer may be as dear as a list of every topic; sockets are looked at between these many.
ANSWERS_AT_ONCE = 16
_NS_PER_MS = 1_000_000

Done = Callable[[Any], None]


class _Question:
    __slots__ = ("answers", "ask", "done", "timer")

    def __init__(self, ask: AskController, done: Done) -> None:
        self.ask = ask
        self.done = done
        self.answers: list[Body | None] = []
        self.timer: Timer | None = None


class Questions:
    """What this process waits to hear from the controller."""

    __slots__ = ("_clock", "_link", "_timers", "_waiting")

    def __init__(self, link: ControllerLink, timers: Timers, clock: Clock) -> None:
        self._link = link
        self._timers = timers
        self._clock = clock
        self._waiting: dict[int, _Question] = {}

    def ask(self, ask: AskController, done: Done) -> None:
        """Asks; `done` gets the response exactly once, now or later."""
        question = _Question(ask, done)
        if len(self._waiting) >= QUESTIONS_MAX:
            self._finish(question)
            return
        due_ns = self._clock.monotonic_ns() + ask.timeout_ms * _NS_PER_MS
        question.timer = self._timers.add(due_ns, lambda: self._give_up(question))
        self._ask_next(question)

    def take_answers(self) -> bool:
        """Delivers what the controller answered, some of it in each turn of the cycle; whether it did."""
        envelopes = self._link.receive(ANSWERS_AT_ONCE)
        for envelope in envelopes:
            self._answered(envelope)
        return bool(envelopes)

    def controller_down(self) -> None:
        """The controller died with what it was asked: nobody knows what became of it, and nobody waits longer."""
        waiting, self._waiting = self._waiting, {}
        for question in waiting.values():
            self._finish(question)

    def _answered(self, envelope: Envelope) -> None:
        question = self._waiting.pop(envelope.id, None)
        if question is None:
            return  # given up before
        question.answers.append(envelope.body)
        if len(question.answers) < len(question.ask.bodies):
            self._ask_next(question)
        else:
            self._finish(question)

    def _ask_next(self, question: _Question) -> None:
        identity = self._link.ask(question.ask.bodies[len(question.answers)])
        if identity is None:
            self._finish(question)
        else:
            self._waiting[identity] = question

    def _give_up(self, question: _Question) -> None:
        question.timer = None
        for identity, waiting in list(self._waiting.items()):
            if waiting is question:
                del self._waiting[identity]
                self._finish(question)

    def _finish(self, question: _Question) -> None:
        if question.timer is not None:
            question.timer.cancel()
        missing = len(question.ask.bodies) - len(question.answers)
        question.done(question.ask.then((*question.answers, *([None] * missing))))

    def statistics(self) -> dict[str, int]:
        return {"waiting": len(self._waiting)}
