"""Connections whose clients have not authenticated: they are no sessions yet, and hold up no session.

    accepted, or TLS handshake done ──frames──→ conversation ──→ done: a connection like any other
                                                     └─ failed: the answer after a delay, then closed with a line

What the frames mean is in `requests/authentication.py`. Here are sockets, times and bounds.

Bounds, beside those of every stage (`arrival_stage`)

1. Each connection has `sasl.authentication.timeout.ms` from the moment that it came.
2. When one address has `sasl.authentications.max.per.ip` of them, or all have `sasl.authentications.max`, its oldest
   (the oldest) is closed for the next one, so silent clients cannot keep the others out.
3. A frame has at most `sasl.server.max.receive.size` bytes. Memory follows what has arrived, not what a client
   announced; all together hold HELD_BYTES_MAX, then the largest is closed. The pool of the sessions is not touched.
4. Exactly a frame is read, so nothing is left over when the connection becomes a session.
5. A failure is answered after a delay that grows with the failures of its address (`address_failures`). Meanwhile the
   connection is not read.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable, Mapping
from contextlib import suppress
from socket import SocketType
from typing import Final, cast

from appliance.channels.connection_channel import Assignment
from appliance.clock import NS_PER_MS, Clock
from appliance.config.sections.sasl import SaslSettings
from appliance.errors import MalformedFrame
from appliance.ipc.agent import DutyCycle
from appliance.netproc.address_failures import AddressFailures
from appliance.netproc.arrival_stage import ArrivalStage, Arriving, Bounds, Failed
from appliance.netproc.tls_stream import TlsStream
from appliance.requests.authentication import FRAME_SIZE_BYTES, Authenticated, Authentication, State
from appliance.requests.authenticators import Authenticators
from appliance.sasl.registry import MakeExchange

_log: Final = logging.getLogger(__name__)

STEPS_AT_ONCE: Final = 4
HELD_BYTES_MAX: Final = 16 << 20
READ_BYTES: Final = 64 << 10

# One for the process: it holds bytes only between a read and the copy that follows.
_landing: Final = memoryview(bytearray(READ_BYTES))


class _Waiting(Arriving, eq=False, kw_only=True):
    """A connection that authenticates. `out` is what is still to be sent, in the form that `TlsStream.flush` takes."""

    conversation: Authentication
    stream: TlsStream | None
    frame: bytearray
    size_bytes: int = -1
    out: list[bytes] | None = None
    is_failing: bool = False


Done = Callable[[Assignment, SocketType, TlsStream | None, Authenticated], None]


class Authentications(ArrivalStage[_Waiting]):
    """The authentications of one network process.

    Args:
        settings: times and bounds.
        authenticators: begin the conversations.
        failures: by address.
        cycle: where descriptors and deadlines are registered.
        done: gets a connection whose client has authenticated.
        failed: gets one that was closed.
    """

    __slots__ = ("_authenticators", "_done", "_failures", "_held_bytes", "_receive_size_max")

    def __init__(
        self,
        settings: SaslSettings,
        authenticators: Authenticators,
        *,
        failures: AddressFailures,
        cycle: DutyCycle,
        clock: Clock,
        done: Done,
        failed: Failed,
    ) -> None:
        super().__init__(
            Bounds(
                settings.authentication_timeout_ms,
                in_all=settings.authentications_max,
                of_address=settings.authentications_max_per_ip,
                option="sasl.authentications.max",
                late=f"its client did not authenticate within {settings.authentication_timeout_ms} ms",
            ),
            cycle=cycle,
            clock=clock,
            failed=failed,
        )
        self._authenticators = authenticators
        self._done = done
        self._failures = failures
        self._receive_size_max = settings.max_receive_size
        self._held_bytes = 0

    def makers(self, listener: str) -> Mapping[str, MakeExchange]:
        """Return the mechanisms of a listener, by name."""
        return self._authenticators.makers(listener)

    def begin(self, assignment: Assignment, sock: SocketType, stream: TlsStream | None = None) -> None:
        """Take a connection. `stream` encrypts it; then `sock` is the same object."""
        self._make_room(assignment.peer_host)
        waiting = _Waiting(
            assignment,
            sock,
            sock.fileno(),
            self._deadline_ns(),
            conversation=self._authenticators.begin(assignment.listener),
            stream=stream,
            frame=bytearray(),
        )
        self._keep(waiting)
        # OpenSSL may have decrypted the first bytes with the end of the handshake: epoll would not know of them.
        self._ready[waiting.fd] = None

    # One of them

    def _step(self, waiting: _Waiting) -> None:
        try:
            if waiting.out and not self._flush(waiting):
                return
            if waiting.is_failing:
                self._look_whether_gone(waiting)
                return
            for _ in range(STEPS_AT_ONCE):
                if not self._receive(waiting):
                    return
                if waiting.size_bytes >= 0 and len(waiting.frame) == waiting.size_bytes:
                    self._take(waiting)
                    if waiting.out or waiting.is_failing or waiting.fd not in self._waiting:
                        return
        except MalformedFrame as fault:
            self._fail(waiting, str(fault))
            return
        except (OSError, ValueError):
            self._fail(waiting, None)
            return
        self._ready[waiting.fd] = None

    def _receive(self, waiting: _Waiting) -> bool:
        """Read once; return whether something came."""
        frame = waiting.frame
        wanted = (FRAME_SIZE_BYTES if waiting.size_bytes < 0 else waiting.size_bytes) - len(frame)
        if wanted:
            try:
                count = (waiting.stream or waiting.sock).recv_into(_landing[: min(wanted, READ_BYTES)])
            except BlockingIOError:
                self._watch(waiting, select.EPOLLIN)
                return False
            if not count:
                began = len(frame) or waiting.size_bytes >= 0 or waiting.conversation.state is not State.FIRST
                self._fail(waiting, "its client left it in the authentication" if began else None)
                return False
            frame += _landing[:count]
            self._held_bytes += count
            if self._held_bytes > HELD_BYTES_MAX:
                largest = max(self._waiting.values(), key=lambda each: len(each.frame))
                self._fail(largest, "too many bytes from clients that have not authenticated")
                if largest is waiting:
                    return False
        if waiting.size_bytes < 0 and len(frame) == FRAME_SIZE_BYTES:
            waiting.size_bytes = waiting.conversation.size_of(bytes(frame), size_max=self._receive_size_max)
            self._empty(waiting)
        return True

    def _take(self, waiting: _Waiting) -> None:
        """Hand the frame to the conversation, and send what it says."""
        frame = bytes(waiting.frame)
        self._empty(waiting)
        waiting.size_bytes = -1
        conversation = waiting.conversation
        try:
            answer = conversation.take(frame)
        except MalformedFrame:
            raise
        except Exception as error:
            # A defect costs the connection that meets it, and no other one. A traceback shows no values.
            _log.error(
                "internal error in the authentication of connection %d (traceback follows)",
                waiting.assignment.connection_id,
                exc_info=error,
            )
            self._fail(waiting, "internal error, see the traceback above")
            return
        if conversation.state is State.FAILED:
            self._fail_later(waiting, answer)
            return
        if answer:
            waiting.out = [answer]
            if not self._flush(waiting):
                return
        elif conversation.state is State.DONE:
            self._finish(waiting)

    def _flush(self, waiting: _Waiting) -> bool:
        """Send what is to be sent; return whether the connection is to be read on."""
        out = waiting.out
        assert out is not None
        if waiting.stream is not None:
            waiting.stream.flush(waiting)  # type: ignore[arg-type]  # it needs `out` only
        else:
            with suppress(BlockingIOError):
                while out:
                    left = out[0][waiting.sock.send(out[0]) :]
                    out[:] = [left] if left else []
        if out:
            self._watch(waiting, select.EPOLLOUT)
            return False
        waiting.out = None
        if waiting.is_failing:
            self._fail(waiting, waiting.conversation.why)
            return False
        if waiting.conversation.state is State.DONE:
            self._finish(waiting)
            return False
        self._watch(waiting, select.EPOLLIN)
        return True

    def _finish(self, waiting: _Waiting) -> None:
        result = waiting.conversation.result
        assert result is not None
        self._forget(waiting)
        self._done(waiting.assignment, waiting.sock, waiting.stream, result)

    # Failures

    def _fail_later(self, waiting: _Waiting, answer: bytes) -> None:
        """Answer and close after the delay; not before what is read of it says that its client is gone."""
        waiting.is_failing = True
        now_ns = self._clock.monotonic_ns()
        delay_ms = self._failures.failed(waiting.assignment.peer_host, now_ns)
        self._watch(waiting, 0)

        def fail() -> None:
            # The descriptor may be another connection's by now.
            if self._waiting.get(waiting.fd) is not waiting:
                return
            try:
                waiting.out = [answer] if answer else []
                self._flush(waiting)
            except (OSError, ValueError):
                self._fail(waiting, waiting.conversation.why)

        self._cycle.timers.add(now_ns + delay_ms * NS_PER_MS, fail)

    def _look_whether_gone(self, waiting: _Waiting) -> None:
        """Close a connection that waits for its answer if its client is gone."""
        poll = select.poll()
        poll.register(waiting.fd, 0)  # reports a hang-up and nothing else
        if poll.poll(0):
            self._fail(waiting, waiting.conversation.why)

    def _empty(self, waiting: _Waiting) -> None:
        self._held_bytes -= len(waiting.frame)
        waiting.frame = bytearray()

    def _forget(self, waiting: _Waiting) -> None:
        self._empty(waiting)
        super()._forget(waiting)

    def _socket(self, waiting: _Waiting) -> SocketType:
        return cast(SocketType, waiting.stream or waiting.sock)

    def _claim(self, waiting: _Waiting) -> tuple[str, str]:
        return waiting.conversation.mechanism, waiting.conversation.claimed

    def _has_more_time(self, waiting: _Waiting) -> bool:
        return waiting.is_failing  # it is closed with its answer, after a delay that is bounded, too
