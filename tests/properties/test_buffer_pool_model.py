"""A buffer pool against a list of intervals, for any order of takes, gives and trims."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from appliance.ipc.buffer_pool import TRIM_FROM_BYTES, Block, BufferPool

SMALLEST_BYTES = 64 * 1024


def rounded(size_bytes: int) -> int:
    size = SMALLEST_BYTES
    while size < size_bytes:
        size *= 2
    return size


def largest_hole(size_bytes: int, taken: list[Block]) -> int:
    """The largest power of two that lies aligned in bytes which nobody holds: what a perfect pool could give."""
    order = SMALLEST_BYTES
    best = 0
    while order <= size_bytes:
        for start in range(0, size_bytes - order + 1, order):
            if all(b.position + b.size_bytes <= start or start + order <= b.position for b in taken):
                best = order
                break
        order *= 2
    return best


class BufferPoolModel(RuleBasedStateMachine):
    blocks = Bundle("blocks")

    @initialize(units=st.integers(1, 70), reserve_units=st.integers(0, 8))
    def make(self, units: int, reserve_units: int) -> None:
        self.size_bytes = units * SMALLEST_BYTES
        self.discarded: list[tuple[int, int]] = []
        self.pool = BufferPool(
            memoryview(bytearray(self.size_bytes)),
            smallest_bytes=SMALLEST_BYTES,
            reserve_bytes=reserve_units * SMALLEST_BYTES,
            discard=lambda position, length_bytes: self.discarded.append((position, length_bytes)),
        )
        self.taken: list[Block] = []

    @rule(target=blocks, size_bytes=st.integers(0, 40 * SMALLEST_BYTES), partial=st.booleans())
    def take(self, size_bytes: int, partial: bool) -> object:
        size = rounded(size_bytes)
        free_bytes = self.pool.free_bytes()
        block = self.pool.take(size_bytes, partial=partial)
        if block is None:
            starved = partial and free_bytes - size < self.pool.reserve_bytes
            assert starved or largest_hole(self.size_bytes, self.taken) < size
            return multiple()
        assert block.size_bytes == size == len(block.view)
        assert block.references == 1
        if partial:
            assert self.pool.free_bytes() >= self.pool.reserve_bytes
        self.taken.append(block)
        return block

    @rule(block=consumes(blocks))
    def give(self, block: Block) -> None:
        self.taken.remove(block)
        self.pool.give(block)

    @rule(block=blocks)
    def hold_and_let_go(self, block: Block) -> None:
        free_bytes = self.pool.free_bytes()
        block.references += 1
        self.pool.give(block)
        assert self.pool.free_bytes() == free_bytes

    @rule()
    def trim(self) -> None:
        self.discarded.clear()
        returned = self.pool.trim()
        assert returned == sum(length for _, length in self.discarded)
        for position, length_bytes in self.discarded:
            assert length_bytes >= TRIM_FROM_BYTES
            assert all(
                position + length_bytes <= b.position or b.position + b.size_bytes <= position
                for b in self.taken
            )
        assert self.pool.statistics().largest_free_bytes == largest_hole(self.size_bytes, self.taken)

    @invariant()
    def the_books_are_right(self) -> None:
        self.pool.check()
        assert self.pool.free_bytes() == self.size_bytes - sum(block.size_bytes for block in self.taken)
        assert self.pool.statistics().taken_blocks == len(self.taken)


TestBufferPoolModel = BufferPoolModel.TestCase
TestBufferPoolModel.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
