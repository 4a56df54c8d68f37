"""A schema registry that drips, lies, or sends what is no HTTP: it costs one bounded wait, and bounded memory."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from appliance.schemas import registry as under_test
from appliance.schemas.avro import AvroSchema
from appliance.schemas.faults import REASON_MAX, Undecodable
from appliance.schemas.kept import KeptSchemas
from appliance.schemas.registry import ANSWER_BYTES_MAX, TIMEOUT_S, SchemaRegistry

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class Hostile:
    """Answers each connection with some bytes, one after the other with a pause in between if `pause_s` says so."""

    def __init__(self, answer: bytes, *, pause_s: float = 0.0) -> None:
        self.connections = 0
        self._answer = answer
        self._pause_s = pause_s
        self._is_over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while not self._is_over.is_set():
            sock, _ = self._listener.accept()
            self.connections += 1
            self._threads.append(threading.Thread(target=self._serve, args=(sock,)))
            self._threads[-1].start()

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                if self._is_over.is_set():
                    return
                sock.recv(65536)
                if not self._pause_s:
                    sock.sendall(self._answer)
                    return
                for byte in self._answer:
                    sock.sendall(bytes([byte]))
                    if self._is_over.wait(self._pause_s):
                        return
            except OSError:
                return  # the client has gone

    def close(self) -> None:
        self._is_over.set()
        socket.create_connection(self._listener.getsockname()).close()
        for thread in self._threads:
            thread.join()
        self._listener.close()


@pytest.fixture
def hostile() -> Iterator[Callable[..., Hostile]]:
    started: list[Hostile] = []

    def start(answer: bytes, *, pause_s: float = 0.0) -> Hostile:
        started.append(Hostile(answer, pause_s=pause_s))
        return started[-1]

    yield start
    for each in started:
        each.close()


def with_body(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    "start", [b"", b"HTTP/1.1 200 OK\r\nX-Drip: ", HEAD + b"Content-Length: 9999\r\n\r\n"]
)
def test_a_registry_that_drips_costs_one_wait(hostile: Callable[..., Hostile], start: bytes) -> None:
    server = hostile(start + b"x" * 10_000, pause_s=0.02)
    registry = SchemaRegistry(server.url)
    began_s = time.monotonic()
    for schema_id in range(20):
        with pytest.raises(Undecodable, match="does not answer"):
            registry.by_id(schema_id)
    assert time.monotonic() - began_s < TIMEOUT_S + 10  # of 20 waits
    assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not answer"),
        (b"HTTP/1.1 abc\r\n\r\n", "does not answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n", "does not answer"),
        (HEAD + b"X: " + b"y" * 100_000 + b"\r\n\r\n", "does not answer"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "does not answer"),
        (HEAD + b"Content-Length: 99\r\n\r\n{", "schema 1"),
        (with_body(b"[" * 1_000_000), "RecursionError"),
        (with_body(b'{"schema":' + b'{"a":' * 500_000), "RecursionError"),
        (with_body(b'{"schema":' + b"9" * 10_000 + b"}"), "ValueError"),
        (with_body(json.dumps({"schemaType": "x" * 100_000}).encode()), "type xxx"),
        (with_body(json.dumps({"schemaType": "PROTOBUF", "schema": "%%"}).encode()), "schema 1"),
        (with_body(b" " * (ANSWER_BYTES_MAX + 1)), "bytes"),
        (b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "status 301"),
    ],
)
def test_answers_that_are_none_are_told(hostile: Callable[..., Hostile], answer: bytes, why: str) -> None:
    registry = SchemaRegistry(hostile(answer).url)
    with pytest.raises(Undecodable, match=why) as fault:
        registry.by_id(1)
    assert len(str(fault.value)) <= REASON_MAX


def test_who_waits_for_a_slow_registry_waits_no_longer_than_for_an_answer(
    hostile: Callable[..., Hostile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "TIMEOUT_S", 1.0)
    # It answers each question, after 0.5 s: 20 of them would take 10 s.
    answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    registry = SchemaRegistry(hostile(answer, pause_s=0.5 / len(answer)).url)
    waits: list[float] = []

    def ask(schema_id: int) -> None:
        began_s = time.monotonic()
        with pytest.raises(Undecodable):
            registry.by_id(schema_id)
        waits.append(time.monotonic() - began_s)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(waits) == 20
    assert max(waits) < 6


def test_schemas_that_are_kept_have_bounded_bytes() -> None:
    schema = AvroSchema('"int"')
    kept: KeptSchemas[int, int] = KeptSchemas(kept_max=4, bytes_max=100)
    for number, size_bytes in enumerate((40, 40, 40)):
        kept.put(number, 0, schema, size_bytes)
    assert [kept.get(number) is None for number in range(3)] == [True, False, False]
    kept.put(2, 1, schema, 60)  # it was read again
    assert kept.get(1) is not None
    kept.put(3, 0, schema, 1_000)
    assert len(kept) == 1
    for number in range(10, 20):
        kept.put(number, 0, schema, 1)
    assert len(kept) == 4
