"""A ring against a queue, for any order of puts, publications, drains and deaths of either end."""

from __future__ import annotations

from collections import deque
from struct import Struct

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from appliance.ipc.ring import RingReader, RingWriter, ring_size_bytes

MESSAGE = Struct("<QqIB")


class RingModel(RuleBasedStateMachine):
    @initialize(order=st.integers(0, 5))
    def make(self, order: int) -> None:
        self.slots = 1 << order
        self.view = memoryview(bytearray(ring_size_bytes(self.slots)))
        self.writer = RingWriter(self.view, MESSAGE)
        self.reader = RingReader(self.view, MESSAGE)
        self.unpublished: list[tuple[int, int, int, int]] = []
        self.published: deque[tuple[int, int, int, int]] = deque()
        self.taken = 0

    @rule(
        messages=st.lists(
            st.tuples(
                st.integers(0, 2**64 - 1),
                st.integers(-(2**63), 2**63 - 1),
                st.integers(0, 2**32 - 1),
                st.integers(0, 255),
            ),
            max_size=12,
        )
    )
    def put(self, messages: list[tuple[int, int, int, int]]) -> None:
        for message in messages:
            fits = len(self.unpublished) + len(self.published) < self.slots
            assert self.writer.put(*message) == fits
            if fits:
                self.unpublished.append(message)

    @rule()
    def publish(self) -> None:
        self.writer.publish()
        self.published += self.unpublished
        self.unpublished = []

    @rule(limit=st.integers(1, 40))
    def drain(self, limit: int) -> None:
        expected = [self.published.popleft() for _ in range(min(limit, len(self.published)))]
        assert self.reader.drain(limit) == expected
        self.taken += len(expected)

    @rule()
    def writer_dies(self) -> None:
        self.writer = RingWriter(self.view, MESSAGE)
        self.unpublished = []

    @rule()
    def reader_dies(self) -> None:
        self.reader = RingReader(self.view, MESSAGE)

    @invariant()
    def both_sides_agree_with_the_queue(self) -> None:
        self.writer.check()
        assert self.reader.is_empty() == (not self.published)
        assert self.reader.depth() == self.writer.depth() == len(self.published)
        assert self.writer.unpublished() == len(self.unpublished)
        assert self.writer.free_slots() == self.slots - len(self.published) - len(self.unpublished)
        assert self.reader.statistics().taken == self.taken


TestRingModel = RingModel.TestCase
TestRingModel.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
