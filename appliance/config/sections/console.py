"""The console process (docs/console.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from appliance.config.http_address import is_loopback, parse_http_address
from appliance.config.option import check_fields, option
from appliance.errors import ConfigurationError

DEFAULT_PORT: Final = 9645
"""The port in every example. The option has no default, because two appliances on a host would claim the same one."""


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Where the console is, and how much it may hold."""

    listener: str | None = option(
        None,
        "console.listener",
        doc=f"Address of the console, a web page, as HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}. Without this option, "
        "there is no console process. The page has no encryption, so an address that other hosts can reach also needs "
        "console.insecure. See docs/console.md.",
    )
    insecure: bool = option(
        False,
        "console.insecure",
        doc="Whether console.listener may be an address that other hosts can reach, although users send "
        "passwords to this address without encryption. A proxy with TLS in front of the console is better. "
        "If clients of console.kafka.listener do not authenticate, the address must be a loopback address "
        "even with this option.",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "console.allowed.hosts",
        doc="Host names, separated by commas, under which browsers may request the console, for example "
        "the name of a proxy. IP addresses and localhost are always allowed. The console rejects a request "
        "with any other name, so that no other web page can use the console through a user's browser.",
    )
    kafka_listener: str | None = option(
        None,
        "console.kafka.listener",
        doc="Name of the listener to which the console connects as a Kafka client, with the name and the "
        "password of the user who has logged in. Without this option, the console uses the first listener "
        "whose clients authenticate with a password. If there is no such listener, the console uses the "
        "first PLAINTEXT listener.",
    )
    sessions_max: int = option(
        32,
        "console.sessions.max",
        unit="sessions",
        minimum=1,
        maximum=1000,
        doc="Maximum number of sessions of the console. At one more login, the console ends the least "
        "recently used session of the user with the most sessions.",
    )
    session_idle_ms: int = option(
        1_800_000,
        "console.session.idle.ms",
        unit="ms",
        minimum=1000,
        maximum=86_400_000,
        doc="Time without a request after which a session of the console ends.",
    )
    value_max_bytes: int = option(
        65_536,
        "console.value.max.bytes",
        unit="bytes",
        minimum=64,
        maximum=1 << 20,
        doc="Maximum size of a key, value or header that the console shows. The console shows only the "
        "beginning of a longer value.",
    )

    schema_directory: str | None = option(
        None,
        "console.schema.directory",
        doc="Directory with schemas of Avro and Protobuf, with which the console decodes records. The "
        "files ID.avsc and ID.desc are for schema ids in records. TOPIC-value.avsc, TOPIC-key.avsc, "
        "TOPIC-value.desc and TOPIC-key.desc are for topics. The option needs the extra schemas. See "
        "docs/console.md.",
    )
    schema_registry: str | None = option(
        None,
        "console.schema.registry.url",
        doc="Address of a schema registry, such as http://127.0.0.1:8081. The console asks the registry "
        "for schemas by the ids in records, if console.schema.directory does not have these schemas. The "
        "option needs the extra schemas.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.schema_registry is not None:
            registry_port(self.schema_registry)
        if self.listener is None:
            return
        host, _ = self.address
        if not is_loopback(host) and not self.insecure:
            raise ConfigurationError(
                f"console.listener = {self.listener!r}: other hosts would send passwords without encryption: use an"
                " address of loopback, or set console.insecure = true"
            )

    @property
    def registry_port(self) -> int | None:
        """The port of the schema registry; None without one."""
        return None if self.schema_registry is None else registry_port(self.schema_registry)

    @property
    def is_on(self) -> bool:
        """Whether there is a console process."""
        return self.listener is not None

    @property
    def address(self) -> tuple[str, int]:
        """Host, without brackets, and port of the listener, which there must be."""
        return parse_http_address("console.listener", self.listener or "", example_port=DEFAULT_PORT)

    @property
    def is_local(self) -> bool:
        """Whether only this host can reach the console."""
        return is_loopback(self.address[0])


def registry_port(url: str) -> int:
    """Return the port of a schema registry.

    Raises:
        ConfigurationError: it is no address of one.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        if not parts.hostname or parts.username is not None:
            raise ValueError(url)
    except (ValueError, KeyError):
        raise ConfigurationError(
            f"console.schema.registry.url = {url!r}: must be http://HOST:PORT or https://HOST:PORT"
        ) from None
    return port
