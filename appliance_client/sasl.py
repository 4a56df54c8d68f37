"""SASL over TCP: what the options say, and the conversation of one connection.

| option | of librdkafka, of kafka-python | means |
|---|---|---|
| `security_protocol` | `security.protocol` | `SASL_PLAINTEXT` or `SASL_SSL` |
| `sasl_mechanism` | `sasl.mechanism`, `sasl.mechanisms` | `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER` |
| `sasl_username`, `sasl_password` | the same, `sasl_plain_username`, … | of PLAIN and SCRAM |
| `sasl_token_auth` | `tokenauth` of Kafka's login module | user and password are id and HMAC of a delegation token |
| `sasl_oauth_token_provider` | `oauth_cb`, the same | a callable, or an object with `token()`, that returns a token |

    GREETING ──ApiVersions answered──▶ AUTHENTICATING ──SaslHandshake, SaslAuthenticate …──▶ READY
                                            ▲                                                 │
                                            └──── 85 to 95 % of the session's lifetime ───────┘   (KIP-368)

While a connection authenticates its calls wait. So it is when it authenticates again: what was sent before is answered
before. A broker that refuses is an AuthenticationError for all calls that wait, and the connection is closed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from appliance.protocol.apis.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from appliance.protocol.sasl_client import (
    CLIENT_MECHANISMS,
    OAUTHBEARER,
    SCRAM_DIGESTS,
    ClientExchange,
    OAuthBearerClient,
    SaslFault,
    password_exchange,
)
from appliance_client.errors import AuthenticationError, OptionError, error_of
from appliance_client.scheduling import Outcome
from appliance_client.tls import SASL_PLAINTEXT, SASL_SSL

if TYPE_CHECKING:
    from appliance_client.connection import Connection
    from appliance_client.options import ConnectionOptions

SASL_PROTOCOLS: Final = (SASL_PLAINTEXT, SASL_SSL)
SASL_ALIASES: Final = {
    "sasl_mechanisms": "sasl_mechanism",
    "sasl_plain_username": "sasl_username",
    "sasl_plain_password": "sasl_password",
    "oauth_cb": "sasl_oauth_token_provider",
}
"""Names of other clients, with underscores → the options of this client."""
_OF_SASL: Final = ("sasl_mechanism", "sasl_username", "sasl_password", "sasl_oauth_token_provider")
_EARLIEST: Final = 0.85
_LATEST: Final = 0.95
ROUNDS_MAX: Final = 10
"""Tokens of one authentication. No mechanism needs more than three."""

Provider = Callable[[], Any]
"""Returns the token, or something that can be awaited and gives it; with asyncio only."""


class Login(NamedTuple):
    """How a client authenticates. `provider` is set with OAUTHBEARER only."""

    mechanism: str
    user: str
    password: str
    by_token: bool
    provider: Provider | None

    def __repr__(self) -> str:
        return f"Login({self.mechanism!r}, {self.user!r})"

    def exchange(self) -> ClientExchange:
        """Return one authentication with user and password."""
        return password_exchange(self.mechanism, self.user, self.password, by_token=self.by_token)


def login_of(options: ConnectionOptions) -> Login | None:
    """Return how the options say that the client authenticates; None without SASL.

    Raises:
        OptionError: they contradict each other, or something is missing.
    """
    if options.security_protocol.upper() not in SASL_PROTOCOLS:
        if given := [name for name in _OF_SASL if getattr(options, name) is not None]:
            raise OptionError(f"{given[0]} needs security.protocol={SASL_SSL} or {SASL_PLAINTEXT}")
        return None
    mechanism = (options.sasl_mechanism or "").upper()
    if mechanism not in CLIENT_MECHANISMS:
        raise OptionError(f"sasl.mechanism is {options.sasl_mechanism!r}: {', '.join(CLIENT_MECHANISMS)}")
    if options.sasl_token_auth and mechanism not in SCRAM_DIGESTS:
        raise OptionError("sasl.token.auth needs a mechanism of SCRAM")
    if mechanism == OAUTHBEARER:
        if options.sasl_username is not None or options.sasl_password is not None:
            raise OptionError("sasl.username and sasl.password are not for OAUTHBEARER")
        return Login(mechanism, "", "", by_token=False, provider=_provider(options.sasl_oauth_token_provider))
    if options.sasl_oauth_token_provider is not None:
        raise OptionError("sasl.oauth.token.provider needs sasl.mechanism=OAUTHBEARER")
    user, password = options.sasl_username, options.sasl_password
    if not user or not password:
        raise OptionError(f"sasl.mechanism={mechanism} needs sasl.username and sasl.password")
    if "\0" in user or "\0" in password:
        raise OptionError("sasl.username and sasl.password must not contain a NUL")
    return Login(mechanism, user, password, by_token=options.sasl_token_auth, provider=None)


def _provider(given: Any) -> Provider:
    found = getattr(given, "token", given)
    if not callable(found):
        raise OptionError(
            "sasl.mechanism=OAUTHBEARER needs sasl.oauth.token.provider: a callable that returns a token"
        )
    return found  # type: ignore[no-any-return]  # what it returns is checked when it is called


def checked_token(given: Any) -> str:
    """Return what a provider gave, if it is a token that can be sent.

    Raises:
        AuthenticationError: it is none. Its text is not repeated.
    """
    # confluent-kafka's callbacks return the token and its end.
    token = given[0] if isinstance(given, tuple) and given else given
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        raise AuthenticationError("sasl.oauth.token.provider did not return a token as a text")
    return token


class Authentication:
    """The conversation of one connection, the first one or another one."""

    def __init__(self, connection: Connection, login: Login, done: Callable[[], None]) -> None:
        self._connection = connection
        self._login = login
        self._done = done
        self._exchange: ClientExchange | None = None
        self._rounds = 0
        self._ended = False

    def begin(self) -> None:
        """Name the mechanism; what follows comes with the broker's answers."""
        self._asked(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(self._login.mechanism), self._shaken_hands)

    def end(self) -> None:
        """The connection is lost: what still comes is for nobody."""
        self._ended = True

    def _asked(self, api: ApiKey, version_max: int, body: Any, then: Callable[[Any], None]) -> None:
        def answered(outcome: Outcome[Any]) -> None:
            if self._ended or outcome.error is not None:
                return  # the connection is lost
            try:
                then(outcome.result())
            except SaslFault as fault:
                self._refused(str(fault))
            except AuthenticationError as error:
                self._connection.refuse(error)

        try:
            outcome = self._connection.ask_while_authenticating(api, body, version_max=version_max)
        except Exception as error:  # a broker without SASL speaks no version of these
            self._refused(str(error))
            return
        outcome.when_done(answered)

    def _shaken_hands(self, answer: SaslHandshakeResponse) -> None:
        if answer.error_code:
            known = ", ".join(answer.mechanisms) or "none"
            self._refused(f"the broker does not take the mechanism {self._login.mechanism}; it takes {known}")
            return
        if self._login.provider is None:
            self._first(self._login.exchange())
            return

        def got(token: Outcome[Any]) -> None:
            if self._ended:
                return
            try:
                self._first(OAuthBearerClient(checked_token(token.result())))
            except AuthenticationError as error:
                self._connection.refuse(error)
            except Exception as error:  # whatever the application's callable raised
                self._refused(f"sasl.oauth.token.provider failed: {error!r}")

        self._connection.token_of(self._login.provider).when_done(got)

    def _first(self, exchange: ClientExchange) -> None:
        self._exchange = exchange
        self._send(exchange.first())

    def _send(self, token: bytes) -> None:
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            raise SaslFault("the broker does not come to an end with the authentication")
        self._asked(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(token), self._answered)

    def _answered(self, answer: SaslAuthenticateResponse) -> None:
        if answer.error_code:
            self._refused(answer.error_message or str(error_of(answer.error_code)))
            return
        assert self._exchange is not None
        token = self._exchange.answer(answer.auth_bytes)
        if token is not None:
            self._send(token)
            return
        self._ended = True
        if answer.session_lifetime_ms > 0:
            part = random.uniform(_EARLIEST, _LATEST)
            self._connection.authenticate_again_in(answer.session_lifetime_ms / 1000 * part)
        self._done()

    def _refused(self, why: str) -> None:
        self._connection.refuse(AuthenticationError(why))
