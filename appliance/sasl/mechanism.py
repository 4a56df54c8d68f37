"""What a SASL mechanism is: one object for each authentication, tokens in, tokens out.

    exchange = makers["SCRAM-SHA-256"]()        registry.makers_of
    reply = exchange.evaluate(token)            until `is_complete`, or AuthenticationFailed

An exchange never waits and does no I/O on a network. If it needs an answer that is not there yet, such as keys that
are being fetched, it raises CannotDecide, and the client tries again.

The same part in Java: `javax.security.sasl.SaslServer`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from appliance.errors import ClientFault


class AuthenticationFailed(ClientFault):
    """The client has not proved who it is.

    Args:
        message: for the client, in the answer with SASL_AUTHENTICATION_FAILED. It must not say whether a user exists,
            and must hold nothing secret. None stands for the usual sentence, which names the mechanism only.
        why: for the log, if it may say more.
    """

    def __init__(self, message: str | None = None, *, why: str | None = None) -> None:
        super().__init__(message or "")
        self.message = message
        self.why = why


class CannotDecide(ClientFault):
    """Whether the client is who it claims to be is not known yet.

    The connection is closed without an answer, because a client then tries again. A failed authentication is final for
    clients in Java.
    """


class Exchange(ABC):
    """One authentication of one client.

    Attributes:
        is_complete: whether the client has proved who it is, and no further token is expected.
        principal: `User:alice`; valid when complete. Before, whom the client claims to be, where that is known.
        expires_at_ms: when the client's credential ends, in milliseconds since 1970; None if it does not end. Valid
            when complete.
        by_token: whether that is a delegation token, with which a client may not make others.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self.principal = ""
        self.expires_at_ms: int | None = None
        self.by_token = False

    @abstractmethod
    def evaluate(self, token: bytes) -> bytes:
        """Take the client's token; return the server's next one, which may be empty.

        Raises:
            AuthenticationFailed: the authentication is over. The object must not be used again.
            CannotDecide: the same, but not because of the client.
        """
