"""Names that lead to several addresses or to none, ports that speak something else, and hosts without descriptors."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from appliance_client import Consumer, Producer, TopicPartition, aio
from appliance_client.errors import AuthenticationError, ClientError, TimedOutError
from tests.support.pki import Authority

PATIENCE_S = 20.0
PLACE = TopicPartition("topic", 0)


class Listening:
    """A port, and how many have connected to it."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        self.connected = threading.Event()
        self.held: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                made, _ = self.socket.accept()
            except OSError:
                return
            self.connected.set()
            self.take(made)

    def take(self, made: socket.socket) -> None:
        """Somebody has connected; nobody says a word."""
        self.held.append(made)

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for each in self.held:
            each.close()


@contextmanager
def listening(kind: type[Listening] = Listening, *more: Any) -> Iterator[Listening]:
    made = kind(*more)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """An address that answers no SYN: the queue of its listener is full."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for each in (first, second):
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        time.sleep(0.05)
        yield listener.getsockname()


@pytest.mark.parametrize("is_async", [False, True])
def test_an_address_that_is_silent_does_not_hide_the_next_one_of_its_name(
    silent: tuple[str, int], monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    resolve = socket.getaddrinfo
    with listening() as other:

        def both(host: Any, port: Any, *more: Any, **named: Any) -> Any:
            if host != "broker.test":
                return resolve(host, port, *more, **named)
            kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            return [(*kind, silent), (*kind, ("127.0.0.1", other.port))]

        monkeypatch.setattr(socket, "getaddrinfo", both)
        options: dict[str, Any] = {
            "bootstrap_servers": "broker.test:9092",
            "socket_connection_setup_timeout_ms": 500,
        }

        async def play() -> None:
            consumer = aio.Consumer(**options)
            consumer.assign([PLACE])
            deadline = time.monotonic() + PATIENCE_S
            while not other.connected.is_set() and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
            await consumer.close(0)

        if is_async:
            asyncio.run(play())
        else:
            with Consumer(**options) as consumer:
                consumer.assign([PLACE])
                other.connected.wait(PATIENCE_S)
        assert other.connected.is_set()


def test_no_call_waits_for_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        asked.set()
        answered.wait(PATIENCE_S)
        raise socket.gaierror("no answer")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    consumer = Consumer(bootstrap_servers="broker.test:9092")
    consumer.assign([PLACE])
    assert asked.wait(PATIENCE_S)
    begin = time.monotonic()
    assert consumer.poll(50) == {}
    consumer.close(50)
    took_s = time.monotonic() - begin
    answered.set()
    assert took_s < 2


@pytest.mark.parametrize("host", ["a..b", "x" * 300, "no-such-host.invalid"])
def test_a_name_that_nobody_can_have_is_an_error_of_the_call(host: str) -> None:
    with Producer(bootstrap_servers=f"{host}:9092", max_block_ms=300) as producer:
        for _ in range(2):
            with pytest.raises(TimedOutError, match="cannot resolve"):
                producer.send("topic", b"x")

    async def play() -> None:
        async with aio.Producer(bootstrap_servers=f"{host}:9092", max_block_ms=300) as producer:
            for _ in range(2):
                with pytest.raises(TimedOutError, match="cannot connect"):
                    await producer.send("topic", b"x")

    asyncio.run(play())


def test_a_client_survives_that_the_process_runs_out_of_descriptors() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    filling: list[int] = []
    with listening() as broker, Consumer(bootstrap_servers=f"127.0.0.1:{broker.port}") as consumer:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
        try:
            try:
                while True:
                    filling.append(os.dup(1))
            except OSError:
                pass
            consumer.assign([PLACE])
            time.sleep(0.5)
        finally:
            for each in filling:
                os.close(each)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert broker.connected.wait(PATIENCE_S)


def test_why_a_broker_cannot_be_reached_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        caplog.at_level(logging.WARNING, "appliance_client"),
        Consumer(bootstrap_servers=f"127.0.0.1:{port}", reconnect_backoff_max_ms=50) as consumer,
    ):
        consumer.assign([PLACE])
        assert consumer.poll(1_000) == {}
    told = [each.getMessage() for each in caplog.records]
    assert (
        told[0] == f"broker 127.0.0.1:{port}: no connection (attempt 1): cannot connect: Connection refused"
    )
    assert len(told) < 8, "20 attempts in this second: those number 1, 2, 4, 8 and 16 are told"


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────


class SpeakingTls(Listening):
    """A port with a certificate; `authority`: whose certificates it wants to see."""

    def __init__(self, directory: Path, authority: Path | None) -> None:
        issued = Authority(directory).server()
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
        self._context.load_cert_chain(issued.certificate, issued.key)
        if authority is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
        super().__init__()

    def take(self, made: socket.socket) -> None:
        try:
            self.held.append(self._context.wrap_socket(made, server_side=True))
        except OSError:
            made.close()


class SpeakingHttp(Listening):
    """A port that speaks something else."""

    def take(self, made: socket.socket) -> None:
        made.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        super().take(made)


@pytest.mark.parametrize("what", ["of an unknown authority", "of another host", "wants one", "no TLS"])
def test_a_refused_certificate_is_told_at_once_and_not_after_max_block_ms(tmp_path: Path, what: str) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    wanted = Authority(tmp_path / "wanted").certificate if what == "wants one" else None
    known = Authority(ours).certificate if what == "of an unknown authority" else theirs / "authority.pem"
    serving = listening(SpeakingHttp) if what == "no TLS" else listening(SpeakingTls, theirs, wanted)
    with serving as broker:
        if what == "no TLS":
            known = Authority(theirs).certificate
        host = "127.0.0.3" if what == "of another host" else "127.0.0.1"
        options: dict[str, Any] = {
            "bootstrap_servers": f"{host}:{broker.port}",
            "security_protocol": "SSL",
            "ssl_cafile": str(known),
        }
        if what == "of another host":
            broker.close()
            broker.socket = socket.create_server(("0.0.0.0", broker.port))
            threading.Thread(target=broker._accept, daemon=True).start()
        says = {
            "of an unknown authority": "certificate is not accepted",
            "of another host": "IP address mismatch",
            "wants one": "certificate required",
            "no TLS": "wrong version number",
        }[what]
        begin = time.monotonic()
        with Producer(**options) as producer, pytest.raises(AuthenticationError, match=says):
            producer.send("topic", b"x")
        with Consumer(**options) as consumer:
            consumer.assign([PLACE])
            with pytest.raises(AuthenticationError, match=says):
                consumer.poll(PATIENCE_S * 1000)

        async def play() -> None:
            async with aio.Producer(**options) as producer:
                with pytest.raises(ClientError, match=says) as raised:
                    await producer.send("topic", b"x")
                assert isinstance(raised.value, AuthenticationError)

        asyncio.run(play())
        assert time.monotonic() - begin < PATIENCE_S
