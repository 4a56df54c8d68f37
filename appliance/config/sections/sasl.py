"""SASL of the listeners whose protocol is SASL_PLAINTEXT or SASL_SSL. Names are Kafka's where Kafka has the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from appliance.config.declaration import ConfigType
from appliance.config.option import check_fields, option

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """How clients prove who they are, and what a connection may hold that has not.

    `of_listeners` holds `listener.name.NAME.sasl.enabled.mechanisms`: name of the listener, in upper case → mechanisms.
    """

    enabled_mechanisms: tuple[str, ...] = option(
        (SCRAM_SHA_256, SCRAM_SHA_512),
        "sasl.enabled.mechanisms",
        choices=MECHANISMS,
        doc="SASL mechanisms that clients may use. To choose the mechanisms of one listener, set "
        "`listener.name.NAME.sasl.enabled.mechanisms`.",
    )
    plain_users_file: str | None = option(
        None,
        "sasl.plain.users.file",
        doc='TOML file with the users of PLAIN and their passwords, one `"name" = "password"` per line. '
        "Only the appliance's own user may be able to read this file (mode 0600). When the file changes, "
        "the appliance reads it again.",
    )
    max_receive_size: int = option(
        524_288,
        "sasl.server.max.receive.size",
        unit="bytes",
        minimum=1024,
        maximum=16 << 20,
        doc="Size of the largest request from a client that has not authenticated.",
    )
    failed_delay_ms: int = option(
        100,
        "connection.failed.authentication.delay.ms",
        unit="ms",
        minimum=0,
        maximum=60_000,
        doc="Time after which the appliance answers a failed authentication and closes the connection. "
        "After several failures from one address, the appliance increases this time, up to 5 s.",
    )
    max_reauth_ms: int = option(
        0,
        "connections.max.reauth.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=0,
        doc="Time after which a client must authenticate again on its open connection. 0 means never.",
    )
    authentication_timeout_ms: int = option(
        30_000,
        "sasl.authentication.timeout.ms",
        unit="ms",
        minimum=100,
        maximum=600_000,
        doc="Time that a client has to authenticate after it has connected.",
    )
    authentications_max: int = option(
        1000,
        "sasl.authentications.max",
        unit="connections",
        minimum=1,
        maximum=100_000,
        doc="Maximum number of connections of one network process that have not authenticated. When one "
        "more client connects, the network process closes the oldest of these connections.",
    )
    authentications_max_per_ip: int = option(
        100,
        "sasl.authentications.max.per.ip",
        unit="connections",
        minimum=1,
        maximum=100_000,
        doc="Maximum number of connections of one network process from one address that have not "
        "authenticated. When one more client connects, the network process closes the oldest of these "
        "connections.",
    )
    of_listeners: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)

    def mechanisms_of(self, listener: str) -> tuple[str, ...]:
        """Return the mechanisms that clients of the listener of this name may use."""
        return self.of_listeners.get(listener, self.enabled_mechanisms)
