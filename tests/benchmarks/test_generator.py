"""The generator's verdicts, against a broker that misbehaves on purpose. Compiles the generator."""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from benchmarks.load import build, generators
from benchmarks.load.generators import Requests
from benchmarks.void import Void
from tests.support.ready import is_readable

pytestmark = pytest.mark.slow

TOPIC = "t"
RUNS_AT_THE_EDGE = 600
HEADER = struct.Struct(">ihhi")
Answer = Callable[[int, int], bytes | None]


def acknowledged(correlation_id: int, base_offset: int, error: int = 0) -> bytes:
    """A Produce v9 response of one partition."""
    partition = struct.pack(">ihqqqBBB", 0, error, base_offset, -1, 0, 1, 0, 0)
    body = b"\x02" + bytes([len(TOPIC) + 1]) + TOPIC.encode() + b"\x02" + partition + b"\0" + bytes(4) + b"\0"
    frame = struct.pack(">ib", correlation_id, 0) + body
    return struct.pack(">i", len(frame)) + frame


@contextmanager
def broker(answer: Answer) -> Iterator[str]:
    """Answers the n-th request with `answer(correlation_id, n)`, or hangs up on None."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client, client.makefile("rb") as stream:
                count = 0
                while len(head := stream.read(HEADER.size)) == HEADER.size:
                    length, _key, _version, correlation_id = HEADER.unpack(head)
                    stream.read(length + 4 - HEADER.size)
                    said = answer(correlation_id, count)
                    if said is None:
                        return
                    try:
                        client.sendall(said)
                    except OSError:
                        return
                    count += 1

        thread = threading.Thread(target=serve)
        thread.start()
        host, port = listener.getsockname()
        yield f"{host}:{port}"
        thread.join()


def produce(address: str, mode: str = "produce") -> Requests:
    return generators.one_record(mode, address, topic=TOPIC, seconds=1, warmup_ms=0)


@pytest.mark.parametrize("mode", ["produce", "latency"])
def test_every_acknowledged_record_is_counted(mode: str) -> None:
    answered = 0

    def answer(correlation_id: int, count: int) -> bytes:
        nonlocal answered
        answered += 1
        return acknowledged(correlation_id, count)

    with broker(answer) as address:
        assert produce(address, mode).acked_records == answered > 0


@pytest.mark.parametrize("mode", ["produce", "latency"])
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda correlation_id, n: acknowledged(correlation_id, n, error=7 if n == 5 else 0), "error code 7"),
        (
            lambda correlation_id, n: acknowledged(correlation_id + (n == 5), n),
            "correlation id 6, expected 5",
        ),
        (lambda correlation_id, n: acknowledged(correlation_id, n) if n < 5 else None, "closed"),
        (lambda correlation_id, _n: struct.pack(">ii", 4, correlation_id), "malformed"),
        (lambda _correlation_id, _n: struct.pack(">i", -1), "an answer of -1 bytes"),
    ],
    ids=["error code", "correlation id", "hang up", "cut short", "negative length"],
)
def test_one_bad_answer_voids_the_run(answer: Answer, why: str, mode: str) -> None:
    with broker(answer) as address, pytest.raises(Void, match=why):
        produce(address, mode)


@pytest.mark.parametrize("hangs_up", [False, True])
def test_idle_connections_that_the_broker_closed_are_told(hangs_up: bool) -> None:
    """They would make each of the others look cheaper."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as held:
        greeted = threading.Event()

        def greet() -> None:
            clients = []
            for _ in range(3):
                client = held.enter_context(listener.accept()[0])
                (length,) = struct.unpack(">i", client.recv(4, socket.MSG_WAITALL))
                hello = client.recv(length, socket.MSG_WAITALL)
                client.sendall(struct.pack(">i4sh", 6, hello[4:8], 0))
                clients.append(client)
            if hangs_up:
                clients[1].close()
            greeted.set()

        thread = threading.Thread(target=greet)
        thread.start()
        host, port = listener.getsockname()
        idle = generators.IdleConnections(f"{host}:{port}", 3)
        assert greeted.wait(30)
        if hangs_up:
            with pytest.raises(Void, match="1 of 3 idle connections were closed"):
                idle.close()
        else:
            idle.close()
        thread.join()


def test_a_connection_comes_when_the_one_before_has_been_accepted() -> None:
    """A short queue of connections would drop the others, and the kernel tries such a one again after a second."""
    waiting: list[bool] = []
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:

        def greet() -> None:
            with ExitStack() as held:
                for _ in range(3):
                    client = held.enter_context(listener.accept()[0])
                    waiting.append(is_readable(listener, within_s=0.1))
                    (length,) = struct.unpack(">i", client.recv(4, socket.MSG_WAITALL))
                    hello = client.recv(length, socket.MSG_WAITALL)
                    client.sendall(struct.pack(">i4sh", 6, hello[4:8], 0))

        thread = threading.Thread(target=greet)
        thread.start()
        host, port = listener.getsockname()
        with pytest.raises(Void):  # then it hangs up
            generators.one_record("produce", f"{host}:{port}", topic=TOPIC, seconds=1, connections=3)
        thread.join()
    assert waiting == [False, False, False]


def test_an_answer_in_the_last_moment_is_the_last() -> None:
    """It used to be waited for another one, in one run of sixty: read before the time was up, seen after it."""
    for _ in range(RUNS_AT_THE_EDGE):
        with broker(acknowledged) as address:
            words = ["produce", address, TOPIC, "seconds", "0", "warmup_ms", "4"]
            ended = subprocess.run([build.one_record(), *words], timeout=5, capture_output=True, check=True)
            assert b"acked_records" in ended.stdout
