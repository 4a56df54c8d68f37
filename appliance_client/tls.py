"""TLS over TCP: the context that the options describe.

| option | of librdkafka | means |
|---|---|---|
| `security_protocol` | `security.protocol` | `SSL`, or `SASL_SSL` with a login besides (sasl.py) |
| `ssl_cafile` | `ssl.ca.location` | authorities that sign brokers; without it those of the system |
| `ssl_certfile`, `ssl_keyfile` | `ssl.certificate.location`, `ssl.key.location` | the client's certificate and key |
| `ssl_password` | `ssl.key.password` | of the key |
| `ssl_check_hostname` | `ssl.endpoint.identification.algorithm` | whether the certificate must name the broker's host |
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Final

from appliance_client.errors import OptionError

if TYPE_CHECKING:
    from appliance_client.options import ConnectionOptions

PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
ALIASES: Final = {
    "ssl_ca_location": "ssl_cafile",
    "ssl_certificate_location": "ssl_certfile",
    "ssl_key_location": "ssl_keyfile",
    "ssl_key_password": "ssl_password",
}
"""librdkafka's names, with underscores → the options of this client."""
_OF_TLS: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password")


def tls_context(options: ConnectionOptions) -> ssl.SSLContext | None:
    """Return the context for connections to brokers; None in plain text.

    Raises:
        OptionError: the options contradict each other, or a file cannot be used; the text names it.
    """
    protocol = options.security_protocol.upper()
    if protocol not in PROTOCOLS:
        raise OptionError(f"security.protocol is {options.security_protocol!r}: {', '.join(PROTOCOLS)}")
    if protocol != PLAINTEXT and options.scheme != "kafka":
        hint = "; there is CURVE (zeromq.curve.key.file)" if options.scheme.startswith("zmq") else ""
        raise OptionError(f"security.protocol={protocol} is for TCP, not for {options.scheme}://{hint}")
    if protocol in {PLAINTEXT, SASL_PLAINTEXT}:
        given = [name for name in _OF_TLS if getattr(options, name) is not None]
        if given:
            raise OptionError(f"{given[0]} needs security.protocol={SSL} or {SASL_SSL}")
        return None
    if options.ssl_keyfile is not None and options.ssl_certfile is None:
        raise OptionError("ssl_keyfile needs ssl_certfile")
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        _require_readable(name, getattr(options, name))
    try:
        context = ssl.create_default_context(cafile=options.ssl_cafile)
    except ssl.SSLError:
        raise OptionError(
            f"ssl_cafile: {options.ssl_cafile}: this is no PEM file with certificates"
        ) from None
    context.check_hostname = options.ssl_check_hostname
    if options.ssl_certfile is not None:
        _load_certificate(context, options)
    return context


def _load_certificate(context: ssl.SSLContext, options: ConnectionOptions) -> None:
    assert options.ssl_certfile is not None
    named = ", ".join(each for each in (options.ssl_certfile, options.ssl_keyfile) if each is not None)

    def password() -> str:
        # Without this function OpenSSL would ask at the terminal.
        if options.ssl_password is None:
            raise OptionError(f"{named}: the key is encrypted: set ssl_password")
        return options.ssl_password

    try:
        context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile, password)
    except ssl.SSLError as error:
        reason = (
            "the key does not belong to the certificate"
            if error.reason == "KEY_VALUES_MISMATCH"
            else "no certificate and key in PEM format, or a wrong password"
        )
        raise OptionError(f"{named}: {reason}") from None


def _require_readable(name: str, path: str | None) -> None:
    """Open a file once, so that an error names it."""
    if path is None:
        return
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise OptionError(f"{name}: {path}: {error.strerror}") from None
