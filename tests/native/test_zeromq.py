"""The native client over ZeroMQ: what the session counts, who is admitted, and what breaks."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq.auth

from appliance_client import Consumer, Producer, TopicPartition, aio, zeromq
from appliance_client.connection import Connection
from appliance_client.errors import BufferFullError, ClientError, OptionError, RecordTooLargeError
from appliance_client.options import ProducerOptions, addresses_of, options_of
from appliance_client.zeromq_session import (
    CREDIT,
    ERROR,
    OPENED,
    RESPONSE,
    WINDOW_BYTES,
    SessionEndedError,
    ZeroMqSession,
)
from tests.support.broker import Appliance
from tests.support.judge import JUDGE
from tests.support.wire import free_ports

TOKEN = b"t" * 16
PATIENCE_S = 60.0


def theirs(kind: int, *body: bytes, flags: int = 0, mark: int = 0) -> list[bytes]:
    """A message of the broker, as docs/zeromq.md has it."""
    return [struct.pack(">HBBIQQ", 0x4B5A, 1, kind, flags, mark, 0), *body]


def session(*, requests: int = 3, bytes_in_flight: int = 1_000, frames: int = 64) -> ZeroMqSession:
    made = ZeroMqSession(0, "test", 10_000)
    limits = struct.pack(">16sIQQQIII", TOKEN, requests, 500, bytes_in_flight, 1 << 20, frames, 100, 300)
    made.opened(theirs(OPENED, limits + b"fields of a later version"))
    return made


def asked(size: int = 4, *, is_answered: bool = True) -> tuple[list[Any], bool]:
    return [struct.pack(">i", size) + b"r" * size], is_answered


# ── what the session counts ──────────────────────────────────────────────────────────────────────────────


def test_parts_are_joined_and_each_mark_is_acknowledged() -> None:
    made = session()
    assert made.request(asked()) == [struct.pack(">HBBI16s", 0x4B5A, 1, 5, 0, TOKEN), b"rrrr"]
    assert made.received(theirs(RESPONSE, b"ab", b"c", flags=1, mark=77)) is None
    assert made.received(theirs(CREDIT, mark=78)) is None
    answer = made.received(theirs(RESPONSE, b"de"))
    assert answer is not None
    assert bytes(answer) == b"\0\0\0\5abcde"
    credits = [credit for _, credit in made.controls]
    assert credits == [struct.pack(">QQ", mark, WINDOW_BYTES) for mark in (77, 78)]


@pytest.mark.parametrize(("requests", "size"), [(2, 4), (9, 500)], ids=["requests", "bytes"])
def test_a_request_beyond_the_limits_waits_for_an_answer(requests: int, size: int) -> None:
    made = session(requests=requests)
    assert made.request(asked(size))
    assert made.request(asked(size))
    assert made.request(asked(size)) is None
    assert made.holds
    made.received(theirs(RESPONSE, b"a"))
    assert made.request(None)
    assert not made.holds


def test_a_request_without_an_answer_counts_until_the_next_answer() -> None:
    made = session(requests=3)
    assert made.request(asked(is_answered=False))
    assert made.request(asked(is_answered=False))
    assert made.request(asked())
    assert made.request(asked()) is None
    made.received(theirs(RESPONSE, b"a"))
    assert made.request(None)
    assert made.request(asked())
    assert made.request(asked())


def test_a_message_has_no_more_frames_than_the_broker_takes() -> None:
    made = session(frames=4)
    pieces: list[Any] = [struct.pack(">i", 5) + b"a", b"b", b"c", b"d", b"e"]
    message = made.request((pieces, True))
    assert message is not None
    assert [bytes(frame) for frame in message[1:]] == [b"a", b"b", b"cde"]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (theirs(ERROR, struct.pack(">HH", 2, 4) + b"gone"), "UNKNOWN_SESSION: gone"),
        (theirs(ERROR, struct.pack(">HH", 99, 4) + b"gone"), "99: gone"),
        (theirs(ERROR, b"\0"), "does not parse"),
        (theirs(RESPONSE, b"a"), "nothing asked for"),
        (theirs(RESPONSE, b"a" * 10_001, flags=1), "receive.message.max.bytes"),
        ([b"HTTP/1.1 400 Bad Request"], "no appliance"),
        ([b"HTTP"], "no appliance"),
    ],
)
def test_what_ends_a_session_says_why(message: list[bytes], says: str) -> None:
    with pytest.raises(SessionEndedError, match=says):
        session().received(message)


def test_a_request_larger_than_the_broker_takes_is_not_sent() -> None:
    with pytest.raises(SessionEndedError, match="the broker takes 500"):
        session().request(asked(501))


# ── addresses ────────────────────────────────────────────────────────────────────────────────────────────


def test_an_address_chooses_the_transport() -> None:
    listed = "zmq+ipc:///run/a, zmq+tcp://b:5555"
    assert addresses_of(listed) == ("zmq+ipc", (("zmq+ipc:///run/a", 0), ("zmq+tcp://b:5555", 0)))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bootstrap_servers": "zmq+ipc:///a,localhost:9092"}, "one transport"),
        ({"bootstrap_servers": "zmq+tcp://"}, "no place"),
        ({"bootstrap_servers": "zmq+udp://a"}, "no transport for zmq"),
        ({"zeromq.curve.key.file": "a"}, "both or neither"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        options_of(ProducerOptions, options, {})


class Gate:
    """A port that leads to another one, but not before it is opened."""

    def __init__(self, port: int) -> None:
        self.opened = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._behind = port
        threading.Thread(target=self._lead, daemon=True).start()

    def _lead(self) -> None:
        with self._listener, self._listener.accept()[0] as outer:
            self.opened.wait(PATIENCE_S)
            with socket.create_connection(("127.0.0.1", self._behind)) as inner:
                threading.Thread(target=pump, args=(outer, inner), daemon=True).start()
                pump(inner, outer)


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while some := source.recv(65_536):
            target.sendall(some)
    except OSError:
        pass


def test_a_connection_that_comes_about_between_two_looks_is_used_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look at the events takes away what the descriptor would have told: HELLO waited for the setup's time then."""
    look = zeromq._events
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        gate = Gate(router.bind_to_random_port("tcp://127.0.0.1"))
        with Consumer(bootstrap_servers=f"zmq+tcp://127.0.0.1:{gate.port}") as consumer:
            consumer.assign([TopicPartition("topic", 0)])
            while not (links := [each.link for each in consumer._core.network.connections() if each.link]):
                time.sleep(0.01)
            time.sleep(0.2)  # all that is told at the beginning has been told
            looks: list[int] = []

            def slow(used: zmq.Socket[bytes]) -> int:
                if used.type == zmq.DEALER:
                    looks.append(0)
                    if len(looks) == 2:
                        gate.opened.set()
                        assert used.poll(2_000, zmq.POLLOUT)
                return look(used)

            monkeypatch.setattr(zeromq, "_events", slow)
            assert isinstance(links[0], zeromq.ZeroMqLink)
            consumer._io.submit(links[0].turn)
            assert router.poll(3_000), "HELLO does not come"


def test_where_nobody_listens_the_caller_is_told_within_its_time(tmp_path: Path) -> None:
    address = f"zmq+ipc://{tmp_path}/nobody"
    begun = time.monotonic()
    with (
        Producer(bootstrap_servers=address, max_block_ms=300) as producer,
        pytest.raises((BufferFullError, ClientError), match="nobody"),
    ):
        producer.send("topic", b"x")
    assert time.monotonic() - begun < 5


# ── a real broker ────────────────────────────────────────────────────────────────────────────────────────


class Guarded:
    """An appliance with ZeroMQ by ipc, and by tcp with CURVE."""

    def __init__(self, home: Path) -> None:
        clients = home / "clients"
        clients.mkdir()
        zmq.auth.create_certificates(home, "server")
        self.alice = zmq.auth.create_certificates(home, "alice")[1]
        self.mallory = zmq.auth.create_certificates(home, "mallory")[1]
        (home / "alice.key").rename(clients / "alice.key")
        self.server_key = str(home / "server.key")
        self.ipc = f"zmq+ipc://{home}/z"
        self.tcp = f"zmq+tcp://127.0.0.1:{free_ports(3)}"
        self.broker = Appliance(
            home / "data",
            settings={
                "listeners.zeromq": [self.ipc.removeprefix("zmq+"), self.tcp.removeprefix("zmq+")],
                "zeromq.curve.secret.key.file": str(home / "server.key_secret"),
                "zeromq.curve.client.keys.dir": str(clients),
                "zeromq.session.timeout.ms": 1_500,
                "socket.request.max.bytes": 8 << 20,
                "message.max.bytes": 16 << 20,
            },
        )

    def keys(self, file: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.tcp,
            "zeromq_curve_key_file": file,
            "zeromq_curve_server_key": self.server_key,
        }


if JUDGE != "kafka":

    @pytest.fixture(scope="module")
    def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
        made = Guarded(tmp_path_factory.mktemp("g"))
        made.broker.start(180)
        try:
            yield made
        finally:
            made.broker.stop()

    @pytest.fixture
    def losses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Why connections were lost, whoever lost one."""
        told: list[str] = []
        lost = Connection.lost

        def spied(connection: Connection, reason: str) -> None:
            if connection.state != Connection.IDLE:
                told.append(reason)
            lost(connection, reason)

        monkeypatch.setattr(Connection, "lost", spied)
        return told

    def test_a_client_with_a_known_key_is_served_and_another_is_told_that_it_is_not_admitted(
        guarded: Guarded, losses: list[str]
    ) -> None:
        with Producer(**guarded.keys(guarded.alice)) as producer:
            assert producer.send("curve", b"x").get(PATIENCE_S).offset == 0
        losses.clear()
        with (
            Producer(**guarded.keys(guarded.mallory), max_block_ms=2_000) as producer,
            pytest.raises(ClientError),
        ):
            producer.send("curve", b"x")
        assert any("not admitted" in reason or "no session" in reason for reason in losses), losses

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"zeromq_curve_key_file": "/nowhere/a"}, "zeromq.curve.key.file"),
            ({"zeromq_curve_server_key": "short"}, "40 characters"),
            ({"zeromq_curve_server_key": "/nowhere/b"}, "zeromq.curve.server.key"),
        ],
    )
    def test_keys_that_cannot_be_read_are_refused_at_once(
        guarded: Guarded, options: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(OptionError, match=says):
            Producer(**{**guarded.keys(guarded.alice), **options})

    def test_a_client_that_says_nothing_keeps_its_session(guarded: Guarded, losses: list[str]) -> None:
        """Its session lives 1.5 s without a word, and a fetch that waits is silent for longer."""
        with Producer(bootstrap_servers=guarded.ipc) as producer:
            assert producer.send("quiet", b"x", partition=0).get(PATIENCE_S).offset == 0
            with Consumer(bootstrap_servers=guarded.ipc, fetch_max_wait_ms=20_000) as consumer:
                place = TopicPartition("quiet", 0)
                consumer.assign([place])
                consumer.seek(place, 1)
                until = time.monotonic() + 5
                while time.monotonic() < until:
                    assert not consumer.poll(500)
                assert losses == []
                producer.send("quiet", b"y", partition=0)
                while not (polled := consumer.poll(1_000)):
                    assert time.monotonic() < until + PATIENCE_S
                assert [each.value for each in polled[place]] == [b"y"]

    def test_a_record_that_no_session_takes_fails_alone_and_names_the_limit(
        guarded: Guarded, losses: list[str]
    ) -> None:
        with Producer(bootstrap_servers=guarded.ipc, max_request_size=32 << 20) as producer:
            assert producer.send("large", b"x", partition=0).get(PATIENCE_S).offset == 0
            refused = producer.send("large", bytes(9 << 20), partition=0)
            with pytest.raises(RecordTooLargeError, match=r"socket\.request\.max\.bytes"):
                refused.get(PATIENCE_S)
            assert producer.send("large", b"y", partition=0).get(PATIENCE_S).offset == 1
            assert losses == []

    def test_answers_longer_than_the_window_arrive(guarded: Guarded) -> None:
        value = bytes(range(256)) * 3_900
        with Producer(bootstrap_servers=guarded.ipc, max_request_size=2 << 20) as producer:
            for _ in range(24):
                producer.send("long", value, partition=0).get(PATIENCE_S)
        sizes: dict[str, Any] = {"fetch_max_bytes": 64 << 20, "max_partition_fetch_bytes": 64 << 20}
        with Consumer(bootstrap_servers=guarded.ipc, **sizes) as consumer:
            place = TopicPartition("long", 0)
            consumer.assign([place])
            consumer.seek_to_beginning()
            found: list[Any] = []
            until = time.monotonic() + PATIENCE_S
            while len(found) < 24 and time.monotonic() < until:
                found += consumer.poll(1_000).get(place, ())
        assert 24 * len(value) > 2 * WINDOW_BYTES
        assert [each.value for each in found] == [value] * 24

    def test_a_killed_network_process_costs_no_record_and_doubles_none(
        guarded: Guarded, losses: list[str]
    ) -> None:
        stopped = threading.Event()
        with Producer(bootstrap_servers=guarded.ipc, linger_ms=1) as producer:
            producer.send("killed", b"first", partition=0).get(PATIENCE_S)

            def kill() -> None:
                for index in range(len(guarded.broker.pids("netproc"))):
                    time.sleep(0.5)
                    guarded.broker.kill_role("netproc", index)
                time.sleep(0.5)
                stopped.set()

            thread = threading.Thread(target=kill)
            thread.start()
            futures: list[Any] = []
            while not stopped.is_set():
                futures.append(producer.send("killed", b"%d" % len(futures), partition=0))
                time.sleep(0.001)
            thread.join()
            told = [future.get(PATIENCE_S).offset for future in futures]
        assert losses, "nobody noticed that a process was killed"
        assert told == list(range(1, len(told) + 1))
        with Consumer(bootstrap_servers=guarded.ipc) as consumer:
            assert consumer.end_offsets([TopicPartition("killed", 0)]).popitem()[1] == len(told) + 1

    def test_the_asyncio_face_notices_a_killed_network_process_and_goes_on(
        guarded: Guarded, losses: list[str]
    ) -> None:
        async def scenario() -> list[int]:
            async with aio.Producer(bootstrap_servers=guarded.ipc) as producer:
                told = [(await (await producer.send("async", b"x", partition=0))).offset]
                for index in range(len(guarded.broker.pids("netproc"))):
                    guarded.broker.kill_role("netproc", index)
                futures = [await producer.send("async", b"x", partition=0) for _ in range(100)]
                told += [(await future).offset for future in futures]
            return told

        assert asyncio.run(scenario()) == list(range(101))
        assert losses
