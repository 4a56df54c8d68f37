"""One request for the keys of the identity provider, bounded in size and time.

It follows no redirect, uses no proxy and sends no credential: the operator named one address, and only this one is
asked. What it returns is not looked at here.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import stat
import threading
from contextlib import suppress
from typing import Final

from appliance.config.sections.oauthbearer import OAuthBearerSettings
from appliance.errors import HostFault
from appliance.sasl.key_set import DOCUMENT_BYTES_MAX
from appliance.version import VERSION

STEP_TIMEOUT_S: Final = 5.0
"""For each step of the network: one address tried, one piece received. `Fetch.abort` bounds all of them together."""

_TEXT_MAX: Final = 200


class EndpointFault(HostFault):
    """The keys could not be fetched; the text says why."""


class Fetch:
    """One request, to be run in a thread of its own; another thread may abort it.

    Args:
        settings: whom to ask.
    """

    def __init__(self, settings: OAuthBearerSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_aborted = False

    def run(self) -> bytes:
        """Return the document, at most DOCUMENT_BYTES_MAX bytes.

        Raises:
            EndpointFault: there is none.
        """
        try:
            path = self._settings.file
            return self._ask() if path is None else _read(path)
        except EndpointFault:
            raise
        except ssl.SSLCertVerificationError as error:
            raise EndpointFault(f"its certificate is refused: {error.verify_message}") from None
        except TimeoutError:
            raise EndpointFault("it does not answer in time") from None
        except ssl.SSLError as error:
            if self._is_aborted:
                raise EndpointFault("it does not answer in time") from None
            reason = (error.reason or "it closed the connection").lower().replace("_", " ")
            raise EndpointFault(f"TLS failed: {reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            if self._is_aborted:
                raise EndpointFault("it does not answer in time") from None
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise EndpointFault(str(reason)[:_TEXT_MAX]) from None

    def abort(self) -> None:
        """End the request, if it is under way: what it waits for fails at once."""
        with self._lock:
            self._is_aborted = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _ask(self) -> bytes:
        parts = self._settings.endpoint
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        # Connected here, so that `abort` has the socket below TLS from its first byte on.
        sock = socket.create_connection((host, port), STEP_TIMEOUT_S)
        connection = http.client.HTTPConnection(host, port)
        try:
            with self._lock:
                # A duplicate: TLS detaches the descriptor of the first.
                self._socket = sock.dup()
                if self._is_aborted:
                    raise EndpointFault("it does not answer in time")
            if parts.scheme == "https":
                sock = client_context(self._settings).wrap_socket(sock, server_hostname=host)
            connection.sock = sock
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request(
                "GET",
                target,
                headers={
                    "Accept": "application/jwk-set+json, application/json",
                    "User-Agent": f"appliance/{VERSION}",
                    "Connection": "close",
                },
            )
            return _document(connection.getresponse())
        finally:
            connection.close()
            sock.close()
            with self._lock:
                if self._socket is not None:
                    self._socket.close()
                    self._socket = None


def client_context(settings: OAuthBearerSettings) -> ssl.SSLContext:
    """Return a context for the connection to the identity provider. The file of authorities is read each time.

    Raises:
        EndpointFault: the file cannot be used; the text names the option.
    """
    authorities = settings.jwks_truststore_location
    try:
        return ssl.create_default_context(cafile=authorities)
    except ssl.SSLError:
        reason = "it is no PEM file with certificates"
    except OSError as error:
        reason = error.strerror or str(error)
    raise EndpointFault(f"sasl.oauthbearer.jwks.endpoint.truststore.location: {authorities}: {reason}")


def _document(response: http.client.HTTPResponse) -> bytes:
    if 300 <= response.status < 400:
        target = (response.getheader("Location") or "")[:_TEXT_MAX]
        raise EndpointFault(
            f"it answers with a redirect to {target!r}, which is not followed: set the option to the right URL"
        )
    if response.status != http.HTTPStatus.OK:
        raise EndpointFault(f"it answers with the status {response.status}")
    document = response.read(DOCUMENT_BYTES_MAX + 1)
    if len(document) > DOCUMENT_BYTES_MAX:
        raise EndpointFault(f"it answers with more than {DOCUMENT_BYTES_MAX} bytes")
    if response.length:
        raise EndpointFault("its answer ends too early")
    return document


def _read(path: str) -> bytes:
    # A pipe without a writer would block an open, and a device has no end.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise EndpointFault("it is no regular file")
        if found.st_uid not in {0, os.geteuid()} or found.st_mode & stat.S_IWOTH:
            # As with log directories (control/supervisor/permissions.py).
            raise EndpointFault(
                "another user can change it, and then log in as anybody: see its owner and mode"
            )
        document = file.read(DOCUMENT_BYTES_MAX + 1)
    if len(document) > DOCUMENT_BYTES_MAX:
        raise EndpointFault(f"it has more than {DOCUMENT_BYTES_MAX} bytes")
    return document
