"""The conversation in which a client authenticates with SASL: whole frames in, frames out. It never waits.

| state | the client sends | then |
|---|---|---|
| FIRST | ApiVersions | its answer; HANDSHAKE. Of a version that is not served, or invalid: the error; FIRST |
| FIRST, HANDSHAKE | SaslHandshake v1 / v0 with a mechanism that the listener has | its answer; AUTHENTICATE / TOKENS |
| FIRST, HANDSHAKE | SaslHandshake with another mechanism | UNSUPPORTED_SASL_MECHANISM and what there is; FAILED |
| AUTHENTICATE | SaslAuthenticate | the mechanism's answer; DONE when it is complete |
| TOKENS | a token without a header | the same, without a header |
| AUTHENTICATE, TOKENS | a token that the mechanism refuses | SASL_AUTHENTICATION_FAILED (TOKENS: nothing); FAILED |
| AUTHENTICATE | ApiVersions, SaslHandshake | ILLEGAL_SASL_STATE; FAILED |
| OTHER_MECHANISM | anything | nothing; FAILED |
| AUTHENTICATE, TOKENS | a token about which the mechanism cannot decide | nothing; closed at once (MalformedFrame) |
| any | anything else | nothing; closed at once (MalformedFrame) |

FAILED: the answer leaves after a delay, and then the connection is closed.

A client whose session has a lifetime authenticates again on the open connection (KIP-368): `reauthentications`. That
conversation begins in FIRST, with SaslHandshake. Another mechanism leads to OTHER_MECHANISM, one that does not exist
to FAILED without an answer. Another principal fails.

Source: Kafka's `SaslServerAuthenticator.java`, release 4.3. Difference: a request of another API in AUTHENTICATE closes
the connection; Kafka answers it with ILLEGAL_SASL_STATE first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from appliance.clock import NS_PER_MS, Clock
from appliance.errors import MalformedFrame
from appliance.protocol.api_versions import ApiKey, api_name
from appliance.protocol.apis.api_versions import ApiVersionsResponse
from appliance.protocol.apis.sasl_authenticate import SaslAuthenticateResponse
from appliance.protocol.apis.sasl_handshake import SaslHandshakeResponse
from appliance.protocol.errors import ErrorCode
from appliance.protocol.framing import SIZE, SIZE_BYTES, frame_size
from appliance.protocol.headers import RequestHeader, parse_request_header
from appliance.protocol.messages import decode_request, encode_response, encode_unsupported_api_versions
from appliance.requests.local_handlers.api_versions import api_versions_of
from appliance.sasl.mechanism import AuthenticationFailed, CannotDecide, Exchange

if TYPE_CHECKING:
    # Without a listener with SASL nobody loads the mechanisms.
    from appliance.sasl.registry import MakeExchange

MECHANISM_CHARACTERS_MAX: Final = 100


class State(Enum):
    """How far a conversation is."""

    FIRST = auto()
    HANDSHAKE = auto()
    AUTHENTICATE = auto()
    TOKENS = auto()
    OTHER_MECHANISM = auto()
    DONE = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Authenticated:
    """Who a client is, and until when.

    Attributes:
        expires_ns: end of the session on the monotonic clock; None if it does not end.
        by_token: whether the client logged in with a delegation token.
    """

    mechanism: str
    principal: str
    expires_ns: int | None
    software_name: str = ""
    software_version: str = ""
    by_token: bool = False


class Authentication:
    """One conversation.

    Args:
        makers: the listener's mechanisms, by name.
        max_reauth_ms: `connections.max.reauth.ms`.
        before: who the client is, if it authenticates again.
        telemetry: clients may push their metrics.

    Attributes:
        result: set when the state is DONE.
        why: for the log, when the state is FAILED.
        mechanism: the one that the client has named; "" before.
        claimed: the principal that the client claimed to be, when the state is FAILED; "" if it named none.
    """

    __slots__ = (
        "_before",
        "_clock",
        "_exchange",
        "_makers",
        "_max_reauth_ms",
        "_software",
        "_telemetry",
        "claimed",
        "mechanism",
        "result",
        "state",
        "why",
    )

    def __init__(
        self,
        makers: Mapping[str, MakeExchange],
        clock: Clock,
        *,
        max_reauth_ms: int,
        before: Authenticated | None = None,
        telemetry: bool = False,
    ) -> None:
        self._telemetry = telemetry
        self._makers = makers
        self._clock = clock
        self._max_reauth_ms = max_reauth_ms
        self._before = before
        self.mechanism = ""
        self._exchange: Exchange | None = None
        self._software = ("", "")
        self.state = State.FIRST
        self.result: Authenticated | None = None
        self.why = ""
        self.claimed = ""

    def size_of(self, prefix: bytes, *, size_max: int) -> int:
        """Return the size that a frame declares in its first four bytes.

        Raises:
            MalformedFrame: it is too large, or no size; the connection must be closed.
        """
        if self.state is not State.TOKENS:
            return frame_size(memoryview(prefix), 0, size_max=size_max)
        size: int = SIZE.unpack(prefix)[0]
        if not 0 <= size <= size_max:
            raise MalformedFrame(f"a SASL token of {size} bytes; the maximum is {size_max}")
        return size

    def take(self, frame: bytes) -> bytes:
        """Take a whole frame, without its size; return the answer with its size, which may be nothing at all.

        Raises:
            MalformedFrame: the connection must be closed at once.
        """
        match self.state:
            case State.FIRST | State.HANDSHAKE:
                return self._take_request(frame)
            case State.AUTHENTICATE:
                return self._take_authenticate(frame)
            case State.TOKENS:
                return self._take_token(frame)
            case State.OTHER_MECHANISM:
                self._fail("its client named another SASL mechanism than before")
                return b""
            case _:
                raise MalformedFrame("a frame after the end of the authentication")

    # Requests before the tokens

    def _take_request(self, frame: bytes) -> bytes:
        view = memoryview(frame)
        header = parse_request_header(view, 0, len(frame))
        if header.api_key == ApiKey.API_VERSIONS and self.state is State.FIRST:
            return self._answer_versions(view, header)
        if header.api_key != ApiKey.SASL_HANDSHAKE:
            raise MalformedFrame(
                f"its client sent {api_name(header.api_key)} and did not authenticate; the listener wants SASL "
                "(security.protocol of the client)"
            )
        request = decode_request(header.api_key, header.version, view, header.body_position)
        mechanism: str = request.mechanism
        names, before = tuple(self._makers), self._before
        make = self._makers.get(mechanism)
        if make is None:
            self._fail(f"its client wants the SASL mechanism {mechanism[:MECHANISM_CHARACTERS_MAX]!r}")
            refusal = SaslHandshakeResponse(int(ErrorCode.UNSUPPORTED_SASL_MECHANISM), names)
            return _encoded(header, refusal) if before is None else b""
        if before is not None and before.mechanism != mechanism:
            self.state = State.OTHER_MECHANISM
        else:
            self.mechanism = mechanism
            self._exchange = make()
            self.state = State.AUTHENTICATE if header.version else State.TOKENS
        return _encoded(header, SaslHandshakeResponse(0, names))

    def _answer_versions(self, view: memoryview, header: RequestHeader) -> bytes:
        if not header.served:
            return encode_unsupported_api_versions(header.correlation_id)
        request = decode_request(header.api_key, header.version, view, header.body_position)
        response = api_versions_of(request, telemetry=self._telemetry)
        if not response.error_code:
            self._software = (request.client_software_name, request.client_software_version)
            self.state = State.HANDSHAKE
        return _encoded(header, response)

    # Tokens

    def _take_authenticate(self, frame: bytes) -> bytes:
        view = memoryview(frame)
        header = parse_request_header(view, 0, len(frame))
        if header.api_key != ApiKey.SASL_AUTHENTICATE:
            return self._refuse_request(header)
        request = decode_request(header.api_key, header.version, view, header.body_position)
        try:
            token, lifetime_ms = self._evaluate(request.auth_bytes)
        except AuthenticationFailed as failed:
            refusal = SaslAuthenticateResponse(
                int(ErrorCode.SASL_AUTHENTICATION_FAILED), failed.message or self._usual_message()
            )
            return _encoded(header, refusal)
        return _encoded(header, SaslAuthenticateResponse(0, "", token, lifetime_ms))

    def _take_token(self, frame: bytes) -> bytes:
        try:
            token, _ = self._evaluate(frame)
        except AuthenticationFailed:
            return b""
        return SIZE.pack(len(token)) + token

    def _refuse_request(self, header: RequestHeader) -> bytes:
        name, illegal = api_name(header.api_key), int(ErrorCode.ILLEGAL_SASL_STATE)
        if header.api_key == ApiKey.API_VERSIONS and header.served:
            refusal: object = ApiVersionsResponse(error_code=illegal)
        elif header.api_key == ApiKey.SASL_HANDSHAKE:
            refusal = SaslHandshakeResponse(illegal)
        else:
            raise MalformedFrame(f"its client sent {name} in place of SaslAuthenticate")
        self._fail(f"its client sent {name} in place of SaslAuthenticate")
        return _encoded(header, refusal)

    def _evaluate(self, token: bytes) -> tuple[bytes, int]:
        """Return the mechanism's token, and how long the session lasts, in milliseconds.

        Raises:
            AuthenticationFailed: the state is FAILED.
            MalformedFrame: the mechanism cannot decide; the connection must be closed at once.
        """
        exchange = self._exchange
        assert exchange is not None
        try:
            reply = exchange.evaluate(token)
            if not exchange.is_complete:
                return reply, 0
        except AuthenticationFailed as failed:
            self._fail(failed.why or failed.message or self._usual_message())
            raise
        except CannotDecide as fault:
            raise MalformedFrame(str(fault)) from None
        before = self._before
        if before is not None and before.principal != exchange.principal:
            self._fail("its client authenticated again as another user")
            raise AuthenticationFailed(
                f"Cannot change principals during re-authentication from {_dotted(before.principal)}: "
                f"{_dotted(exchange.principal)}"
            )
        lifetime_ms, expires_ns = self._lifetime(exchange.expires_at_ms)
        self.result = Authenticated(
            self.mechanism, exchange.principal, expires_ns, *self._software, exchange.by_token
        )
        self.state = State.DONE
        self._exchange = None
        return reply, lifetime_ms

    def _lifetime(self, credential_ends_ms: int | None) -> tuple[int, int | None]:
        """Return how long the session lasts, and its end on the monotonic clock."""
        limits_ms = [self._max_reauth_ms] if self._max_reauth_ms else []
        if credential_ends_ms is not None:
            limits_ms.append(max(credential_ends_ms - self._clock.now_ms(), 0))
        if not limits_ms:
            return 0, None
        lifetime_ms = min(limits_ms)
        return lifetime_ms, self._clock.monotonic_ns() + lifetime_ms * NS_PER_MS

    def _usual_message(self) -> str:
        what = "authentication" if self._before is None else "re-authentication"
        return f"Authentication failed during {what} due to invalid credentials with SASL mechanism {self.mechanism}"

    def _fail(self, why: str) -> None:
        self.state = State.FAILED
        self.why = why
        self.claimed = "" if self._exchange is None else self._exchange.principal
        self._exchange = None


def _encoded(header: RequestHeader, response: object) -> bytes:
    return encode_response(header.api_key, header.version, response, header.correlation_id)


def _dotted(principal: str) -> str:
    return principal.replace(":", ".", 1)


FRAME_SIZE_BYTES: Final = SIZE_BYTES
"""Bytes of the size before a frame."""
