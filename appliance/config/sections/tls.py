"""TLS of the listeners whose protocol is SSL. Names are Kafka's where Kafka has the same setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from appliance.config.declaration import Value
from appliance.config.option import check_fields, option
from appliance.config.principal_rules import DEFAULT, parse_rules
from appliance.errors import ConfigurationError

CLIENT_AUTH_NONE: Final = "none"
CLIENT_AUTH_REQUESTED: Final = "requested"
CLIENT_AUTH_REQUIRED: Final = "required"
TLS_1_2: Final = "TLSv1.2"
TLS_1_3: Final = "TLSv1.3"


OF_LISTENERS: Final = frozenset(
    {
        "ssl.keystore.location",
        "ssl.certificate.file",
        "ssl.key.file",
        "ssl.truststore.location",
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.principal.mapping.rules",
    }
)
"""Options that one listener may have for itself: `listener.name.NAME.ssl.client.auth`."""
_FILES: Final = ("keystore_location", "certificate_file", "key_file")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Certificates, who must show one, and what an unfinished handshake may hold.

    `of_listeners` holds what was set for one listener: its name, in upper case → field → value.
    """

    keystore_location: str | None = option(
        None,
        "ssl.keystore.location",
        doc="PEM file with the private key and the certificate chain of the SSL listeners. The chain "
        "begins with the server's certificate. When one of the files in this section changes, the "
        "appliance reads the file again.",
    )
    certificate_file: str | None = option(
        None,
        "ssl.certificate.file",
        doc="PEM file with the certificate chain. Use this option if the private key is in another file.",
    )
    key_file: str | None = option(
        None,
        "ssl.key.file",
        doc="PEM file with the private key for ssl.certificate.file. The key must not be encrypted.",
    )
    truststore_location: str | None = option(
        None,
        "ssl.truststore.location",
        doc="PEM file with the certificates of the authorities that sign client certificates.",
    )
    client_auth: str = option(
        CLIENT_AUTH_NONE,
        "ssl.client.auth",
        choices=(CLIENT_AUTH_NONE, CLIENT_AUTH_REQUESTED, CLIENT_AUTH_REQUIRED),
        doc="Whether clients must show a certificate. With `none`, the appliance asks for no certificate. "
        "With `requested`, a client without a certificate may connect, and is User:ANONYMOUS. With "
        "`required`, the appliance rejects a client without a certificate. An authority in "
        "ssl.truststore.location must have signed each client certificate.",
    )
    enabled_protocols: tuple[str, ...] = option(
        (TLS_1_2, TLS_1_3),
        "ssl.enabled.protocols",
        choices=(TLS_1_2, TLS_1_3),
        doc="TLS versions that clients may use.",
    )
    principal_mapping_rules: str = option(
        DEFAULT,
        "ssl.principal.mapping.rules",
        doc="Rules that make the name of a principal from the name in a client certificate, separated by "
        "commas. A rule is `RULE:pattern/replacement/[LU]`, or `DEFAULT`, which keeps the whole name. The "
        "appliance applies the first rule that matches the whole name. The appliance rejects a certificate "
        "that no rule matches.",
    )
    handshake_timeout_ms: int = option(
        10_000,
        "ssl.handshake.timeout.ms",
        unit="ms",
        minimum=100,
        maximum=600_000,
        doc="Time in which a client must finish its TLS handshake.",
    )
    handshakes_max: int = option(
        1000,
        "ssl.handshakes.max",
        unit="handshakes",
        minimum=1,
        maximum=100_000,
        doc="Maximum number of unfinished TLS handshakes of one network process. When one more handshake "
        "begins, the network process closes the connection with the oldest handshake.",
    )
    handshakes_max_per_ip: int = option(
        100,
        "ssl.handshakes.max.per.ip",
        unit="handshakes",
        minimum=1,
        maximum=100_000,
        doc="Maximum number of unfinished TLS handshakes that one network process has from one address. "
        "When one more handshake begins, the network process closes the connection with the oldest "
        "handshake from this address.",
    )

    of_listeners: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.enabled_protocols:
            raise ConfigurationError("ssl.enabled.protocols: names no protocol")
        parse_rules(self.principal_mapping_rules)
        if self.keystore_location is not None and (self.certificate_file or self.key_file):
            raise ConfigurationError(
                "ssl.keystore.location and ssl.certificate.file exclude each other: set one of them"
            )
        if (self.certificate_file is None) != (self.key_file is None):
            raise ConfigurationError("ssl.certificate.file and ssl.key.file belong together: set both")
        if self.client_auth != CLIENT_AUTH_NONE and self.truststore_location is None:
            raise ConfigurationError(
                f"ssl.client.auth = {self.client_auth}: set ssl.truststore.location, too"
            )

    @property
    def has_certificate(self) -> bool:
        """Whether a certificate is configured."""
        return self.keystore_location is not None or self.certificate_file is not None

    def of(self, listener: str, *, is_sasl: bool) -> TlsSettings:
        """Return what counts for one listener.

        A client that logs in with SASL shows a certificate only where that is set for its listener (KIP-684).

        Raises:
            ConfigurationError: what is set for the listener does not go together; the text names it.
        """
        own: dict[str, Any] = dict(self.of_listeners.get(listener, {}))
        if is_sasl:
            own.setdefault("client_auth", CLIENT_AUTH_NONE)
        if any(name in own for name in _FILES):
            own = {**dict.fromkeys(_FILES), **own}
        try:
            return replace(self, of_listeners={}, **own)
        except ConfigurationError as fault:
            raise ConfigurationError(f"listener.name.{listener.lower()}: {fault}") from None
