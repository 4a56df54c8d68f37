"""A purgatory without rings: what an owner of held answers says reaches the real one at once."""

from __future__ import annotations

from appliance.delayed.delayed_operation import DelayedAnswer
from appliance.delayed.held_answers import Deadlines
from appliance.delayed.purgatory import Purgatory

MS = 1_000_000


class InProcessPurgatory:
    """The registrar of one owner. `ring_slots`: how many registrations there is room for; 0 is a full ring.

    While `is_silent`, it hears everything and says nothing, as a process that is stopped and not dead.
    """

    def __init__(self) -> None:
        self.purgatory: Purgatory[DelayedAnswer] | None = Purgatory(0)
        self.ring_slots = 1 << 20
        self.is_silent = False
        self.over: list[tuple[int, bool]] = []

    def register(self, identity: int, due_ns: int) -> bool:
        if self.purgatory is None or not self.ring_slots:
            return False
        self.ring_slots -= 1
        self.purgatory.wait(DelayedAnswer(identity), -(-due_ns // MS))
        return True

    def release(self, identity: int) -> None:
        if self.purgatory is not None and self.purgatory.satisfy(identity) is not None:
            self.over.append((identity, False))

    def publish(self) -> None: ...

    def turn(self, now_ns: int, deadlines: Deadlines) -> None:
        """A round of the purgatory, then one of the owner, as its duty cycle makes it."""
        if self.purgatory is not None:
            self.over += [(each.key, True) for each in self.purgatory.expire(now_ns // MS)]
            if not self.is_silent:
                over, self.over = self.over, []
                deadlines.over(over)
        if deadlines.alarm.due_ns <= now_ns:
            deadlines.turn(now_ns)

    def die(self, deadlines: Deadlines) -> None:
        self.purgatory = None
        self.over = []
        deadlines.purgatory_down()

    def live_again(self, now_ns: int, deadlines: Deadlines) -> None:
        self.purgatory = Purgatory(now_ns // MS)
        self.is_silent = False
        deadlines.purgatory_up(now_ns)
