from __future__ import annotations

import array
import fcntl
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from appliance.ipc.errors import DescriptorLost, PeerGone
from appliance.ipc.fd_passing import (
    PAYLOAD_BYTES_MAX,
    receive_descriptor,
    send_descriptor,
)

from .conftest import Fork

Channel = tuple[socket.socket, socket.socket]


def descriptor_channel() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, non-blocking; each keeps message boundaries and reports the other's death."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)
    far.setblocking(False)
    return near, far


@pytest.fixture
def channel() -> Iterator[Channel]:
    near, far = descriptor_channel()
    yield near, far
    near.close()
    far.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_descriptor_works_at_the_other_end(channel: Channel, fork: Fork) -> None:
    near, far = channel
    here, there = socket.socketpair()

    def serve() -> None:
        far.setblocking(True)
        message = receive_descriptor(far)
        assert message is not None
        payload, descriptor = message
        with socket.socket(fileno=descriptor) as received:
            received.sendall(payload.upper())

    child = fork(serve)
    assert send_descriptor(near, there.fileno(), b"connection 7")
    there.close()
    assert here.recv(100) == b"CONNECTION 7"
    assert child.join() == 0
    here.close()


def test_nothing_waiting_is_none(channel: Channel) -> None:
    assert receive_descriptor(channel[1]) is None


def test_messages_stay_apart_and_in_order(channel: Channel) -> None:
    near, far = channel
    before = open_descriptors()
    for number in range(20):
        assert send_descriptor(near, near.fileno(), b"%d" % number)
    for number in range(20):
        message = receive_descriptor(far)
        assert message is not None
        assert message.payload == b"%d" % number
        os.close(message.descriptor)
    assert open_descriptors() == before


def test_a_received_descriptor_is_closed_on_exec(channel: Channel) -> None:
    near, far = channel
    send_descriptor(near, near.fileno(), b"x")
    message = receive_descriptor(far)
    assert message is not None
    assert fcntl.fcntl(message.descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(message.descriptor)


def test_a_full_channel_says_so_and_takes_nothing(channel: Channel) -> None:
    near, far = channel
    before = open_descriptors()
    sent = 0
    while send_descriptor(near, near.fileno(), b"x" * PAYLOAD_BYTES_MAX):
        sent += 1
        assert sent < 100_000
    for _ in range(sent):
        message = receive_descriptor(far)
        assert message is not None
        os.close(message.descriptor)
    assert receive_descriptor(far) is None
    assert open_descriptors() == before


def test_a_dead_peer_is_told_to_both_ends() -> None:
    near, far = descriptor_channel()
    assert send_descriptor(near, near.fileno(), b"last words")
    near.close()
    message = receive_descriptor(far)
    assert message is not None
    os.close(message.descriptor)
    with pytest.raises(PeerGone):
        receive_descriptor(far)
    far.close()
    near, far = descriptor_channel()
    far.close()
    with pytest.raises(PeerGone):
        send_descriptor(near, near.fileno(), b"x")
    near.close()


def test_a_message_without_a_descriptor_is_refused(channel: Channel) -> None:
    near, far = channel
    near.send(b"naked")
    with pytest.raises(DescriptorLost):
        receive_descriptor(far)


@pytest.mark.parametrize("surplus", [2, 4, 9])
def test_surplus_descriptors_are_closed(channel: Channel, surplus: int) -> None:
    near, far = channel
    before = open_descriptors()
    rights = array.array("i", [near.fileno()] * surplus)
    near.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    with pytest.raises(DescriptorLost):
        receive_descriptor(far)
    assert open_descriptors() == before


def test_an_oversized_payload_is_refused_without_a_leak(channel: Channel) -> None:
    near, far = channel
    before = open_descriptors()
    rights = array.array("i", [near.fileno()])
    near.sendmsg([b"x" * (PAYLOAD_BYTES_MAX + 1)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    with pytest.raises(DescriptorLost):
        receive_descriptor(far)
    assert open_descriptors() == before


def test_a_process_out_of_descriptors_loses_the_connection_not_the_channel(channel: Channel) -> None:
    near, far = channel
    for _ in range(2):
        send_descriptor(near, near.fileno(), b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # No descriptor at or above the limit can be opened, and the channel's own are below it.
    highest = max(int(entry) for entry in os.listdir("/proc/self/fd") if int(entry) < soft)
    filler = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        with suppress(OSError):
            while True:
                filler.append(os.dup(near.fileno()))
        with pytest.raises(DescriptorLost):
            receive_descriptor(far)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in filler:
            os.close(descriptor)
    message = receive_descriptor(far)
    assert message is not None
    os.close(message.descriptor)


@pytest.mark.parametrize("payload", [b"", b"x" * (PAYLOAD_BYTES_MAX + 1)])
def test_a_payload_that_cannot_travel_is_refused_before_sending(channel: Channel, payload: bytes) -> None:
    with pytest.raises(ValueError, match="bytes"):
        send_descriptor(channel[0], channel[0].fileno(), payload)
