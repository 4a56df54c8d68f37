"""An identity provider for a test: keys, tokens, and a server on this host that serves its key set."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

PrivateKey = (
    rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey
)
ISSUER: Final = "https://identity.example"


def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


class SigningKey:
    """A key of the identity provider. `members`: what its JSON Web Key has beside its numbers."""

    def __init__(self, key_id: str | None, private: PrivateKey | None = None, **members: Any) -> None:
        self.key_id = key_id
        self.private: PrivateKey = rsa_key() if private is None else private
        self._members = members

    @property
    def members(self) -> dict[str, Any]:
        """The public key as a JSON Web Key."""
        public = self.private.public_key()
        if isinstance(public, rsa.RSAPublicKey):
            found = RSAAlgorithm.to_jwk(public, as_dict=True)
        elif isinstance(public, ec.EllipticCurvePublicKey):
            found = ECAlgorithm.to_jwk(public, as_dict=True)
        else:
            found = OKPAlgorithm.to_jwk(public, as_dict=True)
        found.pop("key_ops", None)
        named = {} if self.key_id is None else {"kid": self.key_id}
        return {**found, **named, **self._members}

    def token(
        self,
        claims: Mapping[str, Any] | None = None,
        *,
        algorithm: str = "RS256",
        header: Mapping[str, Any] | None = None,
        **changed: Any,
    ) -> str:
        """Sign a token. A claim or a header that is None is left out.

        Args:
            claims: all of its claims; without it those of a good token, and `changed` ones.
        """
        said = {"kid": self.key_id, **(header or {})}
        named = good_claims(**changed) if claims is None else dict(claims)
        headers = {name: value for name, value in said.items() if value is not None}
        # Not jwt.encode, which refuses to sign claims that make no sense.
        return jwt.PyJWS().encode(json.dumps(named).encode(), self.private, algorithm, headers)

    def sign(self, header: bytes, claims: bytes) -> str:
        """Sign these bytes with RS256, whatever they are."""
        signed = b".".join(jwt.utils.base64url_encode(part) for part in (header, claims))
        signature = jwt.get_algorithm_by_name("RS256").sign(signed, self.private)
        return b".".join((signed, jwt.utils.base64url_encode(signature))).decode()


def good_claims(now_s: int | None = None, **changed: Any) -> dict[str, Any]:
    """Return the claims of a good token, without those that are changed to None."""
    now_s = int(time.time()) if now_s is None else now_s
    claims = {"sub": "alice", "iss": ISSUER, "iat": now_s, "exp": now_s + 3600, **changed}
    return {name: value for name, value in claims.items() if value is not None}


def key_set(*keys: SigningKey | Mapping[str, Any]) -> bytes:
    """Return the key set as a document."""
    members = [key.members if isinstance(key, SigningKey) else dict(key) for key in keys]
    return json.dumps({"keys": members}).encode()


class IdentityProvider:
    """Serves a document at `url` until it is closed. What it answers can be changed at any time.

    Args:
        document: the key set.
        context: for https; without it plain http.
        port: 0 for any.
    """

    def __init__(self, document: bytes, *, context: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.document = document
        self.status = 200
        self.headers: dict[str, str] = {}
        self.answer: Callable[[BaseHTTPRequestHandler], None] | None = None
        """Answers in place of the document, if it is set."""
        self.requests: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.requests.append(self.path)
                if outer.answer is not None:
                    outer.answer(self)
                    return
                self.send_response(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(outer.document)))
                self.end_headers()
                self.wfile.write(outer.document)

            def do_POST(self) -> None:
                """The token endpoint: any client gets a token."""
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                outer.requests.append(self.path)
                assert outer.issue is not None
                body = json.dumps(
                    {"access_token": outer.issue(), "token_type": "Bearer", "expires_in": 3600}
                ).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.issue: Callable[[], str] | None = None
        """Makes the tokens of the token endpoint."""
        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://localhost:{self.port}/keys"
        self.token_url = f"{scheme}://localhost:{self.port}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> IdentityProvider:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
