"""Payload buffers in shared memory: a buddy allocator whose books only its owner keeps, over bytes that all
may read.

Sizes are powers of two from `smallest_bytes` up; a block lies at a multiple of its size, so the buddy of the
block at position p is at p XOR size, and two free buddies merge into the block above. Worked example,
smallest 16 KiB, 64 KiB in all:

    take(10 KiB)   64 → 32 + 32 → 16 + 16      taken [0, 16)    free [16, 32) [32, 64)
    take(20 KiB)                               taken [32, 64)   free [16, 32)
    give both                                  after merging    free [0, 64)

Merging at once would split again at the next take, and most takes are of one size. So each size keeps a
*stock* of blocks just given back, unmerged, last in first out: the next take gets the block that is still in
the cache, for the price of two list operations. In a large pool it is deep enough for all connections that
are ready in one turn: each holds a block, and all are given back together (decision 0055). What exceeds the
stock merges at once; when a take finds nothing, the stocks are merged and it looks again. Every block given
back pays for at most one merge chain, so no pattern of requests makes takes slow.

Blocks of a megabyte and more keep their pages until `trim`, which gives the pages of every such free block
back to the system; the owner calls it when it has time.

A block that is to hold a frame still being received (`partial=True`) must leave `reserve_bytes` free: many
half-sent large requests cannot take what is needed to finish the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from appliance.ipc.errors import PoolCorrupt

SMALLEST_BYTES: Final = 16 * 1024
TRIM_FROM_BYTES: Final = 1024 * 1024
# A stock has this part of the pool at most, and room for so many blocks at least.
STOCK_PART: Final = 32
STOCK_BLOCKS: Final = 32

Discard = Callable[[int, int], None]


class Block:
    """A piece of the pool: bytes [position, position + size_bytes), `view` is them.

    `references` is the owner's count: 1 when taken; the owner adds one for each further holder and gives the
    block once for each. Only position and size travel to other processes.
    """

    __slots__ = ("position", "references", "size_bytes", "touched", "view")

    def __init__(self, position: int, size_bytes: int, view: memoryview) -> None:
        self.position = position
        self.size_bytes = size_bytes
        self.view = view
        self.references = 0
        self.touched = False

    def __repr__(self) -> str:
        return f"Block({self.position}+{self.size_bytes}, references={self.references})"


@dataclass(frozen=True, slots=True)
class BufferPoolStatistics:
    """`touched_free_bytes` is what `trim` could give back; `refused` counts takes that found nothing."""

    size_bytes: int
    free_bytes: int
    taken_blocks: int
    stocked_blocks: int
    largest_free_bytes: int
    touched_free_bytes: int
    refused: int


class BufferPool:
    """The owner's books over `view`.

    Args:
        view: the pool's memory; a multiple of `smallest_bytes` long.
        smallest_bytes: the least block, a power of two.
        reserve_bytes: what takes with `partial=True` must leave free.
        discard: gives (position, length_bytes) of `view` back to the system, see `Region.discard`; None:
            never.
    """

    __slots__ = (
        "_discard",
        "_free",
        "_free_bytes",
        "_refused",
        "_shift",
        "_stock_blocks",
        "_stocks",
        "_taken",
        "_view",
        "reserve_bytes",
        "size_bytes",
        "smallest_bytes",
    )

    def __init__(
        self,
        view: memoryview,
        *,
        smallest_bytes: int = SMALLEST_BYTES,
        reserve_bytes: int = 0,
        discard: Discard | None = None,
    ) -> None:
        if smallest_bytes < 1 or smallest_bytes & (smallest_bytes - 1):
            raise ValueError(f"the least block is a power of two, not {smallest_bytes}")
        if not len(view) or len(view) % smallest_bytes:
            raise ValueError(f"a pool of {len(view)} bytes is no multiple of {smallest_bytes}")
        self.size_bytes = len(view)
        self.smallest_bytes = smallest_bytes
        self.reserve_bytes = reserve_bytes
        self._view = view
        self._discard = discard
        self._shift = smallest_bytes.bit_length() - 1
        orders = (self.size_bytes >> self._shift).bit_length()
        # Order k holds blocks of smallest_bytes << k. Merged blocks by position, so that a buddy is one
        # look-up away.
        self._free: list[dict[int, Block]] = [{} for _ in range(orders)]
        self._stocks: list[list[Block]] = [[] for _ in range(orders)]
        self._stock_blocks = [
            max(STOCK_BLOCKS, self.size_bytes // STOCK_PART // (smallest_bytes << order))
            for order in range(orders)
        ]
        self._taken: dict[int, Block] = {}
        self._free_bytes = self.size_bytes
        self._refused = 0
        position = 0
        for order in reversed(range(orders)):
            size_bytes = smallest_bytes << order
            if self.size_bytes & size_bytes:
                self._free[order][position] = self._block(position, size_bytes)
                position += size_bytes

    def take(self, size_bytes: int, *, partial: bool = False) -> Block | None:
        """A block of at least `size_bytes`, or None when there is none (stop reading the socket, ask again
        later).

        About 0.5 µs when a block of the size was given back before. With `partial`, None also when fewer than
        `reserve_bytes` would stay free.
        """
        order = ((size_bytes - 1) >> self._shift).bit_length() if size_bytes > 1 else 0
        if partial and self._free_bytes - (self.smallest_bytes << order) < self.reserve_bytes:
            self._refused += 1
            return None
        try:
            block = self._stocks[order].pop()
        except IndexError:
            found = self._split_for(order)
            if found is None:
                self._refused += 1
                return None
            block = found
        block.references = 1
        self._taken[block.position] = block
        self._free_bytes -= block.size_bytes
        return block

    def give(self, block: Block) -> None:
        """Drops one reference; the last one makes the block free.

        Raises:
            PoolCorrupt: the block is free already.
        """
        if block.references != 1:
            if block.references < 1:
                raise PoolCorrupt(f"{block} was given back twice")
            block.references -= 1
            return
        block.references = 0
        del self._taken[block.position]
        self._free_bytes += block.size_bytes
        block.touched = True
        order = (block.size_bytes >> self._shift).bit_length() - 1
        stock = self._stocks[order]
        if len(stock) < self._stock_blocks[order]:
            stock.append(block)
        else:
            self._merge(block, order)

    def free_bytes(self) -> int:
        return self._free_bytes

    def fits(self, size_bytes: int) -> bool:
        """Whether a block of `size_bytes` could exist in an empty pool."""
        return size_bytes <= self.largest_bytes

    @property
    def largest_bytes(self) -> int:
        """The size of the largest block that could exist in an empty pool."""
        return self.smallest_bytes << (len(self._free) - 1)

    def trim(self) -> int:
        """Merges what is free and gives blocks of a megabyte and more back to the system; how many bytes."""
        self._merge_stocks()
        if self._discard is None:
            return 0
        returned = 0
        for blocks in self._free:
            for block in blocks.values():
                if block.touched and block.size_bytes >= TRIM_FROM_BYTES:
                    self._discard(block.position, block.size_bytes)
                    block.touched = False
                    returned += block.size_bytes
        return returned

    def statistics(self) -> BufferPoolStatistics:
        free = self._free_blocks()
        return BufferPoolStatistics(
            size_bytes=self.size_bytes,
            free_bytes=self._free_bytes,
            taken_blocks=len(self._taken),
            stocked_blocks=sum(len(stock) for stock in self._stocks),
            largest_free_bytes=max((block.size_bytes for block in free), default=0),
            touched_free_bytes=sum(block.size_bytes for block in free if block.touched),
            refused=self._refused,
        )

    def check(self) -> None:
        """Raises PoolCorrupt unless taken and free blocks cover the pool exactly once. O(n log n)."""
        free = self._free_blocks()
        if any(block.references for block in free) or any(b.references < 1 for b in self._taken.values()):
            raise PoolCorrupt("a free block has references, or a taken one has none")
        if sum(block.size_bytes for block in free) != self._free_bytes:
            raise PoolCorrupt(f"free blocks do not add up to {self._free_bytes}")
        position = 0
        for block in sorted([*free, *self._taken.values()], key=lambda block: block.position):
            if block.position != position or block.position % block.size_bytes:
                raise PoolCorrupt(f"{block} follows byte {position}")
            position += block.size_bytes
        if position != self.size_bytes:
            raise PoolCorrupt(f"blocks end at {position} of {self.size_bytes}")
        for order, blocks in enumerate(self._free):
            size_bytes = self.smallest_bytes << order
            if any(position ^ size_bytes in blocks for position in blocks):
                raise PoolCorrupt(f"two free buddies of {size_bytes} are not merged")

    def _free_blocks(self) -> list[Block]:
        merged = [block for blocks in self._free for block in blocks.values()]
        return merged + [block for stock in self._stocks for block in stock]

    def _block(self, position: int, size_bytes: int) -> Block:
        return Block(position, size_bytes, self._view[position : position + size_bytes])

    def _split_for(self, order: int) -> Block | None:
        """A block of `order` cut from the least free one that is large enough, after merging if there is
        none.
        """
        if order >= len(self._free) or self._free_bytes < self.smallest_bytes << order:
            return None
        found = self._least_from(order)
        if found == len(self._free):
            self._merge_stocks()
            found = self._least_from(order)
            if found == len(self._free):
                return None
        _, block = self._free[found].popitem()
        while found > order:
            found -= 1
            half_bytes = block.size_bytes >> 1
            upper = self._block(block.position + half_bytes, half_bytes)
            lower = self._block(block.position, half_bytes)
            upper.touched = lower.touched = block.touched
            self._free[found][upper.position] = upper
            block = lower
        return block

    def _least_from(self, order: int) -> int:
        while order < len(self._free) and not self._free[order]:
            order += 1
        return order

    def _merge(self, block: Block, order: int) -> None:
        while (buddy := self._free[order].pop(block.position ^ block.size_bytes, None)) is not None:
            touched = block.touched or buddy.touched
            block = self._block(min(block.position, buddy.position), block.size_bytes << 1)
            block.touched = touched
            order += 1
        self._free[order][block.position] = block

    def _merge_stocks(self) -> None:
        for order, stock in enumerate(self._stocks):
            while stock:
                self._merge(stock.pop(), order)
