"""ZeroMQ clients, as docs/zeromq.md has them: plain pyzmq, and nothing of our code on the client's side."""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import zmq

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.records.record import Record, encode_batch
from tests.gateway.sample_requests import request
from tests.support import zeromq_wire as wire
from tests.support.broker import Appliance, BrokerFailed
from tests.support.raw_fetch import is_served, parse_batches
from tests.support.wire import ConnectionEnded, WireSocket, free_ports, nullable_string
from tests.support.zeromq_wire import (
    Dealer,
    NothingCame,
    SessionEnded,
    ZeroMqSession,
    say_hello,
)
from tests.system.raw import MIB, create_topic, pss_bytes, read_produced, wait_until

TOPIC = "carried"
VALUE = b"v" * 100
CHANGING = {ApiKey.INIT_PRODUCER_ID, ApiKey.CREATE_TOPICS, ApiKey.DESCRIBE_QUORUM, ApiKey.DESCRIBE_LOG_DIRS}
SETTINGS: dict[str, object] = {"zeromq.session.timeout.ms": 20_000}

Context = zmq.Context[zmq.Socket[bytes]]


@dataclass(frozen=True, slots=True)
class Served:
    """An appliance and its ZeroMQ listener."""

    broker: Appliance
    listener: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("zq")
    listener = f"ipc://{home}/s"
    appliance = Appliance(home / "data", settings={"listeners.zeromq": [listener], **SETTINGS})
    appliance.start(180)
    try:
        assert create_topic(appliance.port, TOPIC) == 0
        wait_until(partial(is_served, appliance.address, TOPIC, 1), TOPIC)
        yield Served(appliance, listener)
    finally:
        appliance.stop()


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    yield made
    made.destroy(linger=0)


def produce_request(
    topic: str, batch: bytes, *, correlation_id: int = 1, acks: int = -1
) -> tuple[bytes, bytes]:
    """Return a Produce request as two frames, so that the batch is in a frame of its own."""
    head = struct.pack(">hhi", ApiKey.PRODUCE, 8, correlation_id) + nullable_string("test")
    head += nullable_string(None) + struct.pack(">hii", acks, 30_000, 1) + nullable_string(topic)
    return head + struct.pack(">iii", 1, 0, len(batch)), batch


def fetch_request(topic: str, offset: int, *, max_bytes: int = 64 * MIB, max_wait_ms: int = 0) -> bytes:
    head = struct.pack(">hhi", ApiKey.FETCH, 4, 2) + nullable_string("test")
    head += struct.pack(">iiiibi", -1, max_wait_ms, 1, max_bytes, 0, 1) + nullable_string(topic)
    return head + struct.pack(">iiqi", 1, 0, offset, max_bytes)


def fetched_records(answer: bytes, topic: str) -> bytes:
    at = 4 + 4 + 4 + 2 + len(topic) + 4
    _, error, _, _, aborted = struct.unpack_from(">ihqqi", answer, at)
    assert not error
    at += 26 + 16 * max(aborted, 0)
    (length,) = struct.unpack_from(">i", answer, at)
    assert len(answer) == at + 4 + length
    return answer[at + 4 :]


def fetched_offsets(answer: bytes, topic: str) -> list[tuple[int, int]]:
    return [(batch.base_offset, batch.last_offset) for batch in parse_batches(fetched_records(answer, topic))]


def new_topic(served: Served, name: str, *, partitions: int = 1) -> str:
    """Create a topic whose name begins with `name`; a second try of the same test gets another one."""
    name = f"{name}-{secrets.token_hex(4)}"
    assert create_topic(served.broker.port, name, partitions=partitions) == 0
    wait_until(partial(is_served, served.broker.address, name, partitions), name)
    return name


def api_versions() -> bytes:
    return struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 5, -1)


def all_that_comes(session: ZeroMqSession) -> int:
    """Read until nothing has come for two seconds; return how many bytes."""
    received = 0
    with suppress(NothingCame):
        while True:
            received += len(session.receive(2000).body)
    return received


def ask_until_it_ends(session: ZeroMqSession) -> None:
    """Ask until an ERROR comes. What was sent into a connection that broke has no answer."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        session.send(wire.REQUEST, api_versions())
        with suppress(NothingCame):
            session.receive(300)
    raise AssertionError("the session goes on")


def is_alive(session: ZeroMqSession) -> bool:
    return session.ask(api_versions())[:4] == struct.pack(">i", 5)


# What is served


def test_a_program_with_pyzmq_alone_produces_and_fetches(served: Served, context: Context) -> None:
    with ZeroMqSession(context, served.listener) as session:
        assert is_alive(session)
        batch = encode_batch([Record(VALUE), Record(VALUE)])
        answers = [read_produced(session.ask(*produce_request(TOPIC, batch))) for _ in range(3)]
        assert [answer.error for answer in answers] == [0, 0, 0]
        first = answers[0].base_offset
        assert [answer.base_offset for answer in answers] == [first, first + 2, first + 4]
        fetched = session.ask(fetch_request(TOPIC, first))
        assert fetched_offsets(fetched, TOPIC) == [(first + n, first + n + 1) for n in (0, 2, 4)]
        session.close()


def asked_by_tcp(port: int, frame: bytes) -> bytes | None:
    """Return the response; None where the broker closes the connection instead."""
    with WireSocket(port) as connection:
        connection.send_frame(frame)
        try:
            return connection.read_frame()
        except ConnectionEnded:
            return None


def asked_by_zeromq(context: Context, listener: str, frame: bytes) -> bytes | None:
    """Return the response; None where the broker ends the session instead, because the request is malformed."""
    with ZeroMqSession(context, listener) as session:
        session.send(wire.REQUEST, frame)
        code, answer = response_or_code(session)
        assert code in {0, wire.MALFORMED}
        return answer


def response_or_code(session: ZeroMqSession) -> tuple[int, bytes | None]:
    """Return 0 and the response, or the code of the error that ended the session."""
    try:
        return 0, session.response()
    except SessionEnded as ended:
        return ended.code, None


def as_anonymous(answer: bytes) -> bytes:
    """The answer to a client that nobody knows. By ipc the kernel tells who asks, and some answers name them."""
    who, nobody = pwd.getpwuid(os.geteuid()).pw_name.encode(), b"ANONYMOUS"
    plain = answer.replace(len(who).to_bytes(2, "big") + who, len(nobody).to_bytes(2, "big") + nobody)
    return plain.replace(bytes([len(who) + 1]) + who, bytes([len(nobody) + 1]) + nobody)


@pytest.mark.parametrize("api", ApiKey, ids=lambda api: api.name)
def test_every_api_answers_over_zeromq_as_over_tcp(api: ApiKey, served: Served, context: Context) -> None:
    """Same frame in, same body out, in the oldest and the newest version, and in requests with and without elements.

    What differs from one request to the next over TCP, too (a new producer id, a time), is compared in its length.
    """
    for version in sorted({api.min_version, api.max_version}):
        for elements in (0, 1):
            frame = request(api, version, elements=elements)
            by_tcp = asked_by_tcp(served.broker.port, frame)
            by_zeromq = asked_by_zeromq(context, served.listener, frame)
            again_by_tcp = asked_by_tcp(served.broker.port, frame)
            if by_tcp == again_by_tcp:
                assert (by_zeromq and as_anonymous(by_zeromq)) == by_tcp
            else:
                assert api in CHANGING
                assert by_zeromq is not None
                assert by_tcp is not None
                assert len(by_zeromq) in {len(by_tcp), len(again_by_tcp or b"")}


def test_requests_of_one_session_are_answered_in_order(served: Served, context: Context) -> None:
    """A Fetch that waits holds up what comes behind it, as on a TCP connection; frames may be cut anywhere."""
    topic = new_topic(served, "in-order")
    batch = encode_batch([Record(VALUE)])
    with ZeroMqSession(context, served.listener) as session:
        session.send(wire.REQUEST, fetch_request(topic, 0, max_wait_ms=700))
        head, body = produce_request(topic, batch, correlation_id=3)
        session.send(wire.REQUEST, head[:1], b"", head[1:], body[:50], body[50:])
        session.send(wire.REQUEST, api_versions())
        answers = [session.response() for _ in range(3)]
        assert [struct.unpack_from(">i", answer)[0] for answer in answers] == [2, 3, 5]
        assert not fetched_records(answers[0], topic)  # it was produced behind the Fetch
        assert not read_produced(answers[1]).error


def test_a_produce_without_an_answer_is_written(served: Served, context: Context) -> None:
    topic = new_topic(served, "unanswered")
    with ZeroMqSession(context, served.listener) as session:
        for _ in range(5):
            session.send(wire.REQUEST, *produce_request(topic, encode_batch([Record(VALUE)]), acks=0))
        assert is_alive(session)
        assert len(fetched_offsets(session.ask(fetch_request(topic, 0)), topic)) == 5


def test_what_was_produced_before_close_is_written(served: Served, context: Context) -> None:
    topic = new_topic(served, "and-gone")
    with ZeroMqSession(context, served.listener) as session, ZeroMqSession(context, served.listener) as other:
        session.send(wire.REQUEST, fetch_request(topic, 0, max_wait_ms=20_000))
        session.send(wire.REQUEST, *produce_request(topic, encode_batch([Record(VALUE)]), acks=1))
        session.close()
        wait_until(lambda: len(fetched_offsets(other.ask(fetch_request(topic, 0)), topic)) == 1, "written")


def test_a_large_answer_comes_in_parts_and_whole(served: Served, context: Context) -> None:
    topic = new_topic(served, "large")
    batch = encode_batch([Record(bytes(900_000))])
    with ZeroMqSession(context, served.listener, window=1 << 20) as session:
        for _ in range(12):
            assert not read_produced(session.ask(*produce_request(topic, batch))).error
        session.send(wire.REQUEST, fetch_request(topic, 0))
        parts: list[wire.Message] = []
        while not parts or parts[-1].flags & wire.MORE:
            parts.append(session.receive())
        assert len(parts) > 10
        assert max(len(part.body) for part in parts) < 1_200_000
        answer = b"".join(part.body for part in parts)
        assert fetched_offsets(answer, topic) == [(n, n) for n in range(12)]


# Sessions


def test_a_client_is_told_what_a_broker_is_not(served: Served, context: Context) -> None:
    with pytest.raises(SessionEnded) as refused:
        say_hello(context, served.listener, broker_id=7)
    assert refused.value.code == wire.UNKNOWN_BROKER


def test_clients_are_spread_over_the_network_processes(served: Served, context: Context) -> None:
    sessions = [ZeroMqSession(context, served.listener) for _ in range(8)]
    try:
        endpoints = [session.endpoint for session in sessions]
        assert sorted({endpoints.count(endpoint) for endpoint in endpoints}) == [4]
    finally:
        for session in sessions:
            session.close()


def test_heartbeats_keep_a_silent_session_and_are_answered_only_to_who_reads(
    served: Served, context: Context
) -> None:
    with ZeroMqSession(context, served.listener) as session:
        session.heartbeat()
        first = session.receive()
        assert first.kind == wire.HEARTBEAT
        for _ in range(3):
            session.heartbeat()  # as if the answer had not been read
        assert is_alive(session)  # so the three had no answer
        session.heartbeat(first.mark)
        assert session.receive().kind == wire.HEARTBEAT


def test_a_session_that_says_nothing_ends(context: Context, tmp_path: Path) -> None:
    listener = f"ipc://{tmp_path}/s"
    appliance = Appliance(
        tmp_path / "data", settings={"listeners.zeromq": [listener], "zeromq.session.timeout.ms": 1500}
    )
    appliance.start(180)
    try:
        with ZeroMqSession(context, listener) as silent, ZeroMqSession(context, listener) as deaf:
            mark, until = 0, time.monotonic() + 5
            while time.monotonic() < until:
                deaf.heartbeat(mark)  # it sends, and reads nothing
                time.sleep(0.3)
            for session in (silent, deaf):
                with pytest.raises(SessionEnded) as ended:
                    ask_until_it_ends(session)
                assert ended.value.code == wire.UNKNOWN_SESSION
    finally:
        appliance.stop()


def test_a_network_process_that_is_killed_sends_its_clients_to_another(
    served: Served, context: Context
) -> None:
    topic = new_topic(served, "survivor")
    with ZeroMqSession(context, served.listener) as session:
        assert not read_produced(session.ask(*produce_request(topic, encode_batch([Record(VALUE)])))).error
        index = int(session.endpoint.rpartition(".")[2])
        served.broker.kill_role("netproc", index)
        with pytest.raises(SessionEnded) as ended:
            ask_until_it_ends(session)  # the socket reconnects by itself, the session does not
        assert ended.value.code == wire.UNKNOWN_SESSION
    with ZeroMqSession(context, served.listener) as session:
        assert fetched_offsets(session.ask(fetch_request(topic, 0)), topic) == [(0, 0)]
    wait_until(served.broker.is_whole, "the network process is back")


# Clients that do harm


def test_a_chosen_routing_id_gets_no_session(served: Served, context: Context) -> None:
    """So nobody can be in another's place, and a duplicate steals nothing."""
    _, endpoint = say_hello(context, served.listener)
    with Dealer(context, endpoint, routing_id=b"victim") as dealer:
        dealer.send(wire.header(wire.OPEN), struct.pack(">iQ", 0, 1 << 20) + wire.string(""))
        with pytest.raises(SessionEnded) as refused:
            wire.raise_error(dealer.receive())
    assert refused.value.code == wire.REFUSED


def test_another_clients_token_opens_nothing(served: Served, context: Context) -> None:
    with ZeroMqSession(context, served.listener) as victim:
        with Dealer(context, victim.endpoint) as thief:
            thief.send(wire.header(wire.REQUEST, victim.token), api_versions())
            with pytest.raises(SessionEnded) as refused:
                wire.raise_error(thief.receive())
            assert refused.value.code == wire.UNKNOWN_SESSION
            thief.send(wire.header(wire.CLOSE, victim.token))
            thief.send(wire.header(wire.CREDIT, victim.token), struct.pack(">QQ", 0, 0))
        assert is_alive(victim)


def test_a_message_of_ten_thousand_frames_ends_its_session_only(served: Served, context: Context) -> None:
    _, endpoint = say_hello(context, served.listener)
    with (
        ZeroMqSession(context, served.listener, endpoint=endpoint) as harmful,
        ZeroMqSession(context, served.listener, endpoint=endpoint) as other,
    ):
        harmful.send(wire.REQUEST, *[b"x"] * 10_000)
        with pytest.raises(SessionEnded) as ended:
            harmful.receive()
        assert ended.value.code == wire.MALFORMED
        assert is_alive(other)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"GET / HTTP/1.1"],
        [b"", b"delimiter of REQ"],
        [bytes(24)],
        [wire.header(99)],
        [wire.header(wire.REQUEST, version=9)],
        [wire.header(wire.OPEN), b"short"],
        [wire.header(wire.HELLO), b"\x01\xff"],
        [b"\xff" * 100_000],
    ],
    ids=lambda frames: frames[0][:4].hex() or "empty",
)
def test_nonsense_is_answered_with_an_error_by_every_process(
    frames: list[bytes], served: Served, context: Context
) -> None:
    _, endpoint = say_hello(context, served.listener)
    for where in (endpoint, served.listener):
        if where == served.listener and len(frames[0]) > 4096:
            continue  # the acceptor does not even receive it
        with Dealer(context, where) as dealer:
            dealer.send(*frames)
            assert dealer.receive().kind == wire.ERROR
    with ZeroMqSession(context, served.listener, endpoint=endpoint) as session:
        assert is_alive(session)


def test_a_request_that_does_not_parse_ends_its_session_with_a_reason(
    served: Served, context: Context
) -> None:
    with ZeroMqSession(context, served.listener) as session:
        with pytest.raises(SessionEnded) as ended:
            session.ask(struct.pack(">hhih", ApiKey.METADATA, 9, 1, 5000))
        assert ended.value.code == wire.MALFORMED


def test_who_sends_more_than_it_may_loses_its_session(served: Served, context: Context) -> None:
    with ZeroMqSession(context, served.listener) as session:
        session.send(wire.REQUEST, fetch_request(TOPIC, 1 << 40, max_wait_ms=0))
        session.response()
        session.send(wire.REQUEST, fetch_request(new_topic(served, "waits"), 0, max_wait_ms=20_000))
        for _ in range(session.limits.requests_max):
            session.send(wire.REQUEST, api_versions())
        with pytest.raises(SessionEnded) as ended:
            session.receive()
        assert ended.value.code == wire.LIMIT_EXCEEDED


def test_a_client_that_never_reads_holds_up_only_itself_and_little_memory(
    served: Served, context: Context
) -> None:
    """It asks for 64 times 8 MB, acknowledges nothing, and invents marks; the broker sends one window."""
    topic = new_topic(served, "unread")
    with ZeroMqSession(context, served.listener) as writer:
        for _ in range(9):
            assert not read_produced(
                writer.ask(*produce_request(topic, encode_batch([Record(bytes(900_000))])))
            ).error
    with ZeroMqSession(context, served.listener, acknowledges=False) as deaf:
        index = int(deaf.endpoint.rpartition(".")[2])
        before = pss_bytes(served.broker.pids("netproc")[index])
        for _ in range(60):
            deaf.send(wire.REQUEST, fetch_request(topic, 0))
        for invented in range(200):
            deaf.credit(invented + 1, 1 << 60)
        with ZeroMqSession(context, served.listener, endpoint=deaf.endpoint) as other:
            for _ in range(20):
                assert fetched_offsets(other.ask(fetch_request(topic, 0, max_bytes=1000)), topic) == [(0, 0)]
        grown = pss_bytes(served.broker.pids("netproc")[index]) - before
        assert grown < 64 * MIB
        received = all_that_comes(deaf)
        assert received <= deaf.limits.window_max + 2 * MIB
        deaf.acknowledges = True
        deaf.credit(deaf.marks[-1], wire.WINDOW)
        assert deaf.receive().kind == wire.RESPONSE  # and now the rest comes


def test_a_paused_session_is_sent_nothing_until_it_wants_more(served: Served, context: Context) -> None:
    with ZeroMqSession(context, served.listener) as session:
        session.credit(0, 0)
        session.send(wire.REQUEST, api_versions())
        with pytest.raises(NothingCame):
            session.receive(500)
        session.heartbeat()
        assert session.receive().kind == wire.HEARTBEAT
        session.credit(0, wire.WINDOW)
        assert session.response()[:4] == struct.pack(">i", 5)


def test_a_second_broker_cannot_take_the_path(served: Served, tmp_path: Path) -> None:
    second = Appliance(tmp_path / "data", settings={"listeners.zeromq": [served.listener]})
    with pytest.raises(BrokerFailed, match="another program serves"):
        second.start(180)
    made: Context = zmq.Context()
    with ZeroMqSession(made, served.listener) as session:
        assert is_alive(session)
    made.destroy(linger=0)


def test_the_sockets_are_for_their_owner_only(served: Served) -> None:
    path = Path(served.listener.removeprefix("ipc://"))
    modes = [oct(each.stat().st_mode & 0o777) for each in (path, Path(f"{path}.0"), Path(f"{path}.1"))]
    assert modes == ["0o600"] * 3


# tcp


def insecure(home: Path) -> tuple[Appliance, str]:
    port = free_ports(3)
    listener = f"tcp://127.0.0.1:{port}"
    settings = {"listeners.zeromq": [listener], "zeromq.tcp.insecure": True}
    return Appliance(home / "data", settings=settings), listener


def test_strangers_bytes_on_a_tcp_port_disturb_nobody(context: Context, tmp_path: Path) -> None:
    """A scanner's, a browser's, and a frame of 2 GiB that is announced and not sent."""
    appliance, listener = insecure(tmp_path)
    appliance.start(180)
    try:
        with ZeroMqSession(context, listener) as session:
            port = int(session.endpoint.rpartition(":")[2])
            before = pss_bytes(appliance.pids("netproc")[port - int(listener.rpartition(":")[2]) - 1])
            announced = b"\x02" + struct.pack(">Q", 2 << 30) + b"x" * 1000
            strangers = [
                [b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"],
                [bytes(range(256)) * 40],
                [b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48), announced],
                [b"\xff"],
            ]
            held = []
            for each in strangers * 5:
                sock = socket.create_connection(("127.0.0.1", port))
                for part in each:
                    sock.sendall(part)
                    time.sleep(0.02)
                held.append(sock)
            assert is_alive(session)
            after = pss_bytes(appliance.pids("netproc")[port - int(listener.rpartition(":")[2]) - 1])
            assert after - before < 32 * MIB
            for sock in held:
                sock.close()
            assert is_alive(session)
    finally:
        appliance.stop()


@pytest.mark.parametrize("extra", [{}, {"zeromq.curve.client.keys.dir": "/tmp"}], ids=["nothing", "half"])
def test_tcp_without_keys_is_refused_at_the_start(extra: dict[str, object], tmp_path: Path) -> None:
    listener = f"tcp://127.0.0.1:{free_ports(3)}"
    appliance = Appliance(tmp_path / "data", settings={"listeners.zeromq": [listener], **extra})
    with pytest.raises(BrokerFailed, match="a tcp endpoint needs"):
        appliance.start(180)


@dataclass(frozen=True, slots=True)
class Guarded:
    """An appliance that admits by key, and the keys of a client."""

    listener: str
    keys_dir: Path
    alice: wire.CurveKeys


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    home = tmp_path_factory.mktemp("zk")
    server_public, server_secret = zmq.curve_keypair()
    public, secret = zmq.curve_keypair()
    keys_dir = home / "clients"
    keys_dir.mkdir()
    (home / "server.key_secret").write_text(
        f'curve\n    public-key = "{server_public.decode()}"\n    secret-key = "{server_secret.decode()}"\n'
    )
    (keys_dir / "alice.key").write_text(f'curve\n    public-key = "{public.decode()}"\n')
    listener = f"tcp://127.0.0.1:{free_ports(3)}"
    appliance = Appliance(
        home / "data",
        settings={
            "listeners.zeromq": [listener],
            "zeromq.curve.secret.key.file": str(home / "server.key_secret"),
            "zeromq.curve.client.keys.dir": str(keys_dir),
        },
    )
    appliance.start(180)
    try:
        yield Guarded(listener, keys_dir, wire.CurveKeys(public, secret, server_public))
    finally:
        appliance.stop()


def test_a_known_key_is_admitted(guarded: Guarded, context: Context) -> None:
    with ZeroMqSession(context, guarded.listener, keys=guarded.alice) as session:
        assert is_alive(session)


def test_a_key_that_nobody_knows_is_not_admitted(guarded: Guarded, context: Context) -> None:
    """The server's public key is no secret: whoever has it could connect, if nobody asked for the client's."""
    stranger = wire.CurveKeys(*zmq.curve_keypair(), guarded.alice.server)
    with pytest.raises(NothingCame):
        say_hello(context, guarded.listener, keys=stranger, timeout_ms=2000)
    with pytest.raises(NothingCame):
        say_hello(context, guarded.listener, keys=None, timeout_ms=2000)


def test_a_key_is_admitted_when_its_file_comes_and_not_when_it_goes(
    guarded: Guarded, context: Context
) -> None:
    bob = wire.CurveKeys(*zmq.curve_keypair(), guarded.alice.server)
    file = guarded.keys_dir / "bob.key"
    file.write_text(f'    public-key = "{bob.public.decode()}"\n')
    with ZeroMqSession(context, guarded.listener, keys=bob) as session:
        assert is_alive(session)
        file.unlink()
        with pytest.raises(SessionEnded) as ended:
            session.receive()
        assert ended.value.code == wire.REFUSED
    with pytest.raises(NothingCame):
        say_hello(context, guarded.listener, keys=bob, timeout_ms=2000)
    with ZeroMqSession(context, guarded.listener, keys=guarded.alice) as session:
        assert is_alive(session)


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[str]:
    """The listener of an appliance that ends the session of a client that is silent for four seconds."""
    listener = f"ipc://{tmp_path}/s"
    settings: dict[str, object] = {"listeners.zeromq": [listener], "zeromq.session.timeout.ms": 4_000}
    appliance = Appliance(tmp_path / "data", settings=settings)
    appliance.start(180)
    yield listener
    appliance.stop()


def test_a_stopped_client_that_goes_on_is_told_that_its_session_is_gone(
    impatient: str, context: Context
) -> None:
    """SIGSTOP is silence: the session of a client that says nothing ends, and the others' do not."""
    with ZeroMqSession(context, impatient) as session:
        pid = os.fork()
        if not pid:
            # A client of its own: contexts do not survive a fork.
            try:
                own: Context = zmq.Context()
                ask_until_it_ends(ZeroMqSession(own, impatient))
            except SessionEnded as ended:
                os._exit(ended.code)
            finally:
                os._exit(99)
        time.sleep(1)
        os.kill(pid, signal.SIGSTOP)
        until = time.monotonic() + 7
        while time.monotonic() < until:
            assert is_alive(session)
            time.sleep(0.5)
        os.kill(pid, signal.SIGCONT)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == wire.UNKNOWN_SESSION
