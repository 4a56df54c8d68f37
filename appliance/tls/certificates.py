"""TLS contexts from PEM files, made again when the files change.

`Certificates.context` looks at the files at most once a second, when a connection comes. A new pair of files that is
half written does not fit together: it is refused, the last context stays, and the next change is tried again.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import Final

from appliance.clock import Clock
from appliance.config.sections.tls import (
    CLIENT_AUTH_NONE,
    CLIENT_AUTH_REQUIRED,
    TLS_1_2,
    TLS_1_3,
    TlsSettings,
)
from appliance.errors import OperatorFault

LOOK_INTERVAL_NS: Final = 1_000_000_000
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secret and authenticated. TLS 1.3 has no others."""

_Stamp = tuple[int, int, int, int]


class Certificates:
    """The context for new connections.

    Args:
        settings: which files.
        complain: writes a line for the operator.
    """

    __slots__ = ("_clock", "_complain", "_context", "_look_ns", "_settings", "_stamps")

    def __init__(self, settings: TlsSettings, clock: Clock, complain: Callable[[str], None]) -> None:
        self._settings = settings
        self._clock = clock
        self._complain = complain
        self._look_ns = clock.monotonic_ns() + LOOK_INTERVAL_NS
        self._stamps = _stamps(settings)
        self._context: ssl.SSLContext | None = None
        try:
            self._context = server_context(settings)
        except OperatorFault as fault:
            self._complain(f"no TLS handshake succeeds: {fault}")

    def context(self) -> ssl.SSLContext | None:
        """Return the context of now; None where the files were never good in the life of this process."""
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_INTERVAL_NS
            self._look()
        return self._context

    def _look(self) -> None:
        stamps = _stamps(self._settings)
        if stamps == self._stamps:
            return
        # Before the files are read: what changes meanwhile is another change.
        self._stamps = stamps
        try:
            self._context = server_context(self._settings)
        except OperatorFault as fault:
            kept = (
                "the certificate from before stays in use" if self._context else "no TLS handshake succeeds"
            )
            self._complain(f"the TLS files have changed and cannot be used; {kept}: {fault}")
        else:
            self._complain("the TLS files have changed; new connections use them")


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return a context for connections of clients.

    Raises:
        OperatorFault: a file cannot be read or used; the text names its option and path.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    protocols = settings.enabled_protocols
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if TLS_1_2 in protocols else ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3 if TLS_1_3 in protocols else ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_TICKET
    context.num_tickets = 0  # two records of each connection that no client of Kafka uses
    context.set_ciphers(CIPHERS)
    if settings.keystore_location is not None:
        _load_chain(context, "ssl.keystore.location", settings.keystore_location, settings.keystore_location)
    else:
        assert settings.certificate_file is not None
        assert settings.key_file is not None
        _load_chain(context, "ssl.certificate.file", settings.certificate_file, settings.key_file)
    if settings.client_auth != CLIENT_AUTH_NONE:
        assert settings.truststore_location is not None
        _load_authorities(context, settings.truststore_location)
        is_required = settings.client_auth == CLIENT_AUTH_REQUIRED
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return context


def _load_chain(context: ssl.SSLContext, option: str, certificate: str, key: str) -> None:
    def refuse_encrypted() -> str:
        raise OperatorFault(f"{option}: the private key in {key} is encrypted: store it without a password")

    for path in (certificate, key):
        _check_readable(option, path)
    try:
        context.load_cert_chain(certificate, key, password=refuse_encrypted)
    except ssl.SSLError as error:
        named = certificate if certificate == key else f"{certificate} and {key}"
        raise OperatorFault(f"{option}: {named}: {_reason(error)}") from None
    except OSError as error:
        raise OperatorFault(f"{option}: {certificate}: {error.strerror}") from None


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    option = "ssl.truststore.location"
    _check_readable(option, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise OperatorFault(f"{option}: {path}: {_reason(error)}") from None
    except OSError as error:
        raise OperatorFault(f"{option}: {path}: {error.strerror}") from None


def _check_readable(option: str, path: str) -> None:
    """Open a file once, so that an error names it."""
    try:
        with open(path, "rb") as file:
            head = file.read(4)
    except OSError as error:
        raise OperatorFault(f"{option}: {path}: {error.strerror}") from None
    if head[:2] in {b"\xfe\xed", b"\x30\x82"}:
        raise OperatorFault(f"{option}: {path}: this is a Java or PKCS#12 key store; PEM is needed")


def _reason(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the private key does not belong to the certificate"
    if error.reason is None or error.reason in {"PEM_LIB", "NO_START_LINE"}:
        return "this is no PEM file with a certificate and a private key"
    return error.reason.lower().replace("_", " ")


def _stamps(settings: TlsSettings) -> tuple[_Stamp | None, ...]:
    """Return what changes when one of the files does."""
    return tuple(
        _stamp(path)
        for path in (
            settings.keystore_location,
            settings.certificate_file,
            settings.key_file,
            settings.truststore_location,
        )
        if path is not None
    )


def _stamp(path: str) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
