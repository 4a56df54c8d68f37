from __future__ import annotations

from struct import Struct

import pytest

from appliance.ipc.errors import RingCorrupt
from appliance.ipc.ring import (
    HEAD_OFFSET,
    MAGIC_OFFSET,
    SLOTS_OFFSET,
    TAIL_OFFSET,
    RingReader,
    RingWriter,
    ring_size_bytes,
)

PAIR = Struct("<QQ")


def ring(slots: int = 8) -> memoryview:
    return memoryview(bytearray(ring_size_bytes(slots)))


def test_zeros_are_an_empty_ring_and_the_size_tells_the_slots() -> None:
    view = ring(8)
    reader, writer = RingReader(view, PAIR), RingWriter(view, PAIR)
    assert reader.is_empty()
    assert reader.drain() == []
    assert writer.slots == reader.slots == writer.free_slots() == 8


def test_what_was_put_is_unseen_until_published() -> None:
    view = ring()
    writer, reader = RingWriter(view, PAIR), RingReader(view, PAIR)
    assert writer.put(1, 2)
    assert writer.unpublished() == 1
    assert reader.is_empty()
    assert reader.drain() == []
    writer.publish()
    assert not reader.is_empty()
    assert reader.depth() == 1
    assert reader.drain() == [(1, 2)]
    assert reader.is_empty()


def test_order_is_kept_around_the_end() -> None:
    view = ring(4)
    writer, reader = RingWriter(view, PAIR), RingReader(view, PAIR)
    expected = 0
    for start in range(0, 300, 3):
        for number in range(start, start + 3):
            assert writer.put(number, number * 7)
        writer.publish()
        for message in reader.drain():
            assert message == (expected, expected * 7)
            expected += 1
    assert expected == 300


def test_a_full_ring_refuses_and_harms_nothing() -> None:
    view = ring(4)
    writer, reader = RingWriter(view, PAIR), RingReader(view, PAIR)
    assert [writer.put(number, 0) for number in range(5)] == [True, True, True, True, False]
    assert writer.free_slots() == 0
    writer.publish()
    assert [first for first, _ in reader.drain()] == [0, 1, 2, 3]
    assert writer.free_slots() == 4
    assert writer.put(4, 0)


def test_drain_takes_no_more_than_asked() -> None:
    view = ring(8)
    writer, reader = RingWriter(view, PAIR), RingReader(view, PAIR)
    for number in range(8):
        writer.put(number, 0)
    writer.publish()
    assert len(reader.drain(3)) == 3
    assert reader.depth() == 5
    assert not reader.is_empty()
    assert [first for first, _ in reader.drain()] == [3, 4, 5, 6, 7]


def test_a_short_message_carries_nothing_of_the_one_before_it_in_its_slot() -> None:
    view = ring(1)
    writer, reader = RingWriter(view, Struct("<8Q")), RingReader(view, Struct("<8Q"))
    writer.put(*[2**64 - 1] * 8)
    writer.publish()
    reader.drain()
    RingWriter(view, Struct("<B")).put(1)
    RingWriter(view, Struct("<B"))
    assert bytes(view[SLOTS_OFFSET:]) == b"\x01" + bytes(63)


def test_a_new_writer_and_a_new_reader_go_on_where_the_old_ones_stopped() -> None:
    view = ring(4)
    old_writer, old_reader = RingWriter(view, PAIR), RingReader(view, PAIR)
    for number in range(3):
        old_writer.put(number, 0)
    old_writer.publish()
    assert len(old_reader.drain(2)) == 2
    old_writer.put(99, 0)  # dies before it publishes
    writer, reader = RingWriter(view, PAIR), RingReader(view, PAIR)
    assert reader.drain() == [(2, 0)]
    assert writer.put(3, 0)
    writer.publish()
    assert reader.drain() == [(3, 0)]


def test_statistics_describe_both_sides() -> None:
    view = ring(8)
    writer, reader = RingWriter(view, PAIR), RingReader(view, PAIR)
    for number in range(5):
        writer.put(number, 0)
    writer.publish()
    reader.drain(2)
    assert writer.statistics() == reader.statistics()
    assert (writer.statistics().published, writer.statistics().taken, writer.statistics().depth) == (5, 2, 3)


@pytest.mark.parametrize("slots", [0, 3, 6, -4])
def test_slots_are_a_power_of_two(slots: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        ring_size_bytes(slots)


@pytest.mark.parametrize("size_bytes", [0, 100, SLOTS_OFFSET, SLOTS_OFFSET + 65, SLOTS_OFFSET + 3 * 64])
def test_memory_of_another_size_is_no_ring(size_bytes: int) -> None:
    with pytest.raises(ValueError, match="no ring"):
        RingReader(memoryview(bytearray(size_bytes)), PAIR)


@pytest.mark.parametrize("format_", ["<9Q", "QQ", "@QQ", ">QQ"])
def test_a_message_that_does_not_fit_the_slots_is_refused(format_: str) -> None:
    with pytest.raises(ValueError, match="message"):
        RingWriter(ring(), Struct(format_))


@pytest.mark.parametrize(("head", "tail"), [(1, 0), (0, 9), (2**63, 2**63 + 9), (5, 2)])
def test_words_that_contradict_each_other_are_noticed_on_attaching(head: int, tail: int) -> None:
    view = ring(8)
    words = view[:SLOTS_OFFSET].cast("Q")
    words[HEAD_OFFSET // 8], words[TAIL_OFFSET // 8] = head, tail
    for side in (RingReader, RingWriter):
        with pytest.raises(RingCorrupt):
            side(view, PAIR)


@pytest.mark.parametrize("tail", [9, 2**64 - 1])
def test_a_tail_gone_wild_is_noticed_by_the_reader(tail: int) -> None:
    view = ring(8)
    reader = RingReader(view, PAIR)
    view[:SLOTS_OFFSET].cast("Q")[TAIL_OFFSET // 8] = tail
    with pytest.raises(RingCorrupt):
        reader.drain()
    with pytest.raises(RingCorrupt):
        reader.check()


def test_a_tail_that_went_back_is_noticed_by_the_reader() -> None:
    view = ring(8)
    writer, reader = RingWriter(view, PAIR), RingReader(view, PAIR)
    for number in range(4):
        writer.put(number, 0)
    writer.publish()
    reader.drain()
    view[:SLOTS_OFFSET].cast("Q")[TAIL_OFFSET // 8] = 1
    with pytest.raises(RingCorrupt):
        reader.drain()


def test_a_head_gone_wild_is_noticed_by_the_writer() -> None:
    view = ring(2)
    writer = RingWriter(view, PAIR)
    writer.put(0, 0)
    writer.put(1, 0)
    writer.publish()
    view[:SLOTS_OFFSET].cast("Q")[HEAD_OFFSET // 8] = 77
    with pytest.raises(RingCorrupt):
        writer.put(2, 0)


def test_foreign_memory_is_not_taken_for_a_ring() -> None:
    view = ring(8)
    view[MAGIC_OFFSET : MAGIC_OFFSET + 8] = b"SOMEELSE"
    with pytest.raises(RingCorrupt, match="magic"):
        RingReader(view, PAIR)
