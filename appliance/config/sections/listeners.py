"""Listeners: where clients connect, what protects their connections, and which addresses the broker advertises.

Names and spelling are Kafka's. The address of a listener is that of slot 0; slot n listens on the port plus n and
advertises the advertised port plus n. Without `listeners` there is one, PLAINTEXT, at `host` and `port`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from appliance.config.option import check_fields, option
from appliance.errors import ConfigurationError

PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
SECURITY_PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)

PORT_MAX: Final = 65535
LISTENERS_MAX: Final = 16
_RESERVED: Final = "SHARED_MEMORY"
"""What the connections of lanes have in place of a listener's name (channels/connection_channel.py)."""
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Addresses that mean every one, and how this host itself reaches them."""
_LISTENER: Final = re.compile(
    r"([A-Za-z0-9_.\-]+)://(?:\[([0-9A-Fa-f:.]+(?:%[\w.\-]+)?)\]|([^\s:\[\]/]*)):([0-9]{1,5})"
)


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener. If `advertised_host` or `advertised_port` is None, the broker advertises what it listens on."""

    name: str
    protocol: str
    host: str
    port: int
    advertised_host: str | None = None
    advertised_port: int | None = None

    @property
    def is_tls(self) -> bool:
        """Whether its connections are encrypted."""
        return self.protocol in {SSL, SASL_SSL}

    @property
    def is_sasl(self) -> bool:
        """Whether its clients authenticate with SASL."""
        return self.protocol in {SASL_PLAINTEXT, SASL_SSL}

    @property
    def tells_arrival_address(self) -> bool:
        """Whether each client gets the address that it connected to, because no single address is right for all."""
        return self.advertised_host is None and self.host in _ANY

    @property
    def client_host(self) -> str:
        """The host that clients get: `advertised_host`, else `host`; loopback where that means every address."""
        if self.advertised_host is not None:
            return self.advertised_host
        return _ANY.get(self.host, self.host)

    @property
    def client_port(self) -> int:
        """The port of slot 0 that clients get."""
        return self.port if self.advertised_port is None else self.advertised_port

    def text(self, slot: int = 0) -> str:
        """Return where a slot listens, as the option writes it: `INTERNAL://[::1]:9092`."""
        return f"{self.name}://{host_and_port(self.host, self.port + slot)}"

    def advertised_text(self, slot: int = 0) -> str:
        """Return the address that clients of a slot get, as the option writes it."""
        return f"{self.name}://{host_and_port(self.client_host, self.client_port + slot)}"


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """The options of listeners."""

    listeners: tuple[str, ...] = option(
        (),
        "listeners",
        doc="Listeners of slot 0, each as `NAME://host:port`, for example `INTERNAL://127.0.0.1:9092`. "
        "Slot n listens on port + n. Write an IPv6 address in brackets. If you leave out the host, "
        "the appliance listens on every IPv4 address. Without this option there is one listener, "
        "`PLAINTEXT`, on `host` and `port`.",
    )
    security_protocol_map: tuple[str, ...] = option(
        (),
        "listener.security.protocol.map",
        doc="The security protocol of each listener: `NAME:PROTOCOL`. The protocols are PLAINTEXT, SSL, "
        "SASL_PLAINTEXT and SASL_SSL. A listener with the name of a protocol has this protocol.",
    )
    advertised: tuple[str, ...] = option(
        (),
        "advertised.listeners",
        doc="Addresses that clients get instead of the addresses in `listeners`, each as "
        "`NAME://host:port`. The port is the port of slot 0. A client gets the addresses of the listener "
        "to which it has connected.",
    )
    insecure: bool = option(
        False,
        "insecure",
        doc="Whether the appliance starts even if other hosts can connect to a listener that "
        "authenticates no client. Without ACLs, everybody who can connect to such a listener can "
        "read, write and delete everything.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        named_listeners(self, slots=1)


def named_listeners(settings: ListenerSettings, *, slots: int) -> tuple[Listener, ...]:
    """Return the listeners that the options describe; none without `listeners`.

    Raises:
        ConfigurationError: it names the option and the listener.
    """
    protocols = _protocols(settings.security_protocol_map)
    found: dict[str, Listener] = {}
    for text in settings.listeners:
        name, host, port = _parsed("listeners", text)
        if name in found:
            raise ConfigurationError(f"listeners: there are two listeners with the name {name}")
        if name == _RESERVED:
            raise ConfigurationError(f"listeners: the name {name} is reserved")
        found[name] = Listener(name, _protocol_of(name, protocols), host or "0.0.0.0", port)
    if len(found) > LISTENERS_MAX:
        raise ConfigurationError(f"listeners: there are {len(found)}; the maximum is {LISTENERS_MAX}")
    for name in protocols:
        if name not in found:
            raise ConfigurationError(f"listener.security.protocol.map: {name} is not in listeners")
    advertised: set[str] = set()
    for text in settings.advertised:
        name, host, port = _parsed("advertised.listeners", text)
        if name not in found:
            raise ConfigurationError(f"advertised.listeners: {name} is not in listeners")
        if name in advertised:
            raise ConfigurationError(f"advertised.listeners: {name} has two addresses")
        if host in _ANY:
            raise ConfigurationError(f"advertised.listeners: {text}: clients cannot connect to every address")
        advertised.add(name)
        found[name] = replace(found[name], advertised_host=host, advertised_port=port)
    _refuse_bad_ports(found, slots)
    return tuple(found.values())


def host_and_port(host: str, port: int) -> str:
    """Return `127.0.0.1:9092`, or `[::1]:9092`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refuse_bad_ports(listeners: dict[str, Listener], slots: int) -> None:
    in_order = sorted(listeners.values(), key=lambda each: each.port)
    for each in in_order:
        if max(each.port, each.client_port) + slots - 1 > PORT_MAX:
            raise ConfigurationError(
                f"listeners: the ports of {each.name} for {slots} slots would exceed {PORT_MAX}"
            )
    for one, other in pairwise(in_order):
        if one.port + slots > other.port:
            raise ConfigurationError(
                f"listeners: with slots = {slots}, {one.name} listens on the ports from {one.port} to "
                f"{one.port + slots - 1}, and {other.name} on those from {other.port} on: they must not overlap"
            )


def _parsed(option_name: str, text: str) -> tuple[str, str, int]:
    match = _LISTENER.fullmatch(text.strip())
    if match is None or not 1 <= int(match[4]) <= PORT_MAX:
        raise ConfigurationError(f"{option_name}: {text[:100]!r}: must be NAME://host:port")
    return match[1].upper(), match[2] or match[3], int(match[4])


def _protocols(texts: tuple[str, ...]) -> dict[str, str]:
    protocols: dict[str, str] = {}
    for text in texts:
        name, colon, protocol = (part.strip() for part in text.partition(":"))
        if not colon or not name:
            raise ConfigurationError(f"listener.security.protocol.map: {text[:100]!r}: must be NAME:PROTOCOL")
        if name.upper() in protocols:
            raise ConfigurationError(f"listener.security.protocol.map: {name.upper()} has two protocols")
        protocols[name.upper()] = _known(protocol.upper(), "listener.security.protocol.map", name)
    return protocols


def _protocol_of(name: str, protocols: dict[str, str]) -> str:
    if name in protocols:
        return protocols[name]
    if name in SECURITY_PROTOCOLS:
        return name
    raise ConfigurationError(
        f"listener.security.protocol.map: no security protocol for listener {name}: add {name}:PLAINTEXT or {name}:SSL"
    )


def _known(protocol: str, option_name: str, listener: str) -> str:
    if protocol not in SECURITY_PROTOCOLS:
        raise ConfigurationError(
            f"{option_name}: listener {listener}: {protocol[:100]!r}: must be one of {', '.join(SECURITY_PROTOCOLS)}"
        )
    return protocol
