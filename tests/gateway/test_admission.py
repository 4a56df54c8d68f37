"""Whose key was taken away is not admitted any more, whoever looked at the directory first."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from appliance.config.sections.zeromq import ZeroMqSettings
from appliance.errors import ConfigurationError
from appliance.gateway.admission import ClientKeys, Doorkeeper, not_admitted
from appliance.gateway.doors import server_keys
from appliance.gateway.received import client_of, key_of


def put(directory: Path, name: str) -> str:
    """Write the file of a client and return its key in hexadecimal digits."""
    public, _ = zmq.curve_keypair()
    (directory / f"{name}.key").write_text(f'curve\n    public-key = "{public.decode()}"\n')
    return zmq.utils.z85.decode(public).hex()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def doorkeeper(context: zmq.Context[zmq.Socket[bytes]], directory: Path) -> Doorkeeper:
    return Doorkeeper(
        context, users={}, keys=ClientKeys(directory), warn=lambda _line: None, refused=not_admitted
    )


def test_a_removed_key_is_noticed_although_a_handshake_has_read_the_directory_before(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    alice = put(tmp_path, "alice")
    asked = doorkeeper(context, tmp_path)
    before = asked.keys_version()
    assert asked.is_admitted("User:alice", alice)
    (tmp_path / "alice.key").unlink()
    asked.keys_version()  # as each handshake does
    assert asked.keys_version() != before
    assert not asked.is_admitted("User:alice", alice)
    assert asked.is_admitted("User:ANONYMOUS", "")
    asked.close()


def test_a_key_that_was_replaced_under_the_same_name_is_not_admitted(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    old = put(tmp_path, "alice")
    asked = doorkeeper(context, tmp_path)
    before = asked.keys_version()
    new = put(tmp_path, "alice")
    assert asked.keys_version() != before
    assert not asked.is_admitted("User:alice", old)
    assert asked.is_admitted("User:alice", new)
    asked.close()


def test_a_file_that_goes_while_the_directory_is_read_takes_nobody_else_along(tmp_path: Path) -> None:
    alice = put(tmp_path, "alice")
    (tmp_path / "gone.key").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.key")  # to read it would hold up the process
    keys = ClientKeys(tmp_path)
    keys.refresh()
    assert keys.name_of(bytes.fromhex(alice)) == "alice"


def test_a_file_with_an_impossible_key_is_named_and_harms_nobody_else(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    """Each character is one of Z85, and yet they are no 32 bytes."""
    alice = put(tmp_path, "alice")
    (tmp_path / "bob.key").write_text(f'public-key = "{"#" * 40}"\n')
    (tmp_path / "carol.key").write_bytes(b"\xff\0")
    lines: list[str] = []
    asked = Doorkeeper(context, users={}, keys=ClientKeys(tmp_path), warn=lines.append, refused=not_admitted)
    asked.keys_version()
    asked.keys_version()
    assert asked.is_admitted("User:alice", alice)
    (line,) = lines
    assert "bob.key, carol.key" in line
    asked.close()


@pytest.mark.parametrize("secret", ["#" * 40, zmq.curve_keypair()[1].decode()], ids=["impossible", "another"])
def test_a_server_key_that_is_no_pair_is_refused_at_the_start(secret: str, tmp_path: Path) -> None:
    """Clients would be told a key in WELCOME with which they cannot connect."""
    file = tmp_path / "server.key_secret"
    file.write_text(f'public-key = "{zmq.curve_keypair()[0].decode()}"\nsecret-key = "{secret}"\n')
    with pytest.raises(ConfigurationError, match="not the one of its secret-key"):
        server_keys(ZeroMqSettings(curve_secret_key_file=str(file)))


def test_without_descriptors_the_keys_stay_as_they_were(tmp_path: Path) -> None:
    alice = put(tmp_path, "alice")
    keys = ClientKeys(tmp_path)
    keys.refresh()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.scandir(tmp_path)
        keys.refresh()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert keys.name_of(bytes.fromhex(alice)) == "alice"
    (tmp_path / "alice.key").unlink()
    tmp_path.rmdir()
    keys.refresh()
    assert keys.name_of(bytes.fromhex(alice)) is None


def test_a_message_names_the_key_of_its_client(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    public, secret = zmq.curve_keypair()
    (tmp_path / "alice.key").write_text(f'public-key = "{public.decode()}"\n')
    asked = doorkeeper(context, tmp_path)
    server_public, server_secret = zmq.curve_keypair()
    with context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as client:
        router.curve_server, router.curve_publickey = True, server_public
        router.curve_secretkey = server_secret
        router.setsockopt_string(zmq.ZAP_DOMAIN, "curve")
        port = router.bind_to_random_port("tcp://127.0.0.1")
        client.curve_publickey, client.curve_secretkey, client.curve_serverkey = public, secret, server_public
        client.linger = 0
        client.connect(f"tcp://127.0.0.1:{port}")
        client.send(b"hello")
        until = 200
        while not router.poll(10) and until:
            asked.answer()
            until -= 1
        router.recv()
        frame = router.recv(copy=False)
        assert client_of(frame) == ("User:alice", "127.0.0.1", 0)
        assert key_of(frame) == zmq.utils.z85.decode(public).hex()
    asked.close()
