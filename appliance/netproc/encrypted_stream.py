"""What an encrypted connection has in place of a socket, as `connection` and `outlet` see it: `tls_stream.TlsStream`.

The class is here and not in `connection`, which `tls_stream` imports. It is not compiled: compiled code would demand
that a stream derives from it.
"""

from __future__ import annotations

from typing import Any, Protocol


class EncryptedStream(Protocol):
    """A stream that encrypts."""

    @property
    def has_more(self) -> bool:
        """Whether decrypted bytes wait that epoll does not know of."""

    def flush(self, connection: Any) -> int:
        """Send what the socket takes of the connection's answers; return how many bytes left."""
