"""ZeroMQ to the appliance: `zmq+ipc:///path` and `zmq+tcp://host:port`, with CURVE keys or without. Needs pyzmq.

A DEALER socket asks the acceptor for a network process; another one has the session there. ZeroMQ's descriptor tells
of changes, not of what is there. So whoever has touched a socket goes on until nothing can be read or sent any more,
and a link that stops earlier keeps the driver from sleeping.

A monitor tells of broken connections. ZeroMQ would connect again, but a session ends with its connection.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import zmq
import zmq.utils.monitor
import zmq.utils.z85

from appliance.protocol.records.batch import Buffer
from appliance_client.connection import Connection
from appliance_client.errors import OptionError
from appliance_client.options import ConnectionOptions
from appliance_client.transport import Io
from appliance_client.zeromq_session import SessionEndedError, ZeroMqSession

_MESSAGES_MAX: Final = 64
"""So many of one link are read before others have their turn."""
_CLOSE_LINGER_MS: Final = 100
_PREFIX: Final = "zmq+"
_BROKEN: Final[dict[int, str]] = {
    zmq.EVENT_DISCONNECTED: "closed by the broker",
    zmq.EVENT_CONNECT_RETRIED: "cannot connect",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "not admitted",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "not admitted: no common security",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "not admitted: user or key",
}
_BROKEN_MASK: Final = sum(_BROKEN)

_LIMITED_BY: Final = "socket.request.max.bytes"


class Transport:
    """Opens sessions."""

    def __init__(self, io: Io, options: ConnectionOptions) -> None:
        self.io = io
        self.options = options
        self.keys = _keys(options)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.unfinished: dict[ZeroMqLink, None] = {}

    def open(self, connection: Connection) -> None:
        """Say HELLO."""
        link = ZeroMqLink(self, connection)
        connection.link = link
        link.start()

    def may_sleep(self) -> bool:
        """Not while there is something that nothing would tell of."""
        return not self.unfinished

    def woken(self) -> None:
        """Go on with what was left."""
        unfinished, self.unfinished = self.unfinished, {}
        for link in unfinished:
            link.turn()

    def close(self) -> None:
        """End ZeroMQ's thread."""
        self.context.term()


class ZeroMqLink:
    """The session of one connection."""

    def __init__(self, transport: Transport, connection: Connection) -> None:
        options = transport.options
        self._transport = transport
        self._io = transport.io
        self._connection = connection
        self._endpoint = connection.address[0].removeprefix(_PREFIX)
        self._session = ZeroMqSession(
            connection.broker_id, options.client_id, options.receive_message_max_bytes
        )
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._is_welcome = False
        self._unsent: list[Buffer] | None = None
        self._heard_s = 0.0

    def start(self) -> None:
        """Ask the acceptor."""
        scheduler = self._io.scheduler
        scheduler.call_at(scheduler.now_s + self._connection.setup_timeout_s, self._late)
        self._connect(self._endpoint, self._session.hello())

    def flush(self) -> None:
        """Send requests."""
        if self._session.limits is not None:
            self.turn()

    def close(self) -> None:
        """Say that the session ends, if there is one."""
        self._let_go(say_so=self._session.limits is not None)

    def turn(self) -> None:
        """Read and send until neither is possible, or others must have their turn."""
        used = self._socket
        if used is None:
            return
        try:
            for _ in range(_MESSAGES_MAX):
                # The events are asked for anew each time: only that looks at what ZeroMQ's thread has told.
                is_read = self._read(used)
                is_sent = self._socket is used and self._send(used)
                if self._socket is not used or self._connection.state == Connection.IDLE:
                    return
                if not is_read and not is_sent and not self._goes_on(used):
                    return
            self._transport.unfinished[self] = None
        except SessionEndedError as ended:
            self._lose(str(ended))
        except zmq.ZMQError as error:
            self._lose(str(error))

    def _goes_on(self, used: zmq.Socket[bytes]) -> bool:
        """Whether something can be done by now. To look takes away what the descriptor would have told: all counts."""
        events = _events(used)
        return bool(events & zmq.POLLIN or (events & zmq.POLLOUT and self._unsent is not None))

    def _connect(self, endpoint: str, first: list[Buffer]) -> None:
        self._let_go(say_so=False)
        used = self._transport.context.socket(zmq.DEALER)
        self._socket = used
        used.linger = 0
        used.setsockopt(zmq.IMMEDIATE, 1)
        used.setsockopt(zmq.SNDHWM, 0)
        keys = self._transport.keys
        try:
            if keys is not None and endpoint.startswith("tcp:"):
                used.curve_publickey, used.curve_secretkey, used.curve_serverkey = keys
            self._monitor = used.get_monitor_socket(_BROKEN_MASK)
            used.connect(endpoint)
        except zmq.ZMQError as error:
            self._lose(f"cannot connect: {error}")
            return
        self._unsent = first
        self._io.watch(_descriptor(used), lambda _events: self.turn())
        self._io.watch(_descriptor(self._monitor), lambda _events: self._look())
        # What has happened before the descriptors were watched is told by nothing else.
        self._transport.unfinished[self] = None
        self._look()

    def _look(self) -> None:
        """Has the connection broken?"""
        monitor = self._monitor
        while monitor is not None and monitor is self._monitor and _events(monitor) & zmq.POLLIN:
            event = zmq.utils.monitor.recv_monitor_message(monitor, zmq.NOBLOCK)
            why = _BROKEN.get(event["event"])
            if why is not None:
                # Answers that came before are read first: they were earned.
                self.turn()
                if self._monitor is monitor:
                    self._lose(why)

    def _read(self, used: zmq.Socket[bytes]) -> bool:
        """Take one message; False where there is none."""
        try:
            frame: Any = used.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        frames: list[Buffer] = [frame.bytes]
        while frame.more:
            frame = used.recv(zmq.NOBLOCK, copy=False)
            frames.append(frame.buffer)
        self._heard_s = self._io.scheduler.now_s
        if self._session.limits is not None:
            answer = self._session.received(frames)
            if answer is not None:
                self._connection.answered(answer)
        elif self._is_welcome:
            limits = self._session.opened(frames)
            self._beat_later(limits.heartbeat_interval_ms / 1000)
            self._connection.opened(
                messages=True, request_bytes_max=limits.request_bytes_max, limited_by=_LIMITED_BY
            )
        else:
            welcome = self._session.welcomed(frames)
            self._is_welcome = True
            self._connect(_reachable(welcome.endpoint, self._endpoint), self._session.open())
        return True

    def _send(self, used: zmq.Socket[bytes]) -> bool:
        """Send one message; False where there is none, or no room for it."""
        session = self._session
        message = self._unsent
        if message is None:
            if session.limits is None:
                return False
            if session.controls:
                message = session.controls.popleft()
            else:
                message = session.request(None if session.holds else self._connection.next_request())
        if message is None:
            return False
        try:
            used.send_multipart(message, zmq.NOBLOCK)
        except zmq.Again:
            self._unsent = message
            return bool(_events(used) & zmq.POLLOUT)
        self._unsent = None
        return True

    def _beat_later(self, interval_s: float) -> None:
        scheduler = self._io.scheduler
        scheduler.call_at(scheduler.now_s + interval_s, self._beat)

    def _beat(self) -> None:
        limits = self._session.limits
        if self._socket is None or self._connection.link is not self or limits is None:
            return
        if self._io.scheduler.now_s - self._heard_s > limits.session_timeout_ms / 1000:
            self._lose("nothing was heard of the broker for its session timeout")
            return
        self._session.heartbeat()
        self._beat_later(limits.heartbeat_interval_ms / 1000)
        self.turn()

    def _late(self) -> None:
        if self._connection.link is self and self._session.limits is None:
            self._lose("no session within socket.connection.setup.timeout.ms")

    def _lose(self, reason: str) -> None:
        self._let_go(say_so=False)
        if self._connection.link is self:
            self._connection.link = None
            self._connection.lost(reason)

    def _let_go(self, *, say_so: bool) -> None:
        self._transport.unfinished.pop(self, None)
        used, self._socket = self._socket, None
        monitor, self._monitor = self._monitor, None
        if used is None:
            return
        if monitor is not None:
            self._io.unwatch(_descriptor(monitor))
            used.disable_monitor()
            monitor.close(0)
        self._io.unwatch(_descriptor(used))
        if say_so:
            try:
                used.send_multipart(self._session.close(), zmq.NOBLOCK)
            except zmq.ZMQError:
                say_so = False
        used.close(_CLOSE_LINGER_MS if say_so else 0)


def _events(used: zmq.Socket[bytes]) -> int:
    return int(used.getsockopt(zmq.EVENTS))


def _descriptor(used: zmq.Socket[bytes]) -> int:
    return int(used.getsockopt(zmq.FD))


def _reachable(endpoint: str, hello: str) -> str:
    """The endpoint of WELCOME; `*` stands for the host that was asked."""
    if not endpoint.startswith("tcp://*:"):
        return endpoint
    host = urlsplit(hello).netloc.rpartition(":")[0]
    return f"tcp://{host}:{endpoint.rpartition(':')[2]}"


def _keys(options: ConnectionOptions) -> tuple[bytes, bytes, bytes] | None:
    """Public and secret key of this client, and the server's public key."""
    if options.zeromq_curve_key_file is None or options.zeromq_curve_server_key is None:
        return None
    public, secret = _load(options.zeromq_curve_key_file, "zeromq.curve.key.file")
    if secret is None:
        raise OptionError(f"zeromq.curve.key.file: {options.zeromq_curve_key_file} has no secret key")
    server = options.zeromq_curve_server_key
    key = _load(server, "zeromq.curve.server.key")[0] if os.sep in server else server.encode()
    try:
        is_key = len(zmq.utils.z85.decode(key)) == 32
    except (ValueError, KeyError):
        is_key = False
    if not is_key:
        raise OptionError("zeromq.curve.server.key is neither a key of 40 characters nor the path of a file")
    return public, secret, key


def _load(path: str, option: str) -> tuple[bytes, bytes | None]:
    from zmq.auth import load_certificate

    try:
        return load_certificate(Path(path))
    except (OSError, ValueError) as error:
        raise OptionError(f"{option}: {error}") from error
