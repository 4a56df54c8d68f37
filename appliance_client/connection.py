"""One connection to a broker, without the socket: bytes in, buffers out.

    IDLE ──call──▶ OPENING ──opened──▶ GREETING ──ApiVersions answered──▶ AUTHENTICATING ──▶ READY
      ▲               │                    │                                    │              │
      └───────────────┴────────lost────────┴────────────────────────────────────┴──────────────┘

    IDLE       no socket. A call asks for one, after the reconnect backoff where the last one failed.
    OPENING    the transport opens a socket. Calls wait.
    GREETING   ApiVersions is under way (KIP-511: an unknown version is answered in the body of v0). Calls wait.
    AUTHENTICATING  with SASL only (sasl.py), and again before the session ends. Calls wait.
    READY      calls are sent at once. A broker answers in their order.

A stream gives bytes to `room` and `filled`, and takes `outgoing`. A transport of messages says
`opened(messages=True)`, gives whole answers to `answered`, and takes `next_request`. It may say how large a request
it can carry: the call of a larger one is rejected before it is sent, and nothing else is lost.

`lost` rejects what is in flight and what waits with TransportError; the callers know what to do about it. An answer
that does not come within its time loses the connection, since all later answers would wait behind it.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.api_versions import ApiVersionsRequest, ApiVersionsResponse
from appliance.protocol.errors import ErrorCode
from appliance.protocol.framing import SIZE
from appliance.protocol.messages import decode_response, encode_request
from appliance.protocol.primitives import INT16, INT32, Cursor, skip_tagged_fields
from appliance.protocol.records.batch import Buffer
from appliance_client.errors import (
    AuthenticationError,
    RecordTooLargeError,
    TransportError,
    UnsupportedVersionError,
    error_of,
)
from appliance_client.sasl import Authentication, Provider
from appliance_client.scheduling import Outcome
from appliance_client.spare_memory import SpareMemory

if TYPE_CHECKING:
    from appliance_client.network import Network
    from appliance_client.transport import Link

Make = Callable[[int, int], Sequence[Buffer]]
"""(version, correlation id) to the buffers of a request."""
Read = Callable[[int, memoryview], Any]
"""(version, whole frame) to the answer."""

logger = logging.getLogger("appliance_client")

SMALL_FRAME_BYTES: Final = 64 * 1024
SOFTWARE: Final = ApiVersionsRequest("appliance-client", "0.1.0")
_CHECK_S: Final = 0.5
_BODY_V0: Final = 8


class _Call(NamedTuple):
    api: ApiKey
    version_max: int
    make: Make
    read: Read | None
    timeout_s: float
    outcome: Outcome[Any]


class _InFlight(NamedTuple):
    correlation_id: int
    version: int
    read: Read
    outcome: Outcome[Any]
    due_s: float


class Connection:
    """A connection to one broker. `transport.py` says what its transport does with it."""

    IDLE: Final = 0
    OPENING: Final = 1
    GREETING: Final = 2
    AUTHENTICATING: Final = 3
    READY: Final = 4

    def __init__(self, network: Network, node_id: int) -> None:
        self.node_id = node_id
        self.state = self.IDLE
        self.outgoing: deque[Buffer] = deque()
        self.link: Link | None = None
        """What the transport keeps for this connection; nothing here looks at it."""
        self.versions: dict[int, tuple[int, int]] = {}
        self.throttled_until_s = 0.0
        self.request_bytes_max: int | None = None
        """The largest request that the transport carries, its size in front not counted. None: it does not say."""
        self._limited_by = ""
        self._network = network
        self._options = network.options
        self._scheduler = network.scheduler
        self._correlation_id = 0
        self._in_flight: deque[_InFlight] = deque()
        self._waiting: deque[_Call] = deque()
        self._failures = 0
        self._not_before_s = 0.0
        self._open_asked = False
        self._watched = False
        self._small = bytearray(SMALL_FRAME_BYTES)
        self._small_filled = 0
        self._memory = SpareMemory()
        self._large: memoryview | None = None
        self._large_filled = 0
        self._authentication: Authentication | None = None
        self._requests: deque[tuple[int, bool]] | None = None
        """Of a transport of messages: pieces of each request in `outgoing`, and whether an answer is awaited."""

    @property
    def in_flight(self) -> int:
        """Calls that are sent or wait to be."""
        return len(self._in_flight) + len(self._waiting)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of this broker. Beside TCP: a bootstrap address as it was given, and 0."""
        return self._network.address(self.node_id, self._failures)

    @property
    def failures(self) -> int:
        """How many attempts have failed since the broker was last reached."""
        return self._failures

    @property
    def broker_id(self) -> int:
        """The broker's node id, -1 for any."""
        return max(-1, self._network.broker_of(self.node_id))

    @property
    def setup_timeout_s(self) -> float:
        return self._options.socket_connection_setup_timeout_ms / 1000

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────

    def call(
        self,
        api: ApiKey,
        make: Make,
        read: Read | None,
        *,
        version_max: int,
        timeout_s: float,
    ) -> Outcome[Any]:
        """Send a request, when the connection is ready. Without `read` no answer is awaited (acks=0).

        The outcome is rejected with TransportError, UnsupportedVersionError or MalformedFrame.
        """
        outcome: Outcome[Any] = Outcome()
        call = _Call(api, version_max, make, read, timeout_s, outcome)
        if self.state == self.READY:
            self._send(call)
        else:
            self._waiting.append(call)
            self.open()
        return outcome

    def open(self) -> None:
        """Ask the transport for a socket, after the reconnect backoff."""
        if self.state != self.IDLE or self._open_asked:
            return
        self._open_asked = True
        if self._not_before_s <= self._scheduler.now_s:
            self._ask_to_open()
        else:
            self._scheduler.call_at(self._not_before_s, self._ask_to_open)

    def _ask_to_open(self) -> None:
        self._open_asked = False
        if self.state == self.IDLE and not self._network.closed:
            self.state = self.OPENING
            self._network.to_open.append(self)

    def version_of(self, api: ApiKey, version_max: int) -> int:
        """The highest version that both sides speak.

        Raises:
            UnsupportedVersionError: there is none.
        """
        low, high = self.versions.get(int(api), (0, -1))
        version = min(high, version_max)
        if version < max(low, api.min_version):
            raise UnsupportedVersionError(
                f"{api.title}: the broker speaks versions {low} to {high}, "
                f"this client {api.min_version} to {version_max}"
            )
        return version

    def _send(self, call: _Call) -> None:
        try:
            version = self.version_of(call.api, call.version_max)
            self._write(call, version)
        except Exception as error:
            call.outcome.reject(error)

    def _write(self, call: _Call, version: int) -> None:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        pieces = call.make(version, self._correlation_id)
        if self.request_bytes_max is not None:
            self._check_size(call.api, pieces, self.request_bytes_max)
        self.outgoing.extend(pieces)
        self._network.dirty[self] = None
        if self._requests is not None:
            self._requests.append((len(pieces), call.read is not None))
        if call.read is None:
            if self._requests is None:
                call.outcome.resolve(None)
            else:
                self._probe(call)
            return
        due_s = self._scheduler.now_s + call.timeout_s
        self._in_flight.append(_InFlight(self._correlation_id, version, call.read, call.outcome, due_s))
        self._watch()

    def _check_size(self, api: ApiKey, pieces: Sequence[Buffer], most: int) -> None:
        size = sum(map(len, pieces)) - SIZE.size
        if size > most:
            raise RecordTooLargeError(
                f"{api.title}: a request of {size} bytes; this connection takes {most} ({self._limited_by})"
            )

    def _probe(self, behind: _Call) -> None:
        """Ask something after a request that has no answer; its outcome is there when that is answered, or lost.

        A broker of messages counts such a request until the next answer leaves.
        """
        asked: Outcome[Any] = Outcome()
        asked.when_done(lambda _asked: behind.outcome.resolve(None))
        self._send(_Call(ApiKey.API_VERSIONS, 0, self._hello, _nothing, behind.timeout_s, asked))

    def _watch(self) -> None:
        if not self._watched:
            self._watched = True
            self._scheduler.call_at(self._scheduler.now_s + _CHECK_S, self._check)

    def _check(self) -> None:
        """Lose a connection on which an answer is overdue. One timer for all calls, since most are answered."""
        self._watched = False
        now_s = self._scheduler.now_s
        if any(each.due_s <= now_s for each in self._in_flight):
            self.drop("an answer did not come in time")
        elif self._in_flight:
            self._watch()

    # ── the transport's side ─────────────────────────────────────────────────────────────────────────────

    def opened(
        self, *, messages: bool = False, request_bytes_max: int | None = None, limited_by: str = ""
    ) -> None:
        """The way to the broker is there; with `messages` it keeps requests and answers apart.

        `request_bytes_max`: no larger request can be sent, because of the options `limited_by`.
        """
        self.state = self.GREETING
        self.request_bytes_max = request_bytes_max
        self._limited_by = limited_by
        self._requests = deque() if messages else None
        self._greet(ApiKey.API_VERSIONS.max_version)

    def lost(self, reason: str, kind: type[TransportError] = TransportError) -> None:
        """The socket is gone, or could not be opened. Rejects every call with an error of `kind`."""
        if self.state == self.IDLE:
            return
        if self._authentication is not None:
            self._authentication.end()
            self._authentication = None
        host, port = self.address
        place = f"{host}:{port}" if port else host
        self._log(place, reason)
        self.state = self.IDLE
        self.outgoing.clear()
        self._requests = None
        self._small_filled = 0
        self._large = None
        backoff_ms = min(
            self._options.reconnect_backoff_ms * 2 ** min(self._failures, 20),
            self._options.reconnect_backoff_max_ms,
        )
        self._failures += 1
        self._not_before_s = self._scheduler.now_s + backoff_ms / 1000 * random.uniform(0.8, 1.2)
        told = [each.outcome for each in self._in_flight] + [each.outcome for each in self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        for outcome in told:
            outcome.reject(kind(f"{place}: {reason}"))
        self._network.on_change()

    def _log(self, place: str, reason: str) -> None:
        """Say why a broker cannot be reached: a consumer's poll gives nothing then, and never an error.

        The first time, then after 2, 4, 8 and so on failures.
        """
        tries = self._failures + 1
        if self.state != self.READY and not self._network.closed and tries & self._failures == 0:
            logger.warning("broker %s: no connection (attempt %d): %s", place, tries, reason)

    def drop(self, reason: str) -> None:
        """Have the transport close the socket; for everybody else the connection is lost at once."""
        self._network.to_close.append(self)
        self.lost(reason)

    def refuse(self, error: AuthenticationError) -> None:
        """The broker, or the client itself, does not take the other one for who it claims to be."""
        self._network.to_close.append(self)
        self.lost(str(error), AuthenticationError)

    def next_request(self) -> tuple[list[Buffer], bool] | None:
        """The next request to send, and whether it will be answered; None where there is none.

        For transports of messages only. The first piece begins with the 4 bytes of the request's size.
        """
        if not self._requests:
            return None
        pieces, is_answered = self._requests.popleft()
        return [self.outgoing.popleft() for _ in range(pieces)], is_answered

    def answered(self, frame: memoryview) -> None:
        """A whole answer is there, its 4 bytes of size in front. Views of the frame may be held: it must not change."""
        self._take(frame)

    def room(self) -> memoryview:
        """Where the next bytes go. Never empty."""
        if self._large is not None:
            return self._large[self._large_filled :]
        return memoryview(self._small)[self._small_filled :]

    def filled(self, length_bytes: int) -> None:
        """So many bytes were put into `room`."""
        if self._large is not None:
            self._large_filled += length_bytes
            if self._large_filled == len(self._large):
                frame, self._large = self._large, None
                self._take(frame)
            return
        self._small_filled += length_bytes
        at = 0
        small = self._small
        while self._small_filled - at >= 4:
            size = 4 + SIZE.unpack_from(small, at)[0]
            if not 8 <= size <= self._options.receive_message_max_bytes:
                self.drop(
                    f"a frame of {size - 4} bytes; this is not a Kafka broker, or the answer is too large"
                )
                return
            if at + size > self._small_filled:
                if size > SMALL_FRAME_BYTES:
                    self._large = self._memory.take(size)
                    self._large_filled = self._small_filled - at
                    self._large[: self._large_filled] = small[at : self._small_filled]
                    self._small_filled = 0
                    return
                break
            # A copy: what is read from an answer may be views of its frame, and this room is used again.
            self._take(memoryview(bytes(small[at : at + size])))
            if self.state == self.IDLE:
                return
            at += size
        if at:
            rest = small[at : self._small_filled]
            self._small_filled = len(rest)
            small[: len(rest)] = rest

    def _take(self, frame: memoryview) -> None:
        if not self._in_flight or INT32.unpack_from(frame, 4)[0] != self._in_flight[0].correlation_id:
            self.drop("an answer that nothing asked for")
            return
        asked = self._in_flight.popleft()
        try:
            answer = asked.read(asked.version, frame)
        except Exception as error:  # whatever a peer sends, it must not end the thread
            asked.outcome.reject(TransportError(f"an answer that does not parse: {error}"))
            self.drop("an answer that does not parse")
        else:
            asked.outcome.resolve(answer)

    # ── greeting ─────────────────────────────────────────────────────────────────────────────────────────

    def _greet(self, version: int) -> None:
        outcome: Outcome[Any] = Outcome()
        call = _Call(
            ApiKey.API_VERSIONS,
            version,
            self._hello,
            _read_versions,
            self._options.request_timeout_ms / 1000,
            outcome,
        )
        self._write(call, version)
        outcome.when_done(self._greeted)

    def _hello(self, version: int, correlation_id: int) -> Sequence[Buffer]:
        client_id = self._options.client_id
        return (encode_request(ApiKey.API_VERSIONS, version, SOFTWARE, correlation_id, client_id=client_id),)

    def _greeted(self, outcome: Outcome[ApiVersionsResponse]) -> None:
        if outcome.error is not None:
            return  # the connection is lost, and `lost` has rejected every call that waited
        answer = outcome.result()
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION and int(ApiKey.API_VERSIONS) in self.versions:
            self._greet(min(self.versions[int(ApiKey.API_VERSIONS)][1], 3))
            return
        if answer.error_code:
            self.drop(str(error_of(answer.error_code)))
            return
        self._network.learn_features(answer)
        if self._options.login is None:
            self._ready()
        else:
            self._authenticate()

    def _ready(self) -> None:
        self.state = self.READY
        self._failures = 0
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            self._send(call)
        self._network.on_change()

    # ── authentication ───────────────────────────────────────────────────────────────────────────────────

    def _authenticate(self) -> None:
        login = self._options.login
        assert login is not None
        self.state = self.AUTHENTICATING
        under_way = self._authentication = Authentication(self, login, self._authenticated)

        def overdue() -> None:
            if self.state == self.AUTHENTICATING and self._authentication is under_way:
                self.drop("the authentication was not finished in time")

        self._scheduler.call_at(self._scheduler.now_s + self._options.request_timeout_ms / 1000, overdue)
        under_way.begin()

    def _authenticated(self) -> None:
        self._ready()

    def ask_while_authenticating(self, api: ApiKey, body: Any, *, version_max: int) -> Outcome[Any]:
        """Send a request of the authentication, which other calls wait for.

        Raises:
            UnsupportedVersionError: the broker does not speak it.
        """
        version = self.version_of(api, version_max)
        client_id = self._options.client_id
        outcome: Outcome[Any] = Outcome()
        call = _Call(
            api,
            version,
            lambda version, number: (encode_request(api, version, body, number, client_id=client_id),),
            lambda version, frame: decode_response(api, version, frame)[1],
            self._options.request_timeout_ms / 1000,
            outcome,
        )
        self._write(call, version)
        return outcome

    def token_of(self, provider: Provider) -> Outcome[Any]:
        """Ask the application for a token."""
        outcome: Outcome[Any] = Outcome()
        self._network.run_aside(provider, outcome)
        return outcome

    def authenticate_again_in(self, seconds: float) -> None:
        """Authenticate again after so long, if this session still is there (KIP-368)."""
        session = self._authentication

        def again() -> None:
            if self.state == self.READY and self._authentication is session:
                self._authenticate()

        self._scheduler.call_at(self._scheduler.now_s + seconds, again)


def _nothing(_version: int, _frame: memoryview) -> None:
    """The answer is of no use."""


def _read_versions(version: int, frame: memoryview) -> ApiVersionsResponse:
    refused = INT16.unpack_from(frame, _BODY_V0)[0] == ErrorCode.UNSUPPORTED_VERSION
    answer: ApiVersionsResponse = decode_response(ApiKey.API_VERSIONS, 0 if refused else version, frame)[1]
    return answer


def body_cursor(api: ApiKey, version: int, frame: memoryview) -> Cursor:
    """A cursor at the body of a response."""
    cursor = Cursor(frame, 8, len(frame))
    if api.response_header_version(version) == 1:
        cursor.position = skip_tagged_fields(frame, cursor.position, cursor.end)
    return cursor
