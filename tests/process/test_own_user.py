"""Sockets between processes: another user is refused by the kernel's word, also where file modes would let it in."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import zmq

from appliance.channels.audit_channel import AUDIT_SOCKET, AuditInbox, AuditLink
from appliance.channels.own_user import bind_router, bind_socket, peer_of
from appliance.errors import HostFault

NOBODY = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody can enter: the file modes do not help here."""
    path = Path(f"/tmp/own-user-{os.getpid()}-{os.urandom(4).hex()}")
    path.mkdir()
    path.chmod(0o777)
    yield path
    for each in path.iterdir():
        each.unlink()
    path.rmdir()


def as_user(uid: int, work: Callable[[], object]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(uid, uid, uid)
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def test_zeromq_drops_what_another_user_sends(place: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    bind_router(router, f"ipc://{place}/s")
    (place / "s").chmod(0o777)

    def send() -> None:
        theirs: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        dealer = theirs.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 300)
        dealer.connect(f"ipc://{place}/s")
        dealer.send(str(os.geteuid()).encode())
        dealer.close()
        theirs.term()

    as_user(NOBODY, send)
    assert not router.poll(200)
    as_user(os.geteuid(), send)
    assert router.poll(10_000)
    assert router.recv_multipart()[1] == str(os.geteuid()).encode()
    router.close(linger=0)
    context.term()


def test_another_user_cannot_write_into_the_audit_journal(place: Path) -> None:
    wiring = Mock(zmq_address=lambda name: f"ipc://{place}/{name}")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    before = os.umask(0)
    try:
        inbox = AuditInbox(wiring, context=context)
    finally:
        os.umask(before)
    path = place / AUDIT_SOCKET
    mode = path.stat().st_mode
    path.chmod(0o777)

    def send() -> None:
        theirs: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        link = AuditLink(wiring, context=theirs)
        link.send(str(os.geteuid()).encode())
        link.close()
        theirs.term()

    as_user(NOBODY, send)
    as_user(os.geteuid(), send)
    arrived: list[bytes] = []
    until = time.monotonic() + 10
    while not arrived and time.monotonic() < until:
        arrived += inbox.take()
        time.sleep(0.01)
    inbox.close()
    context.term()
    assert mode & 0o077 == 0
    assert arrived == [str(os.geteuid()).encode()]


def test_sockets_are_made_for_this_user_alone_whatever_the_umask(place: Path) -> None:
    before = os.umask(0)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            bind_socket(sock, f"{place}/s")
            assert os.stat(place / "s").st_mode & 0o077 == 0
            sock.listen()
            assert os.umask(0) == 0
            (place / "s").chmod(0o777)
            as_user(
                NOBODY, lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(f"{place}/s")
            )
            theirs, _ = sock.accept()
            assert peer_of(theirs)[1] == NOBODY
            theirs.close()
    finally:
        os.umask(before)


def test_a_path_that_cannot_be_bound_is_told(place: Path) -> None:
    (place / "folder").mkdir()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    with pytest.raises(HostFault, match="cannot bind"):
        bind_router(router, f"ipc://{place}/nowhere/s")
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(HostFault, match="cannot bind"):
        bind_socket(sock, f"{place}/folder")
    (place / "folder").rmdir()
    router.close(linger=0)
    context.term()
