"""ZeroMQ beside TCP and beside a bare ZeroMQ echo, all from one Python program and in alternating rounds.

python -m benchmarks.micro.zeromq ENDPOINT HOST:PORT       of an appliance that runs already, by ipc and by TCP

    one record    a Produce of one 100 B record, acks=all, one at a time: median in µs
    echo          the same frames to a process that only sends them back: what the library takes by itself
    1 MiB         Fetch answers of whole batches of 1 MB, read without a copy: GB/s
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Final

import zmq
from crc32c import crc32c

from benchmarks.load.hostile import array, text
from benchmarks.load.transactions import ask, connect, records

REQUEST, RESPONSE, CREDIT = 5, 6, 7
MORE: Final = 1
WINDOW: Final = 1 << 26
ROUNDS: Final = 5
ASKED: Final = 2000
LARGE_RECORDS: Final = 9000
LARGE_BATCHES: Final = 200

Context = zmq.Context[zmq.Socket[bytes]]


def header(kind: int, token: bytes = bytes(16)) -> bytes:
    return struct.pack(">HBBI16s", 0x4B5A, 1, kind, 0, token)


def dealer(context: Context, endpoint: str) -> zmq.Socket[bytes]:
    made = context.socket(zmq.DEALER)
    made.set(zmq.LINGER, 0)
    made.connect(endpoint)
    return made


class Session:
    """A session as docs/zeromq.md has it, which gives credit for all that comes."""

    def __init__(self, context: Context, listener: str) -> None:
        with dealer(context, listener) as hello:
            hello.send_multipart([header(1), struct.pack(">Bi", 1, -1) + text("bench")])
            welcome = hello.recv_multipart()[1]
        self._socket = dealer(context, welcome[7 : 7 + int.from_bytes(welcome[5:7])].decode())
        self._socket.send_multipart([header(3), struct.pack(">iQ", 0, WINDOW) + text("bench")])
        self._token = self._socket.recv_multipart()[1][:16]
        self._request = header(REQUEST, self._token)

    def ask(self, request: bytes) -> list[zmq.Frame]:
        """The frames of the response, of which none is copied."""
        self._socket.send_multipart([self._request, request])
        body: list[zmq.Frame] = []
        while True:
            head, *frames = self._socket.recv_multipart(copy=False)
            _, _, kind, flags, mark, _ = struct.unpack(">HBBIQQ", head.buffer)
            if mark:
                self._socket.send_multipart([header(CREDIT, self._token), struct.pack(">QQ", mark, WINDOW)])
            if kind != RESPONSE:
                continue
            body += frames
            if not flags & MORE:
                return body


def plain_batch(count: int) -> bytes:
    """`count` records of 100 B of nobody's."""
    now_ms = time.time_ns() // 1_000_000
    checked = struct.pack(">hiqqqhii", 0, count - 1, now_ms, now_ms, -1, -1, -1, count) + records(count)
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c(checked)) + checked


def produce(topic: str, raw: bytes) -> bytes:
    place = array([text(topic) + array([struct.pack(">ii", 0, len(raw)) + raw])])
    return struct.pack(">hhi", 0, 8, 1) + text("bench") + struct.pack(">hhi", -1, -1, 30_000) + place


def fetch(topic: str, max_bytes: int) -> bytes:
    head = struct.pack(">hhi", 1, 4, 1) + text("bench") + struct.pack(">iiiib", -1, 0, 1, max_bytes, 0)
    return head + array([text(topic) + array([struct.pack(">iqi", 0, 0, max_bytes)])])


def create(connection: socket.socket, topic: str, raw: bytes) -> None:
    """Metadata makes the topic; the first record is repeated until somebody leads it."""
    body = struct.pack(">hhi", 3, 4, 1) + text("bench") + array([text(topic)]) + b"\1"
    ask(connection, struct.pack(">i", len(body)) + body)
    framed = produce(topic, raw)
    while error_of(ask(connection, struct.pack(">i", len(framed)) + framed), topic):
        time.sleep(0.1)


def error_of(answer: bytes, topic: str) -> int:
    """Of a Produce response behind its correlation id."""
    return int(struct.unpack_from(">h", answer, 4 + 2 + len(topic) + 8)[0])


def median_us(once: Callable[[], object]) -> float:
    taken: list[int] = []
    for _ in range(ASKED):
        begun = time.perf_counter_ns()
        once()
        taken.append(time.perf_counter_ns() - begun)
    return statistics.median(taken) / 1000


def echo(endpoint: str) -> int:
    """A process that sends back what comes; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    router = zmq.Context().socket(zmq.ROUTER)
    router.bind(endpoint)
    while True:
        router.send_multipart(router.recv_multipart(copy=False), copy=False)


def measure(listener: str, address: str, echo_at: str) -> None:
    """Prints the lines."""
    context: Context = zmq.Context()
    topic, large = f"zeromq-{os.getpid()}", f"zeromq-large-{os.getpid()}"
    small, raw = plain_batch(1), plain_batch(LARGE_RECORDS)
    with connect(address) as connection:
        create(connection, topic, small)
        create(connection, large, raw)
        session, bare = Session(context, listener), dealer(context, echo_at)
        request = produce(topic, small)
        framed, head = struct.pack(">i", len(request)) + request, header(REQUEST)

        def by_tcp() -> None:
            assert not error_of(ask(connection, framed), topic)

        def by_zeromq() -> None:
            answer = b"".join(frame.bytes for frame in session.ask(request))
            assert not error_of(answer[4:], topic)

        def by_echo() -> None:
            bare.send_multipart([head, request])
            bare.recv_multipart()

        for _ in range(ROUNDS):
            tcp, zeromq, floor = median_us(by_tcp), median_us(by_zeromq), median_us(by_echo)
            print(
                f"one record: TCP {tcp:.0f} µs, ZeroMQ {zeromq:.0f} µs, bare echo {floor:.0f} µs,"
                f" ZeroMQ to echo {zeromq / floor:.2f}"
            )
        asked = fetch(large, len(raw))
        for _ in range(ROUNDS):
            begun, size = time.perf_counter(), 0
            for _ in range(LARGE_BATCHES):
                size += sum(len(frame) for frame in session.ask(asked))
            assert size >= LARGE_BATCHES * len(raw)
            print(f"1 MiB: {size / (time.perf_counter() - begun) / 1e9:.2f} GB/s")
        context.destroy(linger=0)


def main() -> None:
    listener, address = sys.argv[1:]
    with tempfile.TemporaryDirectory() as home:
        echoing = echo(f"ipc://{home}/echo")
        try:
            measure(listener, address, f"ipc://{home}/echo")
        finally:
            os.kill(echoing, signal.SIGKILL)
            os.waitpid(echoing, 0)


if __name__ == "__main__":
    main()
