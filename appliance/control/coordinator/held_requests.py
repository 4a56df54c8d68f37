"""Requests of transactional ids that wait until their id is settled, HELD_MS at most, and are then served again.

hold ─→ the id is settled    ─→ served again in the next turn
     ├→ producer ids arrive  ─→ all are served again in the next turn
     └→ HELD_MS are over     ─→ served again: what it meets now is its answer
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from appliance.clock import NS_PER_MS, Clock

HELD_MS: Final = 20
HELD_MAX: Final = 10_000


class _Held:
    """A request that is served again when the id is settled, or its time is over."""

    __slots__ = ("again", "due_ns", "is_over", "transactional_id")

    def __init__(self, transactional_id: str, due_ns: int, again: Callable[[], None]) -> None:
        self.transactional_id = transactional_id
        self.due_ns = due_ns
        self.again = again
        self.is_over = False


class HeldRequests:
    """Args:
    later: (delay ms, action) → the action is called then.
    """

    __slots__ = ("_by_time", "_clock", "_count", "_held", "_is_armed", "_later", "_ready")

    def __init__(self, later: Callable[[int, Callable[[], None]], object], clock: Clock) -> None:
        self._later = later
        self._clock = clock
        # By id, in the order in which they came; and all of them in the order in which their time ends.
        self._held: dict[str, list[_Held]] = {}
        self._by_time: deque[_Held] = deque()
        self._count = 0
        self._is_armed = False
        self._ready: deque[_Held] = deque()

    def __len__(self) -> int:
        return self._count

    def until_ns(self) -> int:
        """Return until when a request that comes now is held at most."""
        return self._clock.monotonic_ns() + HELD_MS * NS_PER_MS

    def hold(self, name: str, until_ns: int, serve: Callable[[int], None]) -> bool:
        """Serve a request again when its id is settled, or its time is over. False: it is over already."""
        if self._count >= HELD_MAX or self._clock.monotonic_ns() >= until_ns:
            return False
        held = _Held(name, until_ns, lambda: serve(until_ns))
        self._held.setdefault(name, []).append(held)
        self._by_time.append(held)
        self._count += 1
        self._arm()
        return True

    def settled(self, name: str) -> None:
        """The id takes requests again. They are served in `turn`, because its transition is still ending."""
        self._ready.extend(self._held.pop(name, ()))

    def refilled(self) -> None:
        """There are producer ids again."""
        for held in self._held.values():
            self._ready.extend(held)
        self._held.clear()

    @property
    def has_work(self) -> bool:
        """Whether `turn` has something to do."""
        return bool(self._ready)

    def turn(self) -> None:
        """Serve the held requests whose ids are settled."""
        for _ in range(len(self._ready)):
            held = self._ready.popleft()
            if not held.is_over:
                self._begin_again(held)

    def _begin_again(self, held: _Held) -> None:
        held.is_over = True
        self._count -= 1
        held.again()

    def _arm(self) -> None:
        if not self._is_armed and self._by_time:
            self._is_armed = True
            left_ns = self._by_time[0].due_ns - self._clock.monotonic_ns()
            self._later(max(1, -(-left_ns // NS_PER_MS)), self._times_over)

    def _times_over(self) -> None:
        """Serve those whose time is over."""
        self._is_armed = False
        now_ns = self._clock.monotonic_ns()
        by_time = self._by_time
        while by_time and (by_time[0].is_over or by_time[0].due_ns <= now_ns):
            held = by_time.popleft()
            if held.is_over:
                continue
            of_id = self._held.get(held.transactional_id)
            if of_id is not None and held in of_id:
                of_id.remove(held)
                if not of_id:
                    del self._held[held.transactional_id]
            self._begin_again(held)
        self._arm()
