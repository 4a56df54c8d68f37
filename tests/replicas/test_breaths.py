"""Long work lets others have their turns by time, however long one piece of it takes."""

from __future__ import annotations

from appliance.clock import ManualClock
from appliance.replicas.breaths import EVERY_MS, Breaths


class Work:
    """Pieces of so many ms each, and turns of so many ms between them."""

    def __init__(self, *, turn_ms: int) -> None:
        self.clock = ManualClock()
        self.turn_ms = turn_ms
        self.turns_at_ms: list[int] = []
        self.breaths = Breaths(self._turn, self.clock)

    def _turn(self) -> None:
        self.turns_at_ms.append(self.clock.monotonic_ns() // 1_000_000)
        self.clock.advance(self.turn_ms)

    def do(self, pieces: int, *, piece_ms: int) -> None:
        for _ in range(pieces):
            self.breaths.take()
            self.clock.advance(piece_ms)


def test_after_a_long_piece_there_is_a_turn() -> None:
    work = Work(turn_ms=0)
    work.do(10, piece_ms=3 * EVERY_MS)
    assert work.turns_at_ms == [n * 3 * EVERY_MS for n in range(10)]


def test_short_pieces_are_not_parted_by_a_turn_each() -> None:
    work = Work(turn_ms=0)
    work.do(5 * EVERY_MS, piece_ms=1)
    assert work.turns_at_ms == [n * EVERY_MS for n in range(5)]


def test_long_turns_leave_the_work_half_of_the_time() -> None:
    work = Work(turn_ms=100)
    work.do(300, piece_ms=1)
    assert work.turns_at_ms == [n * (100 + 100) for n in range(3)]
