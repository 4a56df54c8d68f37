"""How the commands connect: what `-X`, `--client-config` and `--command-config` say, for each of the three clients.

| flag | takes |
|---|---|
| `-X NAME=VALUE`, `--client-config FILE` | settings of librdkafka: `ssl.ca.location` |
| `--command-config FILE` | properties of Kafka's own tools: `ssl.truststore.location`, `ssl.truststore.type=PEM` |

Everything is kept as settings of librdkafka, because most commands use it. The commands with our own codec
(`request.py`) and the native client get what corresponds, a login with SASL, too. A setting that one of them cannot
follow is an error: it may be the one that protects the connection.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from appliance.protocol.sasl_client import CLIENT_MECHANISMS, OAUTHBEARER, ClientExchange, password_exchange

PLAINTEXT: Final = "plaintext"
SSL: Final = "ssl"
SASL_PLAINTEXT: Final = "sasl_plaintext"
SASL_SSL: Final = "sasl_ssl"
TOKEN_AUTH: Final = "sasl.token.auth"
"""Whether user and password are a delegation token's. librdkafka has no such setting."""
_PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)

# Kafka's name → librdkafka's. SASL's are passed on, so that the commands with librdkafka can log in.
_SAME: Final = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "client.rack",
        "security.protocol",
        "ssl.key.password",
        "ssl.cipher.suites",
        "sasl.mechanism",
        "sasl.kerberos.service.name",
    }
)
_LOGIN: Final = re.compile(r'(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_TOKEN: Final = re.compile(r'\btokenauth\s*=\s*"?true"?', re.IGNORECASE)
_LOGIN_MODULES: Final = ("ScramLoginModule", "PlainLoginModule")
_PEM: Final = "PEM"
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

# Of librdkafka, what an `ssl.SSLContext` can be made of.
_OF_CONTEXT: Final = frozenset(
    {
        "security.protocol",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)


def read_properties(path: Path) -> dict[str, str]:
    """Return the entries of a Java properties file.

    Source of the format: java.util.Properties, `load(Reader)`.

    Raises:
        click.UsageError: the file is not text, or a line has no name.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path}: this is no text file in UTF-8") from error
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from error
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        # The name ends at the first unescaped `=`, `:` or white space.
        match = re.match(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", line, re.DOTALL)
        assert match is not None
        if not match[1]:
            raise click.UsageError(f"{path}: line {number}: must be NAME=VALUE")
        found[_unescaped(match[1])] = _unescaped(match[2])
    return found


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines without comments, those that end with an odd number of backslashes joined with the next."""
    lines: list[tuple[int, str]] = []
    pending, began = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.lstrip()
        if not pending:
            if not line or line[0] in "#!":
                continue
            began = number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending += line[:-1]
            continue
        lines.append((began, pending + line))
        pending = ""
    if pending:
        lines.append((began, pending))
    return lines


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(
        lambda match: chr(int(match[1], 16)) if match[1] else _ESCAPED.get(match[2], match[2]), text
    )


def from_kafka(path: Path, properties: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's settings for the properties of Kafka's tools.

    What is neither about the address nor about security is left out, with a line: such a file may serve other programs,
    too.

    Raises:
        click.UsageError: a property about security that has no counterpart; the text names it.
    """
    found: dict[str, str] = {}
    ignored: list[str] = []
    for name, value in properties.items():
        if name in _SAME:
            found[name] = value
        elif name == "ssl.endpoint.identification.algorithm":
            found[name] = value or "none"
        elif name == "ssl.enabled.protocols" or name in _STORES:
            pass  # OpenSSL agrees with the broker on the newest; the stores are read below
        elif name == "sasl.jaas.config":
            found |= _login(path, value)
        elif name.startswith(("ssl.", "sasl.")):
            raise click.UsageError(f"{path}: {name} is not supported by the command line")
        else:
            ignored.append(name)
    found |= _authorities(path, properties) | _certificate(path, properties)
    if ignored:
        click.echo(f"appliance: {path}: not read by the command line: {', '.join(ignored)}", err=True)
    return found


_STORES: Final = frozenset(
    f"ssl.{store}.{part}"
    for store in ("truststore", "keystore")
    for part in ("location", "type", "password", "certificates", "certificate.chain", "key")
)


def _authorities(path: Path, properties: Mapping[str, str]) -> dict[str, str]:
    if text := properties.get("ssl.truststore.certificates"):
        return {"ssl.ca.pem": text}
    if location := properties.get("ssl.truststore.location"):
        _require_pem(path, properties, "truststore")
        return {"ssl.ca.location": location}
    return {}


def _certificate(path: Path, properties: Mapping[str, str]) -> dict[str, str]:
    chain, key = properties.get("ssl.keystore.certificate.chain"), properties.get("ssl.keystore.key")
    if (chain is None) != (key is None):
        raise click.UsageError(
            f"{path}: ssl.keystore.certificate.chain and ssl.keystore.key belong together: set both"
        )
    if chain is not None and key is not None:
        return {"ssl.certificate.pem": chain, "ssl.key.pem": key}
    if location := properties.get("ssl.keystore.location"):
        _require_pem(path, properties, "keystore")
        return {"ssl.certificate.location": location, "ssl.key.location": location}
    return {}


def _require_pem(path: Path, properties: Mapping[str, str], store: str) -> None:
    kind = properties.get(f"ssl.{store}.type", "JKS")
    if kind.upper() != _PEM:
        raise click.UsageError(
            f"{path}: ssl.{store}.type is {kind}: the command line reads PEM files only"
            f" (ssl.{store}.type=PEM; keytool -exportcert -rfc and openssl pkcs12 convert)"
        )


def _login(path: Path, text: str) -> dict[str, str]:
    """User and password of a JAAS entry, as librdkafka has them."""
    words = dict(_LOGIN.findall(text))
    if not any(module in text for module in _LOGIN_MODULES) or set(words) != {"username", "password"}:
        raise click.UsageError(
            f"{path}: sasl.jaas.config must be ScramLoginModule or PlainLoginModule with username and password"
        )
    found = {f"sasl.{name}": re.sub(r"\\(.)", r"\1", value) for name, value in words.items()}
    return found | ({TOKEN_AUTH: "true"} if _TOKEN.search(_LOGIN.sub("", text)) else {})


def security_protocol(settings: Mapping[str, str]) -> str:
    """Return `plaintext`, `ssl`, `sasl_plaintext` or `sasl_ssl`."""
    return settings.get("security.protocol", PLAINTEXT).lower()


class Login(NamedTuple):
    """How a connection of our own codec authenticates."""

    mechanism: str
    user: str
    password: str
    by_token: bool

    def __repr__(self) -> str:
        return f"Login({self.mechanism!r}, {self.user!r})"

    def exchange(self) -> ClientExchange:
        """Return one authentication."""
        return password_exchange(self.mechanism, self.user, self.password, by_token=self.by_token)


def login_of(settings: Mapping[str, str]) -> Login | None:
    """Return how a connection of our own codec authenticates; None without SASL.

    Raises:
        click.UsageError: the settings ask for what this codec cannot do.
    """
    if security_protocol(settings) not in {SASL_PLAINTEXT, SASL_SSL}:
        return None
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "GSSAPI")).upper()
    if mechanism not in CLIENT_MECHANISMS or mechanism == OAUTHBEARER:
        known = ", ".join(each for each in CLIENT_MECHANISMS if each != OAUTHBEARER)
        raise click.UsageError(
            f"client configuration: sasl.mechanism={mechanism}: this command knows {known}"
        )
    user, password = settings.get("sasl.username", ""), settings.get("sasl.password", "")
    if not user or not password:
        raise click.UsageError(f"client configuration: {mechanism} needs sasl.username and sasl.password")
    return Login(mechanism, user, password, settings.get(TOKEN_AUTH, "").lower() == "true")


def context_of(settings: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return the TLS context for a connection of our own codec; None in plain text.

    Raises:
        click.UsageError: the settings ask for what this codec cannot do, or a file cannot be used.
    """
    protocol = security_protocol(settings)
    if protocol not in _PROTOCOLS:
        raise click.UsageError(
            f"security.protocol={protocol.upper()}: one of {', '.join(_PROTOCOLS).upper()}"
        )
    if protocol in {PLAINTEXT, SASL_PLAINTEXT}:
        return None
    for name in settings:
        if name.startswith(("ssl.", "enable.ssl")) and name not in _OF_CONTEXT:
            raise click.UsageError(f"client configuration: this command cannot follow {name}")
    location = settings.get("ssl.ca.location")
    try:
        context = ssl.create_default_context(cafile=location, cadata=settings.get("ssl.ca.pem"))
    except ssl.SSLError as error:
        raise click.UsageError(
            f"client configuration: {location or 'ssl.ca.pem'}: no PEM certificates"
        ) from error
    except OSError as error:
        raise click.UsageError(f"client configuration: {location}: {error.strerror}") from error
    context.check_hostname = settings.get("ssl.endpoint.identification.algorithm", "https") != "none"
    if settings.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _load_certificate(context, settings)
    return context


def _load_certificate(context: ssl.SSLContext, settings: Mapping[str, str]) -> None:
    certificate = settings.get("ssl.certificate.location")
    key = settings.get("ssl.key.location")
    descriptors: list[int] = []
    try:
        if text := settings.get("ssl.certificate.pem"):
            certificate = _in_memory(text, descriptors)
        if text := settings.get("ssl.key.pem"):
            key = _in_memory(text, descriptors)
        if certificate is not None:
            context.load_cert_chain(certificate, key, lambda: settings.get("ssl.key.password", ""))
        elif key is not None:
            raise click.UsageError("client configuration: ssl.key.location needs ssl.certificate.location")
    except ssl.SSLError as error:
        raise click.UsageError(
            f"client configuration: {certificate}: no certificate and key in PEM format that belong together, or a"
            " wrong password"
        ) from error
    except OSError as error:
        raise click.UsageError(
            f"client configuration: {certificate}, {key}: {error.strerror or error}"
        ) from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _in_memory(text: str, descriptors: list[int]) -> str:
    """A file that OpenSSL can read, and that is on no disk."""
    descriptor = os.memfd_create("appliance-client", os.MFD_CLOEXEC)
    descriptors.append(descriptor)
    os.write(descriptor, text.encode())
    return f"/proc/self/fd/{descriptor}"


_NATIVE: Final = {
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_username",
    "sasl.password": "sasl_password",
    TOKEN_AUTH: "sasl_token_auth",
}


def native_options(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the same as options of `appliance_client`.

    Raises:
        click.UsageError: it cannot follow one of them.
    """
    protocol = security_protocol(settings)
    if protocol == PLAINTEXT:
        return {}
    found: dict[str, Any] = {"security_protocol": protocol.upper()}
    for name, value in settings.items():
        if name in _NATIVE:
            found[_NATIVE[name]] = value
        elif name == "ssl.endpoint.identification.algorithm":
            found["ssl_check_hostname"] = value != "none"
        elif name.startswith(("ssl.", "sasl.", "enable.ssl")):
            raise click.UsageError(f"client configuration: this command cannot follow {name}")
    return found
