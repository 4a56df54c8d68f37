from __future__ import annotations

import pytest

from appliance.ipc.buffer_pool import STOCK_BLOCKS, STOCK_PART, Block, BufferPool
from appliance.ipc.errors import PoolCorrupt

from .conftest import MakeRegion

KIB = 1024
MIB = 1024 * KIB


def pool(size_bytes: int = MIB, *, reserve_bytes: int = 0) -> BufferPool:
    return BufferPool(memoryview(bytearray(size_bytes)), reserve_bytes=reserve_bytes)


def take(from_pool: BufferPool, size_bytes: int, *, partial: bool = False) -> Block:
    block = from_pool.take(size_bytes, partial=partial)
    assert block is not None
    return block


@pytest.mark.parametrize(
    ("asked", "got"),
    [(0, 16), (1, 16), (16 * KIB, 16), (16 * KIB + 1, 32), (33 * KIB, 64), (513 * KIB, 1024), (MIB, 1024)],
)
def test_a_block_is_the_next_power_of_two(asked: int, got: int) -> None:
    block = take(pool(), asked)
    assert block.size_bytes == len(block.view) == got * KIB
    assert block.position % block.size_bytes == 0


def test_blocks_are_different_bytes_of_the_pool() -> None:
    view = memoryview(bytearray(256 * KIB))
    full = BufferPool(view)
    blocks = [take(full, 16 * KIB) for _ in range(16)]
    assert full.take(1) is None
    for number, block in enumerate(blocks):
        block.view[:] = bytes([number]) * block.size_bytes
    for number, block in enumerate(blocks):
        assert view[block.position] == view[block.position + block.size_bytes - 1] == number
    full.check()


def test_the_block_given_back_last_is_taken_first() -> None:
    some = pool()
    first, second = take(some, 16 * KIB), take(some, 16 * KIB)
    some.give(first)
    some.give(second)
    assert take(some, 16 * KIB) is second


def test_small_blocks_given_back_make_large_ones_again() -> None:
    some = pool(MIB)
    blocks = [take(some, 16 * KIB) for _ in range(64)]
    assert some.take(1) is None
    for block in blocks:
        some.give(block)
    assert some.statistics().stocked_blocks == STOCK_BLOCKS
    assert take(some, MIB).size_bytes == MIB
    some.check()


def test_blocks_of_all_that_were_ready_at_once_are_kept_whole_in_a_large_pool() -> None:
    large = pool(64 * MIB)
    wide = 64 * MIB // STOCK_PART // (16 * KIB)
    assert wide > STOCK_BLOCKS
    blocks = [take(large, 16 * KIB) for _ in range(wide)]
    for block in blocks:
        large.give(block)
    assert large.statistics().stocked_blocks == wide
    assert [take(large, 16 * KIB) for _ in range(wide)] == blocks[::-1]
    large.check()


def test_a_request_that_never_fits_is_told_apart_from_one_that_must_wait() -> None:
    some = pool(MIB)
    assert some.take(2 * MIB) is None
    assert not some.fits(2 * MIB)
    assert some.fits(MIB)
    assert some.statistics().refused == 1


def test_a_pool_of_any_multiple_is_used_to_its_end() -> None:
    odd = pool(7 * 16 * KIB)
    assert not odd.fits(128 * KIB)
    blocks = [take(odd, 64 * KIB), take(odd, 32 * KIB), take(odd, 16 * KIB)]
    assert odd.free_bytes() == 0
    odd.check()
    for block in blocks:
        odd.give(block)
    odd.trim()
    odd.check()
    assert odd.statistics().largest_free_bytes == 64 * KIB


def test_a_block_is_free_when_its_last_holder_gives_it() -> None:
    some = pool()
    block = take(some, 16 * KIB)
    block.references += 2
    some.give(block)
    some.give(block)
    assert some.free_bytes() == MIB - 16 * KIB
    some.give(block)
    assert some.free_bytes() == MIB


def test_giving_back_twice_is_noticed() -> None:
    some = pool()
    block = take(some, 16 * KIB)
    some.give(block)
    with pytest.raises(PoolCorrupt, match="twice"):
        some.give(block)


def test_half_received_frames_cannot_take_the_reserve() -> None:
    some = pool(MIB, reserve_bytes=256 * KIB)
    assert some.take(MIB, partial=True) is None
    held = [take(some, 256 * KIB, partial=True) for _ in range(3)]
    assert some.take(16 * KIB, partial=True) is None
    take(some, 256 * KIB)
    assert some.take(1) is None
    some.give(held.pop())
    assert some.take(16 * KIB, partial=True) is None
    assert some.take(16 * KIB) is not None


def test_trim_gives_large_blocks_back_to_the_system(make_region: MakeRegion) -> None:
    region = make_region(8 * MIB)
    some = BufferPool(region.view, discard=region.discard)
    kept = take(some, 16 * KIB)
    kept.view[:] = b"k" * kept.size_bytes
    large = take(some, 4 * MIB)
    large.view[:] = b"x" * large.size_bytes
    assert region.resident_bytes() >= 4 * MIB
    some.give(large)
    assert region.resident_bytes() >= 4 * MIB, "returned lazily, not on the hot path"
    assert some.trim() >= 4 * MIB
    assert region.resident_bytes() <= MIB
    assert some.trim() == 0
    assert kept.view[0] == ord("k")
    some.check()


def test_memory_shrinks_after_many_small_blocks_too(make_region: MakeRegion) -> None:
    region = make_region(4 * MIB)
    some = BufferPool(region.view, discard=region.discard)
    blocks = [take(some, 16 * KIB) for _ in range(256)]
    for block in blocks:
        block.view[:] = b"x" * block.size_bytes
    for block in blocks:
        some.give(block)
    assert region.resident_bytes() == 4 * MIB
    some.trim()
    assert region.resident_bytes() == 0


def test_one_small_block_that_was_used_is_enough_to_return_its_page(make_region: MakeRegion) -> None:
    region = make_region(4 * MIB)
    some = BufferPool(region.view, discard=region.discard)
    block = take(some, 16 * KIB)
    block.view[:] = b"x" * block.size_bytes
    some.give(block)
    some.trim()
    assert region.resident_bytes() == 0


def test_the_rest_of_a_used_block_is_returned_while_a_piece_is_taken_again(make_region: MakeRegion) -> None:
    region = make_region(8 * MIB)
    some = BufferPool(region.view, discard=region.discard)
    whole = take(some, 8 * MIB)
    whole.view[:] = b"x" * whole.size_bytes
    some.give(whole)
    some.give(take(some, 16 * KIB))
    piece = some.take(16 * KIB)
    assert piece is not None
    some.trim()
    assert region.resident_bytes() == MIB, "only the megabyte that the piece lies in"


@pytest.mark.parametrize(("size_bytes", "smallest_bytes"), [(0, 16), (100, 16), (64, 24), (64, 0)])
def test_an_impossible_pool_is_refused(size_bytes: int, smallest_bytes: int) -> None:
    with pytest.raises(ValueError, match=r"pool|block"):
        BufferPool(memoryview(bytearray(size_bytes)), smallest_bytes=smallest_bytes)
