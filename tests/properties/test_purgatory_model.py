"""The purgatory against a naive list: every operation leaves exactly once, by the first thing that ends it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from appliance.delayed.delayed_operation import DelayedAnswer, DelayedFetch
from appliance.delayed.purgatory import Purgatory

Operation = DelayedFetch | DelayedAnswer

ROWS = st.integers(0, 5)
POSITIONS = st.integers(0, 8)


@dataclass
class Naive:
    """One who waits, with everything it has heard since."""

    operation: Operation
    due_ms: int
    reached: dict[int, int] = field(default_factory=dict)
    appended_bytes: int = 0

    def is_done(self) -> bool:
        watches = self.operation.watches
        if isinstance(self.operation, DelayedFetch):
            passed = any(position > watches[row] for row, position in self.reached.items())
            return passed and self.appended_bytes >= self.operation.needed_bytes
        return False


class PurgatoryModel(RuleBasedStateMachine):
    @initialize()
    def make(self) -> None:
        self.now_ms = 1_000
        self.purgatory: Purgatory[Operation] = Purgatory(self.now_ms)
        self.waiting: dict[int, Naive] = {}
        self.left: list[int] = []
        self.number = 0

    @rule(
        is_answer=st.booleans(),
        watches=st.dictionaries(ROWS, POSITIONS, min_size=1, max_size=4),
        needed_bytes=st.integers(1, 30),
        delay_ms=st.integers(-5, 1_000),
    )
    def wait(self, is_answer: bool, watches: dict[int, int], needed_bytes: int, delay_ms: int) -> None:
        self.number += 1
        operation: Operation = DelayedFetch(self.number, watches, needed_bytes)
        if is_answer:
            operation = DelayedAnswer(self.number)
        due_ms = self.now_ms + delay_ms
        self.purgatory.wait(operation, due_ms)
        self.waiting[self.number] = Naive(operation, due_ms)

    @rule(row=ROWS, position=POSITIONS, appended_bytes=st.integers(0, 20))
    def poke(self, row: int, position: int, appended_bytes: int) -> None:
        done = []
        for naive in self.waiting.values():
            if row in naive.operation.watches:
                naive.reached[row] = max(naive.reached.get(row, -1), position)
                naive.appended_bytes += appended_bytes
                if naive.is_done():
                    done.append(naive.operation.key)
        self._expect(done, self.purgatory.poke(row, position, appended_bytes))

    @rule(step_ms=st.integers(0, 500))
    def pass_time(self, step_ms: int) -> None:
        self.now_ms += step_ms
        due = sorted((n for n in self.waiting.values() if n.due_ms <= self.now_ms), key=lambda n: n.due_ms)
        expired = self.purgatory.expire(self.now_ms)
        assert [self.waiting[o.key].due_ms for o in expired] == [naive.due_ms for naive in due]
        self._expect([naive.operation.key for naive in due], expired)

    @rule(key=st.integers(1, 40), by_caller=st.booleans())
    def cancel_or_satisfy(self, key: int, by_caller: bool) -> None:
        ended = self.purgatory.satisfy(key) if by_caller else self.purgatory.cancel(key)
        expected = self.waiting.get(key)
        assert ended is (expected.operation if expected else None)
        self._expect([key] if expected else [], [ended] if ended else [])

    def _expect(self, keys: list[int], operations: list[Operation]) -> None:
        assert sorted(operation.key for operation in operations) == sorted(keys)
        for key in keys:
            del self.waiting[key]
            assert key not in self.left
            self.left.append(key)

    @invariant()
    def both_hold_the_same(self) -> None:
        self.purgatory.check()
        assert [operation.key for operation in self.purgatory.operations()] == list(self.waiting)
        statistics = self.purgatory.statistics()
        assert statistics.waiting == len(self.waiting)
        assert statistics.satisfied + statistics.expired + statistics.cancelled == len(self.left)
        for row in range(6):
            watching = sum(row in naive.operation.watches for naive in self.waiting.values())
            assert self.purgatory.watchers(row) == watching
        assert set(self.purgatory.watched_keys()) == {
            r for n in self.waiting.values() for r in n.operation.watches
        }


TestPurgatoryModel = PurgatoryModel.TestCase
TestPurgatoryModel.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
