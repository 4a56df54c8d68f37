"""ZeroMQ clients that mean harm, and another user of the host: no process ends, and nobody else notices."""

from __future__ import annotations

import os
import random
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import zmq

from tests.support import zeromq_wire as wire
from tests.support.another_user import NOBODY
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.support.zeromq_wire import (
    Dealer,
    NothingCame,
    SessionEnded,
    ZeroMqSession,
    say_hello,
)
from tests.system.raw import generations, wait_until
from tests.system.test_zeromq import Context, Served, api_versions, is_alive

SESSIONS = 1000
SEED = 20261125
MESSAGES = 3000
NEVER_ANSWERED_MS = 2000
ADMITTED, REFUSED, DIED = 10, 11, 12


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    listener = f"ipc://{tmp_path}/s"
    settings: dict[str, object] = {"listeners.zeromq": [listener], "network.processes": 1}
    appliance = Appliance(tmp_path / "data", settings=settings)
    appliance.start(180)
    try:
        yield Served(appliance, listener)
    finally:
        appliance.stop()


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    made.max_sockets = 2 * SESSIONS
    yield made
    made.destroy(linger=0)


def some_frames(dice: random.Random, token: bytes) -> list[bytes]:
    """One message: noise, or a header that is right up to some byte before a body that is not."""
    noise = [dice.randbytes(dice.choice((0, 1, 7, 24, 100, 5000))) for _ in range(dice.randrange(5))]
    if dice.random() < 0.2:
        return noise or [b""]
    kind = dice.choice((*range(1, 11), *range(16, 21), dice.randrange(256)))
    header = bytearray(wire.header(kind, dice.choice((token, token, wire.NO_TOKEN, dice.randbytes(16)))))
    if dice.random() < 0.2:
        header[dice.randrange(len(header))] = dice.randrange(256)
    return [bytes(header[: dice.choice((24, 24, 24, dice.randrange(30)))]), *noise]


def test_random_messages_end_no_process_and_disturb_nobody(served: Served, context: Context) -> None:
    dice = random.Random(SEED)
    before = generations(served.broker)
    with ZeroMqSession(context, served.listener) as other:
        harmful, answered = ZeroMqSession(context, served.listener), 0
        for number in range(MESSAGES):
            harmful.dealer.send(*some_frames(dice, harmful.token))
            if number % 10 == 0:
                with suppress(NothingCame, SessionEnded):
                    while True:
                        harmful.receive(1)
                harmful.drop()
                harmful = ZeroMqSession(context, served.listener)
            if number % 100 == 0:
                assert is_alive(other), f"seed {SEED}, message {number}"
                answered += 1
        harmful.drop()
        with Dealer(context, served.listener) as at_the_acceptor:
            for _ in range(MESSAGES // 10):
                at_the_acceptor.send(*some_frames(dice, wire.NO_TOKEN)[:3])
        assert is_alive(other)
        assert answered == MESSAGES // 100
    say_hello(context, served.listener)
    assert generations(served.broker) == before


def test_a_thousand_sessions_are_served_and_one_more_is_told(served: Served, context: Context) -> None:
    """`zeromq.sessions.max` is 1000. Those who have a session go on, and TCP clients too; closed sessions make room."""
    before = generations(served.broker)
    _, endpoint = say_hello(context, served.listener)
    sessions = [ZeroMqSession(context, served.listener, endpoint=endpoint) for _ in range(SESSIONS)]
    assert len({session.token for session in sessions}) == SESSIONS
    with pytest.raises(SessionEnded) as one_more:
        ZeroMqSession(context, served.listener, endpoint=endpoint)
    assert one_more.value.code == wire.OVERLOADED
    assert all(is_alive(session) for session in sessions[:: SESSIONS // 50])
    with WireSocket(served.broker.port) as connection:
        connection.send_frame(api_versions())
        assert connection.read_frame()[:4] == struct.pack(">i", 5)
    for session in sessions:
        session.close()
    again = [ZeroMqSession(context, served.listener, endpoint=endpoint) for _ in range(100)]
    assert all(is_alive(session) for session in again)
    for session in again:
        session.drop()
    assert generations(served.broker) == before


def come_as_nobody(listener: str) -> int:
    """Return whether the user `nobody` is served: the exit code of a process of that user."""
    pid = os.fork()
    if pid == 0:
        code = DIED
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            context: Context = zmq.Context()
            try:
                say_hello(context, listener, timeout_ms=NEVER_ANSWERED_MS)
                with ZeroMqSession(context, listener) as session:
                    code = ADMITTED if is_alive(session) else DIED
            except NothingCame:
                code = REFUSED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def open_home() -> Iterator[Path]:
    """A directory that everybody may pass through. pytest's own lie in one that each of its runs closes again."""
    assert os.geteuid() == 0, "this test plays two users and must be run as root"
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o711)
        yield home


def opened_for(home: Path, settings: dict[str, object]) -> tuple[Appliance, str]:
    listener = f"ipc://{home}/s"
    appliance = Appliance(home / "data", settings={"listeners.zeromq": [listener], **settings})
    appliance.start(180)
    return appliance, listener


def test_an_allowed_user_is_served(open_home: Path) -> None:
    appliance, listener = opened_for(open_home, {"zeromq.allowed.users": ["nobody"]})
    try:
        assert come_as_nobody(listener) == ADMITTED
    finally:
        appliance.stop()


def test_a_user_who_is_not_allowed_is_refused_by_the_broker_and_not_by_the_mode_alone(
    open_home: Path, context: Context
) -> None:
    """The sockets are open to everybody because another user is allowed, so the handshake must refuse this one."""
    appliance, listener = opened_for(open_home, {"zeromq.allowed.users": ["daemon"]})
    try:
        assert (open_home / "s").stat().st_mode & 0o777 == 0o666
        assert come_as_nobody(listener) == REFUSED
        wait_until(lambda: "user is not admitted" in appliance.output(), "a line about the refusal")
        with ZeroMqSession(context, listener) as own:
            assert is_alive(own)
    finally:
        appliance.stop()


def test_without_allowed_users_the_mode_refuses_already(open_home: Path) -> None:
    appliance, listener = opened_for(open_home, {})
    try:
        assert (open_home / "s").stat().st_mode & 0o777 == 0o600
        assert come_as_nobody(listener) == REFUSED
    finally:
        appliance.stop()
