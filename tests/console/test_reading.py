"""Reading backward and forward over a real link, from a slot that answers fetches from batches in memory."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final
from uuid import UUID

import pytest

from appliance.cluster import PartitionImage, TopicImage
from appliance.console import reading
from appliance.console.conditions import Conditions
from appliance.console.kafka_link import Link
from appliance.console.reading import Budget, Found, backward, forward
from appliance.protocol.fetch_request import parse_fetch
from appliance.protocol.headers import parse_request_header
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.record import Record, encode_batch
from tests.support.wire import PATIENCE_S

MIB: Final = 1 << 20
TOPIC: Final = "t"


class Slot:
    """A slot with one partition. It answers a fetch with whole batches, the first one of any size."""

    slots = 1

    def __init__(self, batches: list[tuple[int, int, bytes]]) -> None:
        self._batches = batches
        self._peers: list[socket.socket] = []
        self.fetched_bytes = 0

    @property
    def end(self) -> int:
        return self._batches[-1][1]

    def connect(self, slot: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE_S)
        self._peers.append(theirs)
        threading.Thread(target=self._serve, args=(theirs,), daemon=True).start()
        return ours

    def _serve(self, peer: socket.socket) -> None:
        # The thread owns its end of the pair and closes it: closed by another thread, a read of it would fail.
        with peer:
            while size := peer.recv(4, socket.MSG_WAITALL):
                self._answer(peer, size)

    def _answer(self, peer: socket.socket, size: bytes) -> None:
        frame = memoryview(size + peer.recv(struct.unpack(">i", size)[0], socket.MSG_WAITALL))
        header = parse_request_header(frame, 4, len(frame))
        request = parse_fetch(frame, header.body_position, len(frame), header.version)
        (wanted,) = request.partitions
        records = b""
        for _, behind, content in self._batches:
            if behind <= wanted.fetch_offset:
                continue
            if records and len(records) + len(content) > wanted.max_bytes:
                break
            records += content
        self.fetched_bytes += len(records)
        body = (
            struct.pack(">iiih", header.correlation_id, 0, 1, len(TOPIC))
            + TOPIC.encode()
            + struct.pack(">iihqqii", 1, 0, 0, self.end, self.end, -1, len(records))
        )
        peer.sendall(struct.pack(">i", len(body) + len(records)) + body + records)

    def close(self) -> None:
        for each in self._peers:
            with suppress(OSError):  # its thread has closed it
                each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def slots() -> Iterator[list[Slot]]:
    found: list[Slot] = []
    yield found
    for each in found:
        each.close()


def opened(slots: list[Slot], batches: list[tuple[int, int, bytes]]) -> tuple[Link, TopicImage, int]:
    slot = Slot(batches)
    slots.append(slot)
    partition = PartitionImage(0, 0, 1, leader=0, leader_epoch=0, replicas=(0,), isr=(0,))
    topic = TopicImage(name=TOPIC, topic_id=UUID(int=1), partitions=(partition,))
    return Link(slot, None), topic, slot.end  # type: ignore[arg-type]


def one_each(count: int, size_bytes: int) -> list[tuple[int, int, bytes]]:
    """Batches of one record each."""
    value = bytes(size_bytes)
    return [(at, at + 1, encode_batch([Record(value)], base_offset=at)) for at in range(count)]


def read_all_backward(link: Link, topic: TopicImage, end: int, *, limit: int) -> list[list[int]]:
    """Follow `Older` to the beginning, as a person does; the offsets of each page."""
    pages: list[list[int]] = []
    before = end
    while before > 0:
        found = backward(
            link,
            topic,
            0,
            start=0,
            end=before,
            limit=limit,
            matches=Conditions().hold,
            budget=Budget(),
        )
        pages.append([each.offset for each in found.records])
        before = found.records[0].offset if found.is_complete and found.records else found.first
        assert len(pages) <= end
    return pages


@pytest.mark.parametrize(("count", "size_bytes"), [(40, 3 * MIB), (6, 30 * MIB), (300, 100)])
def test_pages_of_newest_records_have_each_record_once_in_order(
    slots: list[Slot], count: int, size_bytes: int
) -> None:
    pages = read_all_backward(*opened(slots, one_each(count, size_bytes)), limit=50)
    assert all(pages), "a page without a record gets nobody on"
    assert [offset for page in reversed(pages) for offset in page] == list(range(count))


def test_a_page_does_not_read_much_more_than_its_budget(slots: list[Slot]) -> None:
    link, topic, end = opened(slots, one_each(100, 3 * MIB))
    budget = Budget()
    found = backward(link, topic, 0, start=0, end=end, limit=50, matches=Conditions().hold, budget=budget)
    assert not found.is_complete
    assert slots[0].fetched_bytes < reading.BUDGET_BYTES + 8 * MIB
    offsets = [each.offset for each in found.records]
    assert offsets == list(range(found.first, end))


def test_a_batch_of_very_many_records_is_read_in_several_pages(
    slots: list[Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 5_000
    content = encode_batch([Record(b"%d" % each) for each in range(count)], codec=Codec.ZSTD)
    link, topic, end = opened(slots, [(0, count, content)])
    at, pages = 0, 0
    while at < end:
        found = forward(
            link,
            topic,
            0,
            start=at,
            end=end,
            limit=10,
            matches=lambda each: each.record.value == b"4999",
            budget=replace(Budget(), bytes_left=1),
        )
        assert found.next > at, "each page gets on"
        at, pages = found.next, pages + 1
    assert [each.offset for each in found.records] == [4999]
    assert pages > 1


def test_small_batches_that_hold_large_records_fill_no_memory(slots: list[Slot]) -> None:
    one = encode_batch([Record(bytes(24 * MIB))], codec=Codec.ZSTD)
    batches = [
        (at, at + 1, encode_batch([Record(bytes(24 * MIB))], codec=Codec.ZSTD, base_offset=at))
        for at in range(12)
    ]
    assert len(one) < 8_000
    link, topic, end = opened(slots, batches)
    found = forward(link, topic, 0, start=0, end=end, limit=50, matches=Conditions().hold, budget=Budget())
    assert (len(found.records), found.next, found.is_complete) == (3, 3, False)
    assert all(read_all_backward(link, topic, end, limit=50))


def test_the_end_of_a_partition_with_gaps_is_reached(slots: list[Slot]) -> None:
    batches = [
        (0, 1, encode_batch([Record(b"a")])),
        (9_000, 9_001, encode_batch([Record(b"b")], base_offset=9_000)),
    ]
    link, topic, end = opened(slots, batches)
    found: Found = backward(
        link, topic, 0, start=0, end=end, limit=50, matches=Conditions().hold, budget=Budget()
    )
    assert [each.offset for each in found.records] == [0, 9_000]
    assert found.is_complete
