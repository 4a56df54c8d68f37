"""Sessions that end unless their clients authenticate again on the open connection (KIP-368).

    SaslHandshake ──→ SaslAuthenticate … ──→ the session lasts on          requests behind them wait, as behind all
    another request after the end of the session ──→ the connection is closed, without an answer

A session without a lifetime has no `SessionLifetime`, and pays a look at an attribute for each request.

Source: Kafka's `SocketServer.scala` and `KafkaChannel.java`, release 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from appliance.clock import NS_PER_MS, Clock
from appliance.errors import MalformedFrame
from appliance.ipc.agent import Timers
from appliance.ipc.buffer_pool import Block, BufferPool
from appliance.protocol.api_versions import ApiKey
from appliance.requests.auditing import Auditing
from appliance.requests.authentication import Authenticated, Authentication, State
from appliance.requests.log_handlers.finish import Finish, Refuse
from appliance.requests.session import Request, Session
from appliance.requests.session_lifetime import SessionLifetime

if TYPE_CHECKING:
    # Without a listener with SASL nobody loads the mechanisms.
    from appliance.sasl.registry import MakeExchange

INTERVAL_NS: Final = 1_000_000_000
"""A client may begin to authenticate again once in this time. An earlier SaslHandshake is ILLEGAL_SASL_STATE."""


class Lifetime(SessionLifetime):
    """When a session ends, and the authentication that is under way.

    Args:
        makers: the mechanisms of its listener.
        authenticated: as the client proved it last; `expires_ns` is not None.
    """

    __slots__ = ("authenticated", "began_ns", "expires_ns", "makers", "under_way")

    def __init__(
        self, makers: Mapping[str, MakeExchange], authenticated: Authenticated, ends_ns: int
    ) -> None:
        self.makers = makers
        self.authenticated = authenticated
        self.expires_ns = ends_ns
        self.began_ns: int | None = None
        self.under_way: Authentication | None = None


class Reauthentications:
    """Those of one network process.

    Args:
        frame_bytes_max: `sasl.server.max.receive.size`.
        max_reauth_ms: `connections.max.reauth.ms`.
        failed: counts a failure of an address at a time, in nanoseconds; returns how long its answer waits, in
            milliseconds. The first authentications of clients are counted there, too.
        finish: takes an answer.
        refuse: ends the connection of a request.
        auditing: takes what the audit journal records; None where there is no journal.
    """

    __slots__ = (
        "_auditing",
        "_clock",
        "_failed",
        "_finish",
        "_frame_bytes_max",
        "_max_reauth_ms",
        "_pool",
        "_refuse",
        "_timers",
    )

    def __init__(
        self,
        *,
        frame_bytes_max: int,
        max_reauth_ms: int,
        failed: Callable[[str, int], int],
        pool: BufferPool,
        timers: Timers,
        clock: Clock,
        finish: Finish,
        refuse: Refuse,
        auditing: Auditing | None = None,
    ) -> None:
        self._auditing = auditing
        self._frame_bytes_max = frame_bytes_max
        self._max_reauth_ms = max_reauth_ms
        self._failed = failed
        self._pool = pool
        self._timers = timers
        self._clock = clock
        self._finish = finish
        self._refuse = refuse

    def takes(self, session: Session, block: Block, start: int, end: int) -> bool:
        """Return whether the frame in [start, end) of `block` is of an authentication; then it is served.

        Raises:
            MalformedFrame: the session is over, or the frame is no part of the authentication. The block is given back.
        """
        lifetime = session.lifetime
        assert isinstance(lifetime, Lifetime)
        try:
            under_way = self._under_way(lifetime, block.view, start)
            if under_way is None:
                return False
            if end - start > self._frame_bytes_max:
                raise MalformedFrame(
                    f"a SASL token of {end - start} bytes; the maximum is {self._frame_bytes_max}"
                )
            answer = under_way.take(bytes(block.view[start:end]))
        except Exception as error:
            self._pool.give(block)
            begun = lifetime.under_way
            if self._auditing is not None and begun is not None and isinstance(error, MalformedFrame):
                # As of a first authentication that is not decided.
                self._auditing.failed(session, mechanism=begun.mechanism, claimed="", why=str(error))
            raise
        pending = Request(session, block, int(ApiKey.SASL_AUTHENTICATE), 0, 0)
        session.enqueue(pending)
        if under_way.state is State.FAILED:
            if self._auditing is not None:
                self._auditing.failed(
                    session, mechanism=under_way.mechanism, claimed=under_way.claimed, why=under_way.why
                )
            self._fail_later(pending, under_way.why, answer)
            return True
        if under_way.state is State.DONE:
            assert under_way.result is not None
            session.by_token = under_way.result.by_token
            session.lifetime = lifetime_of(lifetime.makers, under_way.result, began_ns=lifetime.began_ns)
            if self._auditing is not None:
                self._auditing.authenticated(session, mechanism=under_way.mechanism)
        self._finish(pending, [answer])
        return True

    def _under_way(self, lifetime: Lifetime, view: memoryview, start: int) -> Authentication | None:
        """Return the authentication that a frame belongs to; None for any other request.

        Raises:
            MalformedFrame: the session is over.
        """
        if lifetime.under_way is not None:
            return lifetime.under_way
        now_ns = self._clock.monotonic_ns()
        if view[start] << 8 | view[start + 1] == ApiKey.SASL_HANDSHAKE and (
            lifetime.began_ns is None or now_ns - lifetime.began_ns >= INTERVAL_NS
        ):
            lifetime.began_ns = now_ns
            lifetime.under_way = Authentication(
                lifetime.makers,
                self._clock,
                max_reauth_ms=self._max_reauth_ms,
                before=lifetime.authenticated,
            )
            return lifetime.under_way
        if now_ns > lifetime.expires_ns:
            raise MalformedFrame("its session is over, and its client has not authenticated again")
        return None

    def _fail_later(self, pending: Request, why: str, answer: bytes) -> None:
        """Answer after the delay, and close. Until then nothing behind it is read, because it is not answered."""

        def fail() -> None:
            if not pending.session.closed:
                self._finish(pending, [answer] if answer else [])
                self._refuse(pending, why)

        pending.give_block(self._pool)
        now_ns = self._clock.monotonic_ns()
        delay_ms = self._failed(pending.session.peer_host, now_ns)
        self._timers.add(now_ns + delay_ms * NS_PER_MS, fail)


def lifetime_of(
    makers: Mapping[str, MakeExchange], authenticated: Authenticated, *, began_ns: int | None = None
) -> Lifetime | None:
    """Return when the session of a client ends that has authenticated; None if it does not end."""
    if authenticated.expires_ns is None:
        return None
    lifetime = Lifetime(makers, authenticated, authenticated.expires_ns)
    lifetime.began_ns = began_ns
    return lifetime
