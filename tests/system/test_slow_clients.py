"""Five hundred connections that stall, drip or never read, beside clients that behave: those must not notice.

The pool is small on purpose, an eighth of what the slow ones would like to hold.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.wire import WireSocket, answers_api_versions, nullable_string
from tests.system.raw import (
    MIB,
    create_topic,
    private_bytes,
    produce,
    produce_frame,
    read_produced,
    wait_until,
)
from tests.system.steady import SteadyClient, undisturbed

CONNECTIONS = 500
POOL_BYTES = 32 * MIB
# What a network process may hold of its own beside its pool, grown since it was idle.
PRIVATE_GROWTH_BYTES = 48 * MIB
# The small requests of a good client, without the time for which others kept the processors from its processes.
P99_MS = 250.0
# Large requests of a good client may have to wait for the grace of half-sent ones, and for the relief after it.
GRACE_MS = 300
LARGE_MAX_MS = 8000.0
WATCHED_S = 4.0
PATIENCE_S = 120.0

WIDE, BULKY = "wide", "bulky"
WIDE_PARTITIONS = 400
FRAME = produce_frame(BULKY, encode_batch([Record(bytes(1_000_000))]))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """One appliance for the file; at its end no process was restarted, and none wrote a traceback."""
    appliance = Appliance(
        tmp_path_factory.mktemp("slow") / "data",
        settings={
            "network.pool.bytes": POOL_BYTES,
            "socket.request.max.bytes": 4 * MIB,
            "network.request.stall.grace.ms": GRACE_MS,
        },
    )
    appliance.start()
    try:
        assert create_topic(appliance.port, WIDE, partitions=WIDE_PARTITIONS) == 0
        assert create_topic(appliance.port, BULKY) == 0
        with WireSocket(appliance.port) as connection:
            for _ in range(8):
                assert produce(connection, BULKY, encode_batch([Record(bytes(900_000))])).error == 0
        yield appliance
    finally:
        appliance.stop()


class Slow:
    """One of the five hundred: what it has to send, and what it got."""

    def __init__(self, port: int, to_send: bytes) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 30)
        self.sock.setblocking(False)
        self.left = memoryview(to_send)
        self.got = bytearray()
        self.closed = False

    def push(self, most_bytes: int = 1 << 30) -> bool:
        """Sends what the socket takes; whether anything left."""
        try:
            count = self.sock.send(self.left[:most_bytes]) if self.left else 0
        except BlockingIOError:
            return False
        except OSError:
            self.closed = True
            return False
        self.left = self.left[count:]
        return count > 0

    def pull(self) -> None:
        """Reads what is there."""
        try:
            part = self.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self.closed = self.closed or not part
        self.got += part


@contextmanager
def slow_ones(port: int, to_send: Callable[[int], bytes]) -> Iterator[list[Slow]]:
    ones = [Slow(port, to_send(number)) for number in range(CONNECTIONS)]
    try:
        yield ones
    finally:
        for one in ones:
            one.sock.close()
        # The next test begins without them.
        wait_until(lambda: answers_api_versions(port, 30), "an answer")


def push_all(ones: list[Slow], keep_back_bytes: int) -> None:
    """Sends until nobody takes any more, but for the last bytes of each."""
    poll = select.poll()
    by_fd = {one.sock.fileno(): one for one in ones}
    for fd in by_fd:
        poll.register(fd, select.POLLOUT)
    while by_fd and (ready := poll.poll(500)):
        for fd, _ in ready:
            one = by_fd[fd]
            one.push(len(one.left) - keep_back_bytes)
            if one.closed or len(one.left) <= keep_back_bytes:
                poll.unregister(fd)
                del by_fd[fd]


class Memory:
    """Bounds on what the network processes hold, looked at as often as the test likes."""

    def __init__(self, broker: Appliance) -> None:
        self.pids = broker.pids("netproc")
        self.before = {pid: private_bytes(pid) for pid in self.pids}
        self.most_grown_bytes = 0
        self.most_pool_bytes = 0

    def look(self) -> None:
        for pid in self.pids:
            self.most_grown_bytes = max(self.most_grown_bytes, private_bytes(pid) - self.before[pid])
            self.most_pool_bytes = max(self.most_pool_bytes, shared_bytes(pid))

    def check(self) -> None:
        self.look()
        print(
            f"\nprivate growth {self.most_grown_bytes / MIB:.1f} MiB, shared {self.most_pool_bytes / MIB:.1f} MiB"
        )
        assert self.most_grown_bytes < PRIVATE_GROWTH_BYTES, f"{self.most_grown_bytes / MIB:.1f} MiB private"
        # Beside the pool: rings, the partition table, the metadata image.
        assert self.most_pool_bytes < POOL_BYTES + 16 * MIB, f"{self.most_pool_bytes / MIB:.1f} MiB shared"


def shared_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssShmem:"))


def check_small(steady: SteadyClient) -> None:
    report = steady.report
    print(f"\n{report}")
    assert report.produce_own_p99_ms < P99_MS
    assert report.fetch_own_p99_ms < P99_MS


def watch(memory: Memory, turn: Callable[[], None], *good: SteadyClient) -> None:
    """Takes turns while the good clients are measured, until all of them have enough."""
    began = time.monotonic()
    while time.monotonic() < began + WATCHED_S or not all(client.has_enough() for client in good):
        assert time.monotonic() < began + PATIENCE_S, "the good clients get nowhere"
        turn()
        memory.look()


def test_five_hundred_half_sent_requests_hold_back_nobody_else(broker: Appliance) -> None:
    memory = Memory(broker)
    with slow_ones(broker.port, lambda _: FRAME) as ones:
        with undisturbed(broker, "beside-stalled") as small:
            push_all(ones, len(FRAME) // 2)
            with SteadyClient(broker, "beside-stalled", record_bytes=800_000, enough_rounds=5) as large:
                watch(memory, lambda: time.sleep(0.2), small, large)
        check_small(small)
        print(large.report)
        assert large.report.failures == []
        assert large.report.rounds >= 5
        assert large.report.produce_own_max_ms < LARGE_MAX_MS
        memory.check()
        finish(ones)


def finish(ones: list[Slow]) -> None:
    """The rest is sent and answered, unless the connection was closed to make room."""
    by_fd = {one.sock.fileno(): one for one in ones}
    poll = select.poll()
    for fd in by_fd:
        poll.register(fd, select.POLLIN | select.POLLOUT)
    ends = time.monotonic() + PATIENCE_S
    finished = 0
    while by_fd:
        assert time.monotonic() < ends, f"{len(by_fd)} neither closed nor answered"
        for fd, _ in poll.poll(1000):
            one = by_fd[fd]
            one.push()
            one.pull()
            if not one.left and not one.closed:
                poll.modify(fd, select.POLLIN)
            if len(one.got) >= 4 and len(one.got) == 4 + struct.unpack_from(">i", one.got)[0]:
                assert read_produced(bytes(one.got[4:])).error == 0
                finished += 1
                one.closed = True
            if one.closed:
                poll.unregister(fd)
                del by_fd[fd]
    print(f"{finished} of {len(ones)} finished, the others were closed")


def test_five_hundred_dripping_connections_hold_back_nobody_else(broker: Appliance) -> None:
    memory = Memory(broker)
    with slow_ones(broker.port, lambda _: FRAME) as ones:
        # Half of them drip from their first byte on, half within the body.
        push_all(ones[::2], len(FRAME) - 20_000)

        def drip() -> None:
            for one in ones:
                one.push(1)
            time.sleep(0.1)

        with undisturbed(broker, "beside-dripping") as small:
            watch(memory, drip, small)
        check_small(small)
        memory.check()
        finish(ones)


def never_read(number: int) -> bytes:
    """A megabyte first, so that much is read at once; then questions with large answers, and no end of them."""
    metadata = struct.pack(">hhi", ApiKey.METADATA, 1, 7) + nullable_string(None) + struct.pack(">i", -1)
    # The same question in other words, so that no memory of answers recognises it.
    unique = (
        struct.pack(">hhi", ApiKey.METADATA, 1, 7)
        + nullable_string(None)
        + struct.pack(">i", 1)
        + nullable_string(WIDE)
        + struct.pack(">i", number)
    )
    partitions = struct.pack(">iiqi", 1, 0, 0, 1 << 20)
    fetch = (
        struct.pack(">hhi", ApiKey.FETCH, 4, 7)
        + nullable_string(None)
        + struct.pack(">iiiibi", -1, 0, 1, 1 << 20, 0, 1)
        + nullable_string(BULKY)
        + partitions
    )
    metadata_frame, unique_frame, fetch_frame = (
        struct.pack(">i", len(frame)) + frame for frame in (metadata, unique, fetch)
    )
    if number % 25 == 0:  # dear ones: to answer them all is work, which is not what is measured here
        asked = unique_frame * 3000
    elif number % 2:
        asked = (metadata_frame + fetch_frame) * 1500
    else:
        asked = (metadata_frame if number % 4 else fetch_frame) * 3000
    return (FRAME if number % 8 == 0 else b"") + asked


def test_five_hundred_clients_that_never_read_hold_back_nobody_else(broker: Appliance) -> None:
    memory = Memory(broker)
    with slow_ones(broker.port, never_read) as ones:

        def push() -> None:
            for one in ones:
                one.push()
            time.sleep(0.05)

        with undisturbed(broker, "beside-deaf") as small:
            watch(memory, push, small)
        check_small(small)
        memory.check()
        # Who reads at last gets answers, to the last whole one that was taken in.
        answered = 0
        for one in ones[:20]:
            one.sock.setblocking(True)
            one.sock.settimeout(10)
            try:
                answered += len(one.sock.recv(1 << 16)) > 0
            except OSError:
                continue
        print(f"{answered} of 20 got an answer")


def test_hundreds_of_requests_in_one_go_are_all_answered_in_order(broker: Appliance) -> None:
    def asked(correlation_id: int) -> bytes:
        metadata = struct.pack(">hhi", ApiKey.METADATA, 1, correlation_id) + nullable_string(None)
        return metadata + struct.pack(">i", -1) if correlation_id % 3 else metadata + struct.pack(">i", 0)

    frames = [asked(correlation_id) for correlation_id in range(300)]
    with WireSocket(broker.port, timeout_s=20) as connection:
        connection.send(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
        answers = [struct.unpack_from(">i", connection.read_frame())[0] for _ in frames]
    assert answers == list(range(300))
