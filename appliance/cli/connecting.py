"""What every connection of a command stands on: the flags that say how to connect, addresses, and the one error."""

from __future__ import annotations

import ssl
from typing import Final

import click

from appliance.cli.client_settings import Login, context_of, login_of
from appliance.cli.options import CLIENT_OPTIONS
from appliance.errors import ApplianceError

CONNECT_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 30.0


class BrokerError(ApplianceError):
    """No broker answers, or the one that does refuses."""


def said_options() -> dict[str, str]:
    """What `-X`, `--client-config` and `--command-config` said; where the broker is, `--bootstrap` decides."""
    context = click.get_current_context(silent=True)
    said: dict[str, str] = dict(context.meta.get(CLIENT_OPTIONS, {})) if context is not None else {}
    said.pop("bootstrap.servers", None)
    return said


def is_spoken() -> bool:
    """Whether our own codec can speak to brokers as the flags say."""
    said = said_options()
    try:
        login_of(said)
        context_of(said)
    except click.UsageError:
        return False
    return True


def login() -> Login | None:
    """How our own codec authenticates; None without SASL.

    Raises:
        click.UsageError: it cannot speak as the flags say.
    """
    return login_of(said_options())


def tls_context() -> ssl.SSLContext | None:
    """The TLS context for our own codec; None in plain text.

    Raises:
        click.UsageError: it cannot speak as the flags say.
    """
    return context_of(said_options())


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[IPV6]:PORT`; the port may be left out.

    Raises:
        BrokerError: the port is no port.
    """
    text = address.strip()
    host, colon, port = text.rpartition(":")
    if not colon or (text.startswith("[") and text.endswith("]")):
        host, port = text, "9092"
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536 or not host:
        raise BrokerError(f"{address!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
