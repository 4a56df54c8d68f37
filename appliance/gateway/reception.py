"""The acceptor's end of ZeroMQ: HELLO in, WELCOME out. Nothing is kept of a client.

Which network process a client is sent to is the book's decision, as for a connection over TCP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import zmq

from appliance.clock import Clock
from appliance.config import Settings
from appliance.config.sections.zeromq import told_endpoint
from appliance.errors import MalformedFrame
from appliance.gateway.doors import (
    Door,
    close_doors,
    make_doorkeeper,
    open_doors,
    server_keys,
    unwatch,
    watch,
)
from appliance.gateway.frames import (
    VERSION,
    Code,
    Hello,
    Kind,
    Welcome,
    encode_error,
    parse_client_header,
)
from appliance.ipc.agent import DutyCycle
from appliance.journal import RateLimited

MESSAGE_BYTES_MAX: Final = 4096
FRAMES_MAX: Final = 4
TURN_MESSAGES: Final = 64
WAITING_MAX: Final = 100
"""Messages that may wait for one client, and of one client for us."""
LINGER_MS: Final = 300
_NOBLOCK: Final = int(zmq.NOBLOCK)


class Reception:
    """Tells ZeroMQ clients which network process to talk to.

    Args:
        settings: the listeners, the brokers, who may come in.
        choose: returns the network process for the next client; None while there is none.
        cycle: the acceptor's duty cycle.
        clock: for lines that a client can cause.
        warn: where such lines go.
        refused: as of `Doorkeeper`.

    Raises:
        HostFault: an endpoint cannot be bound.
    """

    def __init__(
        self,
        settings: Settings,
        choose: Callable[[], int | None],
        *,
        cycle: DutyCycle,
        clock: Clock,
        warn: Callable[[str], None],
        refused: Callable[[str, str], None],
    ) -> None:
        self._slots = settings.slots
        self._choose = choose
        self._cycle = cycle
        keys = server_keys(settings.zeromq)
        self._server_key = keys.public.decode() if keys is not None else ""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._doorkeeper = make_doorkeeper(
            self._context, settings.zeromq, RateLimited(warn, clock, interval_ms=1000), refused
        )
        self._doors = open_doors(
            self._context,
            settings.zeromq,
            netproc=None,
            message_bytes_max=MESSAGE_BYTES_MAX,
            sent_max=WAITING_MAX,
            received_max=WAITING_MAX,
        )
        watch(cycle.epoll, self._doorkeeper, self._doors)
        cycle.add_inbox(self)

    def is_empty(self) -> bool:
        """Inbox: whether the process may sleep."""
        return self._doorkeeper.is_empty() and all(
            door.is_empty() and not door.is_skipping for door in self._doors
        )

    def turn(self) -> None:
        """Answer handshakes and HELLOs."""
        if not self._doorkeeper.is_empty():
            self._doorkeeper.answer()
        for door in self._doors:
            while door.connections.turn(tuple):
                pass
            if not door.is_empty():
                self._read(door)

    def close(self) -> None:
        """Let go of the sockets; what was answered has a moment to leave."""
        unwatch(self._cycle.epoll, self._doorkeeper, self._doors)
        close_doors(self._doors, linger_ms=LINGER_MS)
        self._doorkeeper.close()
        self._context.term()

    def _read(self, door: Door) -> None:
        router = door.router
        if door.is_skipping and not door.skip():
            return
        for _ in range(TURN_MESSAGES):
            try:
                routing_id = router.recv(_NOBLOCK)
            except zmq.Again:
                return
            frame = router.recv(_NOBLOCK, copy=False)
            frames = [frame.bytes]
            while frame.more and len(frames) < FRAMES_MAX:
                frame = router.recv(_NOBLOCK, copy=False)
                frames.append(frame.bytes)
            if frame.more:
                if not door.skip():
                    return
                continue
            kind, body = self._answer(door, frames)
            door.tell(routing_id, kind, body)

    def _answer(self, door: Door, frames: list[bytes]) -> tuple[Kind, bytes]:
        """Return kind and body of the answer to a message."""
        try:
            _, kind, _ = parse_client_header(frames[0])
            if kind != Kind.HELLO:
                return Kind.ERROR, encode_error(
                    Code.UNKNOWN_SESSION, "say HELLO here, and OPEN where WELCOME says"
                )
            hello = Hello.parse(b"".join(frames[1:]))
        except MalformedFrame as fault:
            return Kind.ERROR, encode_error(Code.MALFORMED, str(fault))
        if hello.newest_version < VERSION:
            return Kind.ERROR, encode_error(Code.VERSION, f"this broker speaks version {VERSION}")
        if not -1 <= hello.broker_id < self._slots:
            return Kind.ERROR, encode_error(Code.UNKNOWN_BROKER, f"broker {hello.broker_id} of {self._slots}")
        netproc = self._choose()
        if netproc is None:
            return Kind.ERROR, encode_error(Code.NOT_READY, "no network process is ready")
        endpoint = told_endpoint(door.listener, netproc)
        welcome = Welcome(VERSION, max(hello.broker_id, 0), endpoint, self._server_key if door.is_tcp else "")
        return Kind.WELCOME, welcome.encode()
