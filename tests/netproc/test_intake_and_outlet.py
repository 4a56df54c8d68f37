"""Receiving into the pool and sending in order, over real sockets and real memory."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.errors import MalformedFrame, StorageFault
from appliance.ipc.buffer_pool import BufferPool
from appliance.netproc import outlet
from appliance.netproc.connection import Connection
from appliance.netproc.intake import CLOSED, STARVED, STASH_BYTES, Intake
from appliance.netproc.outlet import READ_BYTES_MAX, abandon, collect, flush, unpace
from appliance.requests.answer import FilePiece, Piece
from appliance.requests.segment_files import SegmentFile
from appliance.requests.session import Request

MIB = 1 << 20


class Pair:
    """A connection and the client's end of its socket."""

    def __init__(self, kind: socket.SocketKind = socket.SOCK_STREAM) -> None:
        ours, self.client = socket.socketpair(type=kind)
        ours.setblocking(False)
        self.client.settimeout(30)
        self.connection = Connection(ours, connection_id=1, slot=0, peer_host="test", peer_port=1, now_ns=0)

    def close(self) -> None:
        self.connection.sock.close()
        self.client.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def intake_over(size_bytes: int, *, reserve_bytes: int = 0, frame_bytes_max: int = 100 * MIB) -> Intake:
    pool = BufferPool(memoryview(bytearray(size_bytes)), reserve_bytes=reserve_bytes)
    return Intake(pool, frame_bytes_max=frame_bytes_max, grace_ns=1_000)


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def cut(intake: Intake, connection: Connection, now_ns: int = 0) -> list[bytes]:
    """The payloads of all whole frames; every block is given back, as after an answer."""
    payloads = []
    for block, start, end in intake.frames(connection):
        payloads.append(bytes(block.view[start:end]))
        intake._pool.give(block)
    intake.settle(connection, now_ns)
    return payloads


def test_frames_arrive_whole_however_they_are_split(pair: Pair) -> None:
    chance = random.Random(7)
    payloads = [chance.randbytes(chance.choice([8, 9, 100, 3000, 70_000])) for _ in range(60)]
    stream = b"".join(map(frame, payloads))
    intake = intake_over(4 * MIB)
    received: list[bytes] = []
    position = 0
    while position < len(stream):
        size = chance.choice([1, 3, 4, 500, 20_000])
        pair.client.sendall(stream[position : position + size])
        position += size
        assert intake.receive(pair.connection) > 0
        received += cut(intake, pair.connection)
    while len(received) < len(payloads) and intake.receive(pair.connection) > 0:
        received += cut(intake, pair.connection)
    assert received == payloads
    assert intake._pool.free_bytes() == 4 * MIB
    intake._pool.check()


def test_a_request_that_came_in_parts_says_since_when(pair: Pair) -> None:
    intake = intake_over(MIB)
    seen: list[int] = []

    def arrive(data: bytes, now_ns: int) -> None:
        pair.client.sendall(data)
        assert intake.receive(pair.connection) > 0
        for block, _, _ in intake.frames(pair.connection):
            seen.append(pair.connection.receiving_since_ns)
            intake._pool.give(block)
        intake.settle(pair.connection, now_ns)

    whole = frame(b"x" * 100)
    arrive(whole, 1)
    arrive(whole[:50], 2)
    arrive(whole[50:90], 3)
    arrive(whole[90:] + whole + whole[:10], 4)
    assert seen == [0, 2, 0], "the second one, which came in three parts, began at 2"
    arrive(whole[10:], 5)
    arrive(whole, 6)
    assert seen[3:] == [4, 0]


def test_a_connection_at_rest_or_dripping_holds_no_block(pair: Pair) -> None:
    intake = intake_over(MIB)
    pair.client.sendall(frame(b"x" * 100) + frame(b"y" * 5000)[: STASH_BYTES - 10])
    assert intake.receive(pair.connection) > 0
    assert cut(intake, pair.connection) == [b"x" * 100]
    assert pair.connection.block is None
    assert len(pair.connection.stash) == STASH_BYTES - 10
    assert intake._pool.free_bytes() == MIB
    pair.client.sendall(frame(b"y" * 5000)[STASH_BYTES - 10 :])
    assert intake.receive(pair.connection) > 0
    assert cut(intake, pair.connection) == [b"y" * 5000]


def test_a_lying_size_takes_no_more_memory_than_what_arrived(pair: Pair) -> None:
    intake = intake_over(64 * MIB)
    pair.client.sendall(struct.pack(">i", 48 * MIB) + b"z" * 20_000)
    while (count := intake.receive(pair.connection)) > 0:
        assert cut(intake, pair.connection) == []
    assert count == 0
    assert 64 * MIB - intake._pool.free_bytes() <= 8 * MIB


def test_a_full_pool_stops_reading_and_loses_nothing(pair: Pair) -> None:
    intake = intake_over(64 * 1024)
    held = [intake._pool.take(16 * 1024) for _ in range(4)]
    pair.client.sendall(frame(b"a" * 50))
    assert intake.receive(pair.connection) == STARVED
    assert list(intake.starved) == [pair.connection]
    assert intake.next_fed(1) is None
    block = held.pop()
    assert block is not None
    intake._pool.give(block)
    assert intake.next_fed(1) is pair.connection
    assert intake.receive(pair.connection) > 0
    assert cut(intake, pair.connection) == [b"a" * 50]


def test_half_received_frames_leave_the_reserve_to_others() -> None:
    intake = intake_over(2 * MIB, reserve_bytes=MIB)
    pairs = [Pair() for _ in range(12)]
    for one in pairs:
        one.client.sendall(frame(b"s" * 500_000)[:60_000])
        while intake.receive(one.connection) > 0:
            cut(intake, one.connection)
    good = Pair()
    good.client.sendall(frame(b"g" * 10_000))
    assert intake.receive(good.connection) > 0
    assert cut(intake, good.connection) == [b"g" * 10_000]
    for one in [*pairs, good]:
        one.close()


def test_the_slowest_half_received_frame_is_named_first() -> None:
    intake = intake_over(4 * MIB)
    fast, slow, young = Pair(), Pair(), Pair()
    for one, size, began in ((fast, 50_000, 0), (slow, 5_000, 0), (young, 4_000, 9_500)):
        one.client.sendall(frame(b"s" * 100_000)[:size])
        while intake.receive(one.connection) > 0:
            cut(intake, one.connection)
        one.connection.frame_began_ns = began
    connections = [fast.connection, slow.connection, young.connection]
    assert intake.slowest(connections, 10_000) == [slow.connection, fast.connection]
    for one in (fast, slow, young):
        one.close()


@pytest.mark.parametrize("size", [0, -1, -(2**31), 2**31 - 1, MIB + 1])
def test_an_impossible_size_is_malformed(pair: Pair, size: int) -> None:
    intake = intake_over(MIB, frame_bytes_max=MIB)
    pair.client.sendall(struct.pack(">i", size) + b"12345678")
    assert intake.receive(pair.connection) > 0
    with pytest.raises(MalformedFrame):
        cut(intake, pair.connection)
    intake.release(pair.connection)
    assert intake._pool.free_bytes() == MIB


def test_a_closed_peer_is_noticed(pair: Pair) -> None:
    intake = intake_over(MIB)
    pair.client.close()
    assert intake.receive(pair.connection) == CLOSED
    intake.release(pair.connection)
    assert intake._pool.free_bytes() == MIB


def pending(pair: Pair) -> Request:
    pool = BufferPool(memoryview(bytearray(1 << 16)))
    block = pool.take(100)
    assert block is not None
    made = Request(pair.connection, block, 3, 0, 0)
    pair.connection.enqueue(made)
    return made


def request(api_key: int, size_bytes: int = 100) -> bytes:
    return frame(struct.pack(">h", api_key) + b"r" * (size_bytes - 2))


@pytest.mark.parametrize(
    ("in_flight", "next_one", "waits"),
    [
        ([0], 0, False),
        ([0, 0], 0, False),
        ([0], 1, True),
        ([0], 3, True),
        ([1], 0, True),
        ([3], 3, True),
        ([8], 8, True),
    ],
)
def test_only_a_produce_request_begins_behind_one_that_is_in_flight(
    pair: Pair, in_flight: list[int], next_one: int, waits: bool
) -> None:
    intake = intake_over(MIB)
    places = []
    for api_key in in_flight:
        place = pending(pair)
        place.api_key = api_key
        places.append(place)
    pair.client.sendall(request(next_one))
    assert intake.receive(pair.connection) > 0
    assert len(cut(intake, pair.connection)) == (0 if waits else 1)
    assert pair.connection.held is pair.connection.muted is waits
    if not waits:
        return
    assert intake.next_api_key(pair.connection) == next_one
    for place in places:
        assert pair.connection.held
        place.answer = [b"answer"]
    pair.connection.held = pair.connection.muted = False
    assert intake.unstash(pair.connection)
    assert cut(intake, pair.connection) == [request(next_one)[4:]]
    assert intake._pool.free_bytes() == MIB


def test_a_held_request_keeps_no_block_if_it_is_small_and_no_more_of_it_is_read_if_it_is_large(
    pair: Pair,
) -> None:
    intake = intake_over(MIB)
    place = pending(pair)
    pair.client.sendall(request(0, 200_000))
    assert intake.receive(pair.connection) > 0
    assert cut(intake, pair.connection) == []
    assert pair.connection.held
    assert MIB - intake._pool.free_bytes() == 16 * 1024
    place.answer = [b"answer"]
    pair.connection.held = pair.connection.muted = False
    got = cut(intake, pair.connection)
    while not got:
        assert intake.receive(pair.connection) > 0
        got = cut(intake, pair.connection)
    assert got == [request(0, 200_000)[4:]]
    second = pending(pair)
    pair.client.sendall(request(3, STASH_BYTES - 4))
    assert intake.receive(pair.connection) > 0
    assert cut(intake, pair.connection) == []
    assert pair.connection.block is None
    assert intake._pool.free_bytes() == MIB
    held = [intake._pool.take(16 * 1024) for _ in range(64)]
    second.answer = [b"answer"]
    pair.connection.held = pair.connection.muted = False
    assert not intake.unstash(pair.connection)
    assert list(intake.starved) == [pair.connection]
    for block in held:
        assert block is not None
        intake._pool.give(block)
    assert intake.next_fed(1) is pair.connection
    assert intake.unstash(pair.connection)
    assert cut(intake, pair.connection) == [request(3, STASH_BYTES - 4)[4:]]


def read(pair: Pair, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += pair.client.recv(count - len(data))
    return data


def test_answers_leave_in_the_order_of_requests(pair: Pair) -> None:
    first, second, third = pending(pair), pending(pair), pending(pair)
    third.answer = [b"three"]
    second.answer = [b"two"]
    assert not collect(pair.connection)
    first.answer = [b"one"]
    assert collect(pair.connection)
    assert flush(pair.connection) == len(b"onetwothree")
    assert read(pair, 11) == b"onetwothree"


def test_what_is_answered_later_leaves_behind_what_waits_to_be_sent(pair: Pair) -> None:
    for answers in ([[b"a", b"b"], [b"c"]], [[b"d"], [b"e", b"f"]]):
        for answer in answers:
            pending(pair).answer = [*answer]
        assert collect(pair.connection)
    assert flush(pair.connection) == 6
    assert read(pair, 6) == b"abcdef"


@pytest.fixture(params=["another host", "this host"])
def reader(request: pytest.FixtureRequest, pair: Pair) -> Pair:
    """A client that is sent to by sendfile, and one that is sent copies."""
    pair.connection.is_local = pair.connection.was_sent_records = request.param == "this host"
    read_alone(pair)
    return pair


def read_alone(pair: Pair) -> None:
    """It has read a backlog for a while, and nobody else has."""
    for _ in range(outlet.ALONE_TURNS + 1):
        outlet._note_turn(pair.connection, outlet.READER_BYTES)


@pytest.mark.parametrize("records_bytes", [512, READ_BYTES_MAX, READ_BYTES_MAX + 1, 200_000])
def test_records_follow_their_header_from_the_file(reader: Pair, tmp_path: Path, records_bytes: int) -> None:
    pair = reader
    path = tmp_path / "segment"
    path.write_bytes(bytes(range(256)) * 1000)
    segment = SegmentFile(os.open(path, os.O_RDONLY))
    segment.holders = 1
    records = path.read_bytes()[256 : 256 + records_bytes]
    pending(pair).answer = [b"head", FilePiece(segment, 256, records_bytes), b"tail"]
    collect(pair.connection)
    flush(pair.connection)
    assert read(pair, records_bytes + 8) == b"head" + records + b"tail"
    assert segment.holders == 0
    os.close(segment.fd)


@pytest.mark.parametrize("records_bytes", [[512], [100, 2_000, 1_000], [100_000], [20_000, 60_000, 300]])
def test_a_whole_answer_reaches_a_client_of_this_host_at_once(
    records_bytes: list[int], tmp_path: Path
) -> None:
    """Each message of the socket is one system call of ours, and would be a wake-up of the client."""
    pair = Pair(socket.SOCK_SEQPACKET)
    pair.connection.is_local = pair.connection.was_sent_records = True
    read_alone(pair)
    path = tmp_path / "segment"
    path.write_bytes(data := random.Random(1).randbytes(100_000))
    segment = SegmentFile(os.open(path, os.O_RDONLY))
    answer: list[Piece] = []
    for length in records_bytes:
        segment.holders += 1
        answer += [b"head of %d" % length, FilePiece(segment, 0, length)]
    pending(pair).answer = [*answer, b"end"]
    collect(pair.connection)
    expected = b"".join(b"head of %d" % length + data[:length] for length in records_bytes) + b"end"
    assert flush(pair.connection) == len(expected)
    assert pair.client.recv(MIB) == expected
    assert segment.holders == 0
    os.close(segment.fd)
    pair.close()


def messages(pair: Pair, segment: SegmentFile, records_bytes: int) -> int:
    """In how many system calls an answer of so many records leaves: a copy needs one, header and sendfile are two."""
    segment.holders += 1
    pending(pair).answer = [b"head", FilePiece(segment, 0, records_bytes)]
    collect(pair.connection)
    flush(pair.connection)
    count = got = 0
    while got < records_bytes + 4:
        got += len(pair.client.recv(MIB))
        count += 1
    return count


def test_of_several_who_read_backlogs_none_is_sent_copies(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(100_000))
    segment = SegmentFile(os.open(path, os.O_RDONLY))
    first, second = Pair(socket.SOCK_SEQPACKET), Pair(socket.SOCK_SEQPACKET)
    for each in (first, second):
        each.connection.is_local = each.connection.was_sent_records = True
    large, small = outlet.READER_BYTES + 1, outlet.READER_BYTES - 1
    assert [messages(first, segment, large) for _ in range(outlet.ALONE_TURNS + 3)][-2:] == [1, 1]
    for each in (second, first, second, first):
        assert messages(each, segment, large) > 1
        assert messages(each, segment, small) == 1
    assert [messages(first, segment, large) for _ in range(outlet.ALONE_TURNS + 1)][-1] == 1
    for each in (first, second):
        each.close()
    os.close(segment.fd)


@pytest.mark.parametrize("seed", range(8))
def test_any_pieces_reach_any_reader_whole_and_in_order(reader: Pair, tmp_path: Path, seed: int) -> None:
    pair, chance = reader, random.Random(seed)
    path = tmp_path / "segment"
    path.write_bytes(data := chance.randbytes(3 * MIB))
    segment = SegmentFile(os.open(path, os.O_RDONLY))
    expected = []
    for _ in range(chance.randint(1, 12)):
        answer: list[Piece] = []
        for _ in range(chance.randint(1, 6)):
            length = chance.choice([1, 3, 75, 4_096, 4_097, 70_000, MIB - 1, MIB, MIB + 1])
            at = chance.randint(0, len(data) - length)
            expected.append(data[at : at + length])
            if chance.random() < 0.5:
                answer.append(data[at : at + length])
            else:
                segment.holders += 1
                answer.append(FilePiece(segment, at, length))
        pending(pair).answer = answer
    collect(pair.connection)
    whole, received = b"".join(expected), bytearray()
    pair.client.setblocking(False)
    while pair.connection.out or len(received) < len(whole):
        flush(pair.connection)
        with suppress(BlockingIOError):
            received += pair.client.recv(chance.choice([100, 50_000, MIB]))
    assert received == whole
    assert segment.holders == 0
    os.close(segment.fd)


def test_records_that_are_missing_hold_nothing_back_that_is_whole(reader: Pair, tmp_path: Path) -> None:
    pair = reader
    path = tmp_path / "segment"
    path.write_bytes(bytes(10_000))
    segment = SegmentFile(os.open(path, os.O_RDONLY))
    segment.holders = 2
    pending(pair).answer = [b"first", FilePiece(segment, 0, 10_000), b"end"]
    pending(pair).answer = [b"second", FilePiece(segment, 0, 10_001)]
    collect(pair.connection)
    with pytest.raises(StorageFault):
        flush(pair.connection)
    assert read(pair, 10_014) == b"first" + bytes(10_000) + b"end" + b"second"
    abandon(pair.connection)
    assert segment.holders == 0
    os.close(segment.fd)


def test_a_reader_that_does_not_read_gets_the_rest_later(reader: Pair, tmp_path: Path) -> None:
    pair = reader
    path = tmp_path / "segment"
    data = random.Random(1).randbytes(8 * MIB)
    path.write_bytes(data)
    segment = SegmentFile(os.open(path, os.O_RDONLY))
    segment.holders = 1
    pending(pair).answer = [FilePiece(segment, 0, len(data)), b"end"]
    collect(pair.connection)
    received = b""
    while pair.connection.out:
        flush(pair.connection)
        received += read(pair, min(64 * 1024, len(data) + 3 - len(received)))
    received += read(pair, len(data) + 3 - len(received))
    assert received == data + b"end"


@pytest.mark.parametrize("before", [[], [b"head"]])
def test_a_segment_that_ends_early_breaks_the_promise_loudly(
    reader: Pair, tmp_path: Path, before: list[bytes]
) -> None:
    pair = reader
    path = tmp_path / "segment"
    path.write_bytes(b"short")
    segment = SegmentFile(os.open(path, os.O_RDONLY))
    segment.holders = 1
    pending(pair).answer = [*before, FilePiece(segment, 0, 100)]
    collect(pair.connection)
    with pytest.raises(StorageFault):
        flush(pair.connection)
    abandon(pair.connection)
    assert segment.holders == 0
    os.close(segment.fd)


def test_only_a_client_of_this_host_that_takes_all_is_sent_copies(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(range(256)) * 1024)
    segment = SegmentFile(os.open(path, os.O_RDONLY))
    pair.connection.is_local = True
    copied: list[int] = []

    def recorded(fd: int, buffers: list[memoryview], position: int) -> int:
        copied.append(count := os_preadv(fd, buffers, position))
        return count

    os_preadv = os.preadv
    monkeypatch.setattr(os, "preadv", recorded)

    def fetch(records_bytes: int) -> None:
        segment.holders += 1
        pending(pair).answer = [FilePiece(segment, 256, records_bytes)]
        collect(pair.connection)
        flush(pair.connection)

    size = 100_000
    expected = path.read_bytes()[256 : 256 + size]
    fetch(size)
    assert copied == []  # it may never read
    assert read(pair, size) == expected
    fetch(size)
    assert copied == [size]
    fetch(size)
    assert copied == [size]  # it has not read the one before
    assert read(pair, 2 * size) == 2 * expected
    fetch(size)
    assert copied == [size, size]
    os.close(segment.fd)


def test_a_client_of_this_host_is_not_held_back_for_a_network_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
        with client, ours:
            unpace(ours)
            named = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert named.rstrip(b"\0") == b"reno"


def test_a_socket_that_knows_no_congestion_stays_as_it_is(pair: Pair) -> None:
    unpace(pair.connection.sock)
    pair.connection.sock.send(b"still")
    assert read(pair, 5) == b"still"
