"""One session with a ZooKeeper ensemble: kazoo's client, a lease by our own clock, and a bell.

kazoo keeps the connection in threads of its own, so only a process that never forks opens a session (the
controller; never the supervisor). Its callbacks run in those threads: they set words and ring the bell, and
decide nothing.

A session is over, for good, as soon as one of these is known; whatever comes later is not believed:

- ZooKeeper says that it expired;
- the lease ran out: no answer for so long that it may have expired;
- a change whose answer was lost did take place (zookeeper_store.py).

A server that keeps its connection open and says nothing (stopped, or cut off) is left for another one of the ensemble:
after _BEATS_UNANSWERED_MAX beats, early enough that the session moves before its lease runs out. kazoo would wait for a
timeout of its own, and count our beats as signs of life. So is one that does not answer a connection, or does not take
one (starting, or without power): kazoo would give it up to the whole of the session's timeout.

kazoo would open another session by itself after the first of these. Nothing of ours is ever sent in it: the
word `over` is set before it connects.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import _CONNECTION_DROP
from kazoo.protocol.states import KazooState

from appliance.clock import NS_PER_MS, Clock
from appliance.control.store.errors import SessionExpired, StoreUnavailable
from appliance.control.store.left_sessions import LeftSessions
from appliance.control.store.session_lease import SessionLease
from appliance.errors import StorageFault

CONNECT_TIMEOUT_S: Final = 4.0
REQUEST_TIMEOUT_S: Final = 4.0
CLOSE_TIMEOUT_S: Final = 2.0

_BEATS_PER_TIMEOUT: Final = 8
_BEATS_UNANSWERED_MAX: Final = 2
_NOT_ANSWERED: Final = (ConnectionLoss, ConnectionClosedError, OperationTimeoutError, KazooTimeoutError)
_RECONNECT: Final = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 1.0}

_logger = logging.getLogger(__name__)
# kazoo tells of each attempt to connect; we tell of what came of them.
logging.getLogger("kazoo").setLevel(logging.CRITICAL)


class ZooKeeperSession:
    """Opened at once.

    Args:
        hosts: `host:port`, joined by commas.
        timeout_ms: what is asked for; the server may grant less or more.
        handed_on: it is the data directory's that outlives its processes, gone on with where it lives still; `close`
            ends it all the same, `leave` does not.

    Raises:
        StoreUnavailable: nobody answers within CONNECT_TIMEOUT_S.
        StorageFault: the session cannot be written down.
    """

    __slots__ = (
        "_attempt_ns",
        "_beat",
        "_bell",
        "_client",
        "_clock",
        "_hosts",
        "_is_connected",
        "_left",
        "_stopped",
        "_unanswered_beats",
        "_why_over",
        "is_gone_on_with",
        "lease",
        "session_id",
    )

    def __init__(
        self, hosts: str, timeout_ms: int, *, left: LeftSessions, clock: Clock, handed_on: bool = False
    ) -> None:
        self._hosts = hosts
        self._clock = clock
        self._left = left
        self._why_over = ""
        self._unanswered_beats = 0
        self._attempt_ns = 0
        self._stopped = threading.Event()
        self._beat = threading.Event()
        self._is_connected = threading.Event()
        self.session_id = 0
        self.lease = SessionLease(clock, timeout_ms)
        taken = left.take() if handed_on else None
        self.is_gone_on_with = taken is not None
        for session_id, password in () if handed_on else left.left():
            _end_left(_client(hosts, timeout_ms, (session_id, password)), hosts)
            _logger.info("ended ZooKeeper session 0x%x of a process that died", session_id)
        self._client = _client(hosts, timeout_ms, taken)
        self._learn_granted_timeout()
        self._client.add_listener(self._state_changed)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            _await_connected(self._client, hosts)
            if (session := self._client.client_id) is None:
                raise StoreUnavailable(f"ZooKeeper at {hosts} went away")
            # Where the one that was taken has expired, kazoo has opened another.
            self.session_id, password = session
            self.is_gone_on_with = taken is not None and taken[0] == self.session_id
            if not handed_on:
                left.keep(self.session_id, password)
            elif taken != session:
                left.hand_on(self.session_id, password)
            # Only after its answer has kazoo's thread handed on what was granted.
            self._client.exists_async("/").get(timeout=REQUEST_TIMEOUT_S)
        except (KazooException, KazooTimeoutError) as error:
            self._give_up()
            raise StoreUnavailable(f"ZooKeeper at {hosts} went away") from error
        except StorageFault:
            self._give_up()
            raise
        threading.Thread(target=self._keep_alive, name="zookeeper lease", daemon=True).start()

    def _give_up(self) -> None:
        self._stopped.set()
        self._beat.set()
        _end(self._client, session_too=not self.is_gone_on_with)
        self._left.let_go(self.session_id)
        os.close(self._bell)

    # Asking

    def ask(self, send: Callable[[KazooClient], Any], *, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """The result of one request that `send` hands to kazoo (one of its `_async` calls).

        Raises:
            SessionExpired: the session is over.
            StoreUnavailable: no answer; what became of the request is not known.
            StorageFault: the server refuses such requests (no permission, too long).
            kazoo's ZookeeperError: the tree refused it.
        """
        self.check_connection()
        sent_ns = self._clock.monotonic_ns()
        try:
            answer = send(self._client).get(timeout=timeout_s)
        except _NOT_ANSWERED as error:
            self.check()
            raise StoreUnavailable(f"ZooKeeper at {self._hosts} did not answer") from error
        except (SessionExpiredError, AuthFailedError) as error:
            self.end("ZooKeeper says that it expired")
            self.check()
            raise AssertionError from error
        except KazooException:
            self.lease.confirm(sent_ns)
            raise
        self.lease.confirm(sent_ns)
        self.check()
        return answer

    def await_connection(self, timeout_s: float) -> bool:
        """Waits until there is a connection again, at most that long; whether there is one."""
        self._is_connected.wait(timeout_s)
        return self.connected

    @property
    def connected(self) -> bool:
        return bool(self._client.connected)

    def check(self) -> None:
        """Raises SessionExpired where the session is over, or may be."""
        if not self._why_over and not self.lease.held():
            self.end(f"no answer for {self.lease.timeout_ms} ms, so it may have expired")
        if self._why_over:
            raise SessionExpired(f"the session with ZooKeeper ended: {self._why_over}")

    def check_connection(self) -> None:
        """Raises StoreUnavailable where nothing can be sent now; SessionExpired as `check`."""
        self.check()
        if not self._client.connected:
            raise StoreUnavailable(f"no connection to ZooKeeper at {self._hosts}")

    def end(self, why: str) -> None:
        """The session is over; the first reason stays."""
        if not self._why_over:
            self._why_over = why
            _logger.warning("the session with ZooKeeper at %s ended: %s", self._hosts, why)
            self.ring()

    @property
    def over(self) -> bool:
        return bool(self._why_over)

    # The bell

    def fileno(self) -> int:
        return self._bell

    def ring(self) -> None:
        """From any thread: `fileno` becomes readable."""
        with suppress(BlockingIOError, OSError):
            os.eventfd_write(self._bell, 1)

    def hush(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)

    def close(self) -> None:
        """Ends the session at the server if it can be reached; leaves it to the next life otherwise."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._beat.set()
        reachable = self._client.connected and not self._why_over
        self._why_over = self._why_over or "it was closed"
        if _end(self._client) and reachable:
            self._left.ended(self.session_id)
        else:
            self._left.let_go(self.session_id)
        os.close(self._bell)

    def leave(self) -> None:
        """Ends what was begun here: a session that was gone on with is left to the next one who goes on with it."""
        if not self.is_gone_on_with:
            self.close()
        elif not self._stopped.is_set():
            self._why_over = self._why_over or "it was left"
            self._give_up()

    # kazoo's threads and the lease's

    def _state_changed(self, state: KazooState) -> None:
        if self._stopped.is_set():
            return
        if state == KazooState.CONNECTED:
            self._unanswered_beats = 0
            self._is_connected.set()
        else:
            self._is_connected.clear()
        if state == KazooState.LOST:
            self.end("ZooKeeper says that it expired")
        elif state == KazooState.SUSPENDED:
            _logger.warning("lost the connection to ZooKeeper at %s", self._hosts)
        elif self.session_id and not self._why_over:
            _logger.info("reconnected to ZooKeeper at %s", self._hosts)
        self._beat.set()
        self.ring()

    def _keep_alive(self) -> None:
        """Asks something small a few times per timeout, and ends the session once nobody answered for too long.

        kazoo's own pings would keep the session alive as well, but nobody tells when one was answered.
        """
        while not self._stopped.is_set():
            self._beat.clear()
            wait_ms = self.lease.timeout_ms // _BEATS_PER_TIMEOUT
            if self._client.connected:
                if self._unanswered_beats >= _BEATS_UNANSWERED_MAX:
                    self._leave_server()
                self._send_beat()
            elif self._attempt_ns:
                wait_ms = self._attempt_left_ms()
                if not wait_ms:
                    self._leave_server()
            self._beat.wait(min(wait_ms, self.lease.left_ms()) / 1000 + 0.001)
            if not self._stopped.is_set():
                with suppress(SessionExpired):
                    self.check()
                    continue
                return

    def _send_beat(self) -> None:
        sent_ns = self._clock.monotonic_ns()
        self._unanswered_beats += 1

        def answered(result: Any) -> None:
            self._unanswered_beats = 0
            if result.exception is None:
                self.lease.confirm(sent_ns)

        self._client.exists_async("/").rawlink(answered)

    def _attempt_left_ms(self) -> int:
        """How much longer the server that is being connected with has to answer."""
        left_ns = self._attempt_ns - self._clock.monotonic_ns()
        return max(0, round(_attempt_s(self.lease.timeout_ms) * 1000) + left_ns // NS_PER_MS)

    def _leave_server(self) -> None:
        """Ends the connection; kazoo goes on with the next server, and the session with it."""
        self._unanswered_beats = 0
        self._attempt_ns = 0
        if _leave(self._client):
            _logger.warning(
                "ZooKeeper at %s keeps a connection but does not answer; changing to another server",
                self._hosts,
            )

    def _learn_granted_timeout(self) -> None:
        """kazoo keeps what the server granted to itself; its connection hands it on as 2/3 of it."""
        connection = self._client._connection
        connect = connection._connect

        def told(*where: Any) -> Any:
            sent_ns = self._clock.monotonic_ns()
            self._attempt_ns = sent_ns
            self._beat.set()
            try:
                read_timeout_ms, connect_timeout_ms = connect(*where)
            finally:
                self._attempt_ns = 0
            self.lease.timeout_ms = round(read_timeout_ms * 3 / 2)
            self.lease.confirm(sent_ns)
            return read_timeout_ms, connect_timeout_ms

        connection._connect = told


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Threads that leave a server which takes no connection."""

    def __init__(self, attempt_s: float) -> None:
        super().__init__()
        self._attempt_s = attempt_s

    def create_connection(self, *where: Any, timeout: float, **named: Any) -> Any:
        return super().create_connection(*where, timeout=min(timeout, self._attempt_s), **named)


def _attempt_s(timeout_ms: int) -> float:
    """How long a server may take to answer a connection, in a session of that timeout: so that another one is asked
    before the first attempt is over."""
    return min(CONNECT_TIMEOUT_S / 2, timeout_ms * _BEATS_UNANSWERED_MAX / _BEATS_PER_TIMEOUT / 1000)


def _client(hosts: str, timeout_ms: int, session: tuple[int, bytes] | None = None) -> KazooClient:
    return KazooClient(
        hosts=hosts,
        timeout=timeout_ms / 1000,
        client_id=session,
        handler=_Handler(_attempt_s(timeout_ms)),
        connection_retry=dict(_RECONNECT),
    )


def _await_connected(client: KazooClient, hosts: str) -> None:
    """Raises StoreUnavailable when nobody answers in time."""
    is_connected = client.start_async()
    if not is_connected.wait(CONNECT_TIMEOUT_S / 2):
        # One that is silent: the next one is asked for as long.
        _leave(client)
    if not is_connected.wait(CONNECT_TIMEOUT_S / 2):
        raise StoreUnavailable(f"ZooKeeper at {hosts} does not answer within {CONNECT_TIMEOUT_S:.0f} s")


def _end_left(client: KazooClient, hosts: str) -> None:
    """Ends a session that a process has left. Raises StoreUnavailable."""
    try:
        _await_connected(client, hosts)
    finally:
        _end(client)


def _leave(client: KazooClient) -> bool:
    """Ends the connection, if there is one; whether there is."""
    connected = client._connection._socket
    if connected is None:
        return False
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
    return True


def _end(client: KazooClient, *, session_too: bool = True) -> bool:
    """Stops kazoo's threads; whether they have stopped. Those that wait for a silent server stop by themselves
    when it has been silent for the session's timeout. Without `session_too` ZooKeeper is told nothing."""

    def stop() -> None:
        # All raise a bare Exception where a thread of theirs still waits for the server.
        with suppress(Exception):
            if session_too:
                client.stop()
            else:
                _stop_without_a_word(client)
            client.close()

    stopping = threading.Thread(target=stop, name="zookeeper stop", daemon=True)
    stopping.start()
    stopping.join(CLOSE_TIMEOUT_S)
    return not stopping.is_alive()


def _stop_without_a_word(client: KazooClient) -> None:
    """As `KazooClient.stop`, which has ZooKeeper end the session."""
    client._stopped.set()
    client._queue.append((_CONNECTION_DROP, None))
    try:
        client._connection._write_sock.send(b"\0")
    finally:
        client._safe_close()
