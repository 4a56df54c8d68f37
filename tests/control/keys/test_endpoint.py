"""One request for the keys: what may come back, and how long it may take."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final

import pytest

from appliance.config.sections.oauthbearer import OAuthBearerSettings
from appliance.control.keys.endpoint import EndpointFault, Fetch
from appliance.sasl.key_set import DOCUMENT_BYTES_MAX
from tests.support.another_user import NOBODY
from tests.support.identity_provider import IdentityProvider
from tests.support.pki import Authority

DOCUMENT: Final = b'{"keys":[]}'


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider(DOCUMENT) as served:
        yield served


def fetched(url: str, authorities: Path | None = None) -> bytes:
    told = None if authorities is None else str(authorities)
    return Fetch(OAuthBearerSettings(jwks_url=url, jwks_truststore_location=told)).run()


def test_a_document_comes_over_http(provider: IdentityProvider) -> None:
    assert fetched(provider.url + "?tenant=a%20b") == DOCUMENT
    assert provider.requests == ["/keys?tenant=a%20b"]


def test_a_document_comes_over_https_from_a_server_with_the_right_certificate_only(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "pki"), Authority(tmp_path / "other")
    server = authority.server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    with IdentityProvider(DOCUMENT, context=context) as served:
        assert fetched(served.url, authority.certificate) == DOCUMENT
        for authorities in (other.certificate, None):
            with pytest.raises(EndpointFault, match="certificate is refused"):
                fetched(served.url, authorities)
        assert served.requests == ["/keys"]
        with pytest.raises(EndpointFault, match=r"truststore.location: .*no PEM file"):
            fetched(served.url, server.key)
        with pytest.raises(EndpointFault, match=r"truststore.location: .*No such file"):
            fetched(served.url, tmp_path / "missing.pem")


def test_the_certificate_must_name_the_host(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    server = authority.issue("other", "/CN=localhost", extension="subjectAltName=DNS:other.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    with IdentityProvider(DOCUMENT, context=context) as served:
        with pytest.raises(EndpointFault, match=r"certificate is refused: Hostname mismatch"):
            fetched(served.url, authority.certificate)
        assert served.requests == []


def test_plain_http_on_a_port_with_tls_is_a_failure(tmp_path: Path) -> None:
    server = Authority(tmp_path / "pki").server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    with IdentityProvider(DOCUMENT, context=context) as served, pytest.raises(EndpointFault):
        fetched(served.url.replace("https", "http"))


@pytest.mark.parametrize("status", [204, 400, 401, 404, 500, 503])
def test_another_status_is_a_failure(provider: IdentityProvider, status: int) -> None:
    provider.status = status
    with pytest.raises(EndpointFault, match=f"status {status}"):
        fetched(provider.url)


@pytest.mark.parametrize("target", ["file:///etc/passwd", "http://169.254.169.254/latest", "/elsewhere", ""])
def test_a_redirect_is_not_followed(provider: IdentityProvider, target: str) -> None:
    provider.status = 302
    provider.headers = {"Location": target}
    with pytest.raises(EndpointFault, match="redirect"):
        fetched(provider.url)
    assert provider.requests == ["/keys"]


def test_no_proxy_of_the_environment_is_used(
    provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert fetched(provider.url) == DOCUMENT


def test_a_document_without_an_end_is_a_failure(provider: IdentityProvider) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True
        try:
            while True:
                handler.wfile.write(b"x" * 65536)
        except OSError:
            pass

    provider.answer = endless
    with pytest.raises(EndpointFault, match=f"more than {DOCUMENT_BYTES_MAX} bytes"):
        fetched(provider.url)


def test_an_answer_that_is_no_http_is_a_failure() -> None:
    for said in (
        b"garbage\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",
        b"\x16\x03\x01",
    ):
        with Served(said) as url, pytest.raises(EndpointFault):
            fetched(url)


def test_headers_without_an_end_are_a_failure() -> None:
    with Served(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000) as url, pytest.raises(EndpointFault):
        fetched(url)


def test_nobody_listening_and_no_such_host_are_failures() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(EndpointFault, match="refused"):
        fetched(f"http://127.0.0.1:{port}/keys")
    with pytest.raises(EndpointFault):
        Fetch(OAuthBearerSettings(jwks_url="https://no.such.host.invalid/keys")).run()


@pytest.mark.parametrize("is_dribbling", [False, True])
def test_an_abort_ends_a_request_at_once(is_dribbling: bool) -> None:
    """The server sends nothing, or one byte of a header again and again, so that no single read takes long."""
    with Served(b"H", dribble=is_dribbling) as url:
        fetch = Fetch(OAuthBearerSettings(jwks_url=url))
        failures: list[str] = []

        def run() -> None:
            try:
                fetch.run()
            except EndpointFault as fault:
                failures.append(str(fault))

        thread = threading.Thread(target=run)
        began = time.monotonic()
        thread.start()
        time.sleep(0.3)
        fetch.abort()
        thread.join(3.0)
        assert not thread.is_alive()
        assert time.monotonic() - began < 3.0
        assert failures == ["it does not answer in time"]


def test_a_fetch_that_was_aborted_before_it_had_connected_ends() -> None:
    with Served(b"", dribble=True) as url:
        fetch = Fetch(OAuthBearerSettings(jwks_url=url))
        fetch.abort()
        with pytest.raises(EndpointFault, match="in time"):
            fetch.run()


def test_a_document_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a key set.json"
    path.write_bytes(DOCUMENT)
    assert fetched(f"file://{tmp_path}/a%20key%20set.json") == DOCUMENT


def test_what_is_no_readable_file_is_a_failure(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    large = tmp_path / "large"
    large.write_bytes(b" " * (DOCUMENT_BYTES_MAX + 1))
    for path, why in (
        (tmp_path / "missing", "No such file"),
        (tmp_path, "directory"),
        (pipe, "no regular file"),
        (Path("/dev/zero"), "no regular file"),
        (large, "more than"),
    ):
        with pytest.raises(EndpointFault, match=why):
            fetched(f"file://{path}")


def test_a_file_that_another_user_can_change_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(DOCUMENT)
    for mode in (0o600, 0o644, 0o664, 0o444):
        path.chmod(mode)
        assert fetched(f"file://{path}") == DOCUMENT
    path.chmod(0o644)
    if os.geteuid() == 0:  # nobody else can give a file away
        os.chown(path, NOBODY, 0)
        with pytest.raises(EndpointFault, match="another user can change it"):
            fetched(f"file://{path}")
        os.chown(path, 0, 0)
    path.chmod(0o646)
    with pytest.raises(EndpointFault, match="another user can change it"):
        fetched(f"file://{path}")


class Served:
    """A server that answers one connection with these bytes; with `dribble`, with the first one again and again."""

    def __init__(self, said: bytes, *, dribble: bool = False) -> None:
        self._said = said
        self._dribble = dribble
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._is_over = threading.Event()

    def _serve(self) -> None:
        try:
            connection, _ = self._server.accept()
            with connection:
                connection.settimeout(5)
                connection.recv(4096)
                if self._said[:1] == b"H" and len(self._said) == 1:
                    while not self._is_over.wait(0.05):
                        if self._dribble:
                            connection.sendall(self._said)
                else:
                    connection.sendall(self._said)
        except OSError:
            pass

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.getsockname()[1]}/keys"

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._server.close()
