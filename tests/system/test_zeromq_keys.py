"""A client whose CURVE key is taken away loses its session, and gets no other on the connection that it still has."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq

from tests.support import zeromq_wire as wire
from tests.support.broker import Appliance
from tests.support.wire import free_ports
from tests.support.zeromq_wire import CurveKeys, SessionEnded, ZeroMqSession, say_hello
from tests.system.test_zeromq import Context, is_alive

OPEN_BODY = struct.pack(">iQ", 0, 1 << 20) + wire.string("again")


@dataclass(frozen=True, slots=True)
class Guarded:
    """An appliance that admits the clients with a file in `keys_dir`."""

    listener: str
    keys_dir: Path
    server: bytes

    def admit(self, name: str) -> CurveKeys:
        """Write the key file of a new key pair."""
        public, secret = zmq.curve_keypair()
        (self.keys_dir / f"{name}.key").write_text(f'curve\n    public-key = "{public.decode()}"\n')
        return CurveKeys(public, secret, self.server)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    home = tmp_path_factory.mktemp("zc")
    public, secret = zmq.curve_keypair()
    keys_dir = home / "clients"
    keys_dir.mkdir()
    (home / "server.key_secret").write_text(
        f'curve\n    public-key = "{public.decode()}"\n    secret-key = "{secret.decode()}"\n'
    )
    listener = f"tcp://127.0.0.1:{free_ports(2)}"
    appliance = Appliance(
        home / "data",
        settings={
            "listeners.zeromq": [listener],
            "network.processes": 1,
            "zeromq.curve.secret.key.file": str(home / "server.key_secret"),
            "zeromq.curve.client.keys.dir": str(keys_dir),
        },
    )
    appliance.start(180)
    try:
        yield Guarded(listener, keys_dir, public)
    finally:
        appliance.stop()


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    yield made
    made.destroy(linger=0)


def test_the_session_of_a_removed_key_ends_although_another_client_connects_at_that_moment(
    guarded: Guarded, context: Context
) -> None:
    alice, bob = guarded.admit("alice"), guarded.admit("bob")
    with ZeroMqSession(context, guarded.listener, keys=alice) as session:
        assert is_alive(session)
        (guarded.keys_dir / "alice.key").unlink()
        with ZeroMqSession(
            context, guarded.listener, keys=bob
        ) as other:  # its handshake reads the keys again
            with pytest.raises(SessionEnded) as ended:
                session.receive(5_000)
            assert ended.value.code == wire.REFUSED
            assert is_alive(other)


def test_the_session_of_a_replaced_key_ends(guarded: Guarded, context: Context) -> None:
    """The file has the same name, so the principal is still one who may connect: with another key."""
    carol = guarded.admit("carol")
    with ZeroMqSession(context, guarded.listener, keys=carol) as session:
        assert is_alive(session)
        guarded.admit("carol")
        with pytest.raises(SessionEnded) as ended:
            session.receive(5_000)
        assert ended.value.code == wire.REFUSED


def test_a_connection_whose_key_was_removed_gets_no_other_session(guarded: Guarded, context: Context) -> None:
    """ZeroMQ asks about a key in the handshake only, and the connection outlives the session."""
    dave = guarded.admit("dave")
    with ZeroMqSession(context, guarded.listener, keys=dave) as session:
        (guarded.keys_dir / "dave.key").unlink()
        for _ in range(2):
            with pytest.raises(SessionEnded) as ended:
                session.receive(5_000)
            assert ended.value.code == wire.REFUSED
            session.dealer.send(wire.header(wire.OPEN), OPEN_BODY)


def test_a_session_that_is_opened_long_after_the_handshake_needs_a_key_of_now(
    guarded: Guarded, context: Context
) -> None:
    erin = guarded.admit("erin")
    _, endpoint = say_hello(context, guarded.listener, keys=erin)
    with wire.Dealer(context, endpoint, keys=erin) as dealer:
        dealer.send(wire.header(wire.CLOSE))  # the handshake is done when this has gone
        (guarded.keys_dir / "erin.key").unlink()
        time.sleep(1.5)
        dealer.send(wire.header(wire.OPEN), OPEN_BODY)
        with pytest.raises(SessionEnded) as ended:
            wire.raise_error(dealer.receive(5_000))
        assert ended.value.code == wire.REFUSED
