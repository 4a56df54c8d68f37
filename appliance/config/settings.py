"""Everything the operator decides, in one value.

A field of a section *is* the option: its type is what mypy checks, its declaration (Kafka's name, unit,
default, range, sentence) is what the file, the flags, DescribeConfigs and docs/configuration.md read. No
`Settings` with a value outside its range can be made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from appliance.config.declaration import Declaration
from appliance.config.option import check_fields, declared_fields, option
from appliance.config.sections.access import AccessSettings
from appliance.config.sections.audit import AuditSettings
from appliance.config.sections.broker import BrokerSettings
from appliance.config.sections.console import ConsoleSettings
from appliance.config.sections.delegation_tokens import DelegationTokenSettings
from appliance.config.sections.groups import GroupSettings
from appliance.config.sections.io import IoSettings
from appliance.config.sections.listeners import (
    PLAINTEXT,
    PORT_MAX,
    Listener,
    ListenerSettings,
    named_listeners,
)
from appliance.config.sections.logging import LoggingSettings
from appliance.config.sections.metadata import MetadataSettings
from appliance.config.sections.metrics import MetricsSettings
from appliance.config.sections.network import NetworkSettings
from appliance.config.sections.oauthbearer import URL_OPTION, OAuthBearerSettings
from appliance.config.sections.offsets import OffsetsSettings
from appliance.config.sections.sasl import OAUTHBEARER, PLAIN, SaslSettings
from appliance.config.sections.services import ServicesSettings
from appliance.config.sections.shared_memory import SharedMemorySettings
from appliance.config.sections.tls import CLIENT_AUTH_REQUIRED, TlsSettings
from appliance.config.sections.transactions import TransactionSettings
from appliance.config.sections.zeromq import ZeroMqSettings, is_tcp, overlap_of, tcp_address
from appliance.errors import ConfigurationError

_SLOT: Final = "{slot}"
_LOG_DIRS_MAX: Final = 63
_DATA_DIR: Final = Path("data")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the operator decides. Made by `appliance.config.load_settings`, or directly by a test.

    `configured` holds what was set, name → text: by it DescribeConfigs tells a set value from a default.
    `topic_defaults` is what it makes of the topic settings: topic setting → value, only where set.
    `aliases` are Kafka's names that were used for options of ours: Kafka's name → ours.
    """

    data_dir: Path = option(  # noqa: RUF009 - a dataclass field like the others
        _DATA_DIR,
        "data.dir",
        doc="Directory for all data of the appliance. A relative path in a configuration file starts at"
        " the directory of that file. Kafka's similar setting is log.dirs.",
    )
    log_dirs: str | None = option(
        None,
        "log.dirs",
        doc="Log directories of a slot, separated by commas. Put each directory on its own disk. In a "
        "path, `{slot}` stands for the number of the slot. A relative path starts at data.dir. "
        "Without this option, slot N has one log directory, data.dir/slot-N.",
    )
    data_directory_group: str | None = option(
        None,
        "data.directory.group",
        doc="Group of users who may read the log directories. Set this option for programs that read the "
        "files as another user. With this option, log directories have mode 0750, and their files have "
        "mode 0640. Without this option, only the appliance's own user can read the log "
        "directories (modes 0700 and 0600).",
    )
    host: str = option(
        "127.0.0.1",
        "host",
        doc="Address on which the appliance listens.",
    )
    port: int = option(
        9092,
        "port",
        minimum=1,
        maximum=PORT_MAX,
        doc="Port of slot 0. Slot n listens on port + n.",
    )
    slots: int = option(
        1,
        "slots",
        unit="slots",
        minimum=1,
        maximum=32,
        doc="Number of broker slots. Clients see each slot as one broker.",
    )
    advertised_host: str | None = option(
        None,
        "advertised.host",
        doc="Address that the brokers give to clients. Without this option, the brokers give the value of "
        "`host`. If `host` means every address (0.0.0.0 or ::), each client gets the address to which the "
        "client has connected. Set this option behind NAT or a port forward.",
    )
    listener: ListenerSettings = field(default_factory=ListenerSettings)
    ssl: TlsSettings = field(default_factory=TlsSettings)
    sasl: SaslSettings = field(default_factory=SaslSettings)
    oauthbearer: OAuthBearerSettings = field(default_factory=OAuthBearerSettings)
    delegation_tokens: DelegationTokenSettings = field(default_factory=DelegationTokenSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    io: IoSettings = field(default_factory=IoSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    group: GroupSettings = field(default_factory=GroupSettings)
    offsets: OffsetsSettings = field(default_factory=OffsetsSettings)
    transaction: TransactionSettings = field(default_factory=TransactionSettings)
    metadata: MetadataSettings = field(default_factory=MetadataSettings)
    zeromq: ZeroMqSettings = field(default_factory=ZeroMqSettings)
    shared_memory: SharedMemorySettings = field(default_factory=SharedMemorySettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
    services: ServicesSettings = field(default_factory=ServicesSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    configured: Mapping[str, str] = field(default_factory=dict, repr=False)
    aliases: Mapping[str, str] = field(default_factory=dict)
    listeners: tuple[Listener, ...] = field(init=False)

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "listeners", self._listeners())
        if self.port + self.slots - 1 > PORT_MAX:
            raise ConfigurationError(
                f"slots = {self.slots}: the ports from {self.port} on would exceed 65535"
            )
        if self.log_dirs is not None:
            names = _names(self.log_dirs)
            if not names or len({os.path.normpath(self.data_dir / name) for name in names}) < len(names):
                raise ConfigurationError(f"log.dirs = {self.log_dirs!r}: the directories must differ")
            if len(names) > _LOG_DIRS_MAX:
                raise ConfigurationError(
                    f"log.dirs names {len(names)} directories; the maximum is {_LOG_DIRS_MAX}"
                )
            if self.slots > 1 and not all(_SLOT in name for name in names):
                raise ConfigurationError(
                    f"log.dirs = {self.log_dirs!r}: with {self.slots} slots each path must contain {_SLOT}"
                )
        for listener in filter(is_tcp, self.zeromq.listeners):
            if tcp_address(listener)[1] + self.network.processes > PORT_MAX:
                raise ConfigurationError(
                    f"listeners.zeromq = {listener!r}: the ports of {self.network.processes} network processes "
                    f"would exceed {PORT_MAX}"
                )
        overlap = overlap_of(self.zeromq.listeners, self.network.processes)
        if overlap is not None:
            raise ConfigurationError(
                f"listeners.zeromq: {overlap[0]} and {overlap[1]} need the same port or file. Each endpoint also "
                f"needs one for each of the {self.network.processes} network processes: leave room between them"
            )
        if self.console.is_on:
            self._check_console()
        factor = self.broker.default_replication_factor
        if factor > self.slots:
            raise ConfigurationError(
                f"default.replication.factor = {factor}: must not be above slots = {self.slots}"
            )
        if factor == 0:
            resolved = replace(self.broker, default_replication_factor=min(3, self.slots))
            object.__setattr__(self, "broker", resolved)

    def _listeners(self) -> tuple[Listener, ...]:
        """Return the listeners, and let `host` and `port` mean those of the main one."""
        if not self.listener.listeners:
            for name in ("listener.security.protocol.map", "advertised.listeners"):
                if name in self.configured:
                    raise ConfigurationError(f"{name}: has no effect without listeners")
            for name in (*self.sasl.of_listeners, *self.ssl.of_listeners):
                raise ConfigurationError(f"listener.name.{name.lower()}: has no effect without listeners")
            return (Listener(PLAINTEXT, PLAINTEXT, self.host, self.port, self.advertised_host),)
        for name in ("host", "port", "advertised.host"):
            if name in self.configured:
                raise ConfigurationError(f"{name}: listeners say it; set one of the two")
        listeners = named_listeners(self.listener, slots=self.slots)
        for listener in listeners:
            if listener.is_tls and not self.tls_of(listener).has_certificate:
                raise ConfigurationError(
                    f"listeners: {listener.name} has the protocol {listener.protocol}: set ssl.keystore.location,"
                    " or ssl.certificate.file and ssl.key.file"
                )
            if listener.is_sasl:
                self._check_sasl(listener)
        self._check_names(listeners)
        main = _main_of(listeners)
        object.__setattr__(self, "host", main.host)
        object.__setattr__(self, "port", main.port)
        return listeners

    def _check_names(self, listeners: tuple[Listener, ...]) -> None:
        """Refuse options for one listener where there is no such listener."""
        for name in self.sasl.of_listeners:
            if name not in {listener.name for listener in listeners}:
                raise ConfigurationError(
                    f"listener.name.{name.lower()}.sasl.enabled.mechanisms: {name} is not in listeners"
                )
        with_tls = {listener.name for listener in listeners if listener.is_tls}
        for name in self.ssl.of_listeners:
            if name not in with_tls:
                raise ConfigurationError(
                    f"listener.name.{name.lower()}.ssl: there is no listener {name} with the protocol SSL or SASL_SSL"
                )

    def _check_sasl(self, listener: Listener) -> None:
        mechanisms = self.sasl.mechanisms_of(listener.name)
        if not mechanisms:
            raise ConfigurationError(
                f"listeners: {listener.name} has the protocol {listener.protocol}: set sasl.enabled.mechanisms"
            )
        if PLAIN in mechanisms and self.sasl.plain_users_file is None:
            raise ConfigurationError(
                f"listeners: clients of {listener.name} may use the mechanism PLAIN: set sasl.plain.users.file"
            )
        if OAUTHBEARER in mechanisms and self.oauthbearer.jwks_url is None:
            raise ConfigurationError(
                f"listeners: clients of {listener.name} may use the mechanism OAUTHBEARER: set {URL_OPTION}"
            )
        if OAUTHBEARER in mechanisms and self.oauthbearer.is_open_to_forgery and not self.listener.insecure:
            raise ConfigurationError(
                f"{URL_OPTION} = {self.oauthbearer.jwks_url!r}: without encryption, everybody between the two hosts"
                " can replace the keys, and then log in as anybody. Use https://, or set insecure = true"
            )

    def _check_console(self) -> None:
        """Refuse a console that could not log in, or that anybody could use."""
        named = self.console.kafka_listener
        if named is not None and named not in {each.name for each in self.listeners}:
            raise ConfigurationError(f"console.kafka.listener = {named!r}: {named} is not in listeners")
        listener = self.console_listener
        if listener is None:
            raise ConfigurationError(
                "console.listener: the console needs a listener whose clients authenticate with a user and a password,"
                " or with nothing; there is none"
            )
        if named is not None and listener.name != named:
            raise ConfigurationError(
                f"console.kafka.listener = {named!r}: the console can log in with a user and a password only"
            )
        if not listener.is_sasl and not self.console.is_local:
            raise ConfigurationError(
                f"console.listener = {self.console.listener!r}: clients of the listener {listener.name} do not"
                " authenticate, so everybody who reaches the console could read and delete everything: use an address"
                " of loopback, or a listener with SASL"
            )

    def console_mechanisms(self, listener: Listener) -> tuple[str, ...]:
        """Return the mechanisms by which the console can log in at a listener with SASL, the strongest first."""
        enabled = self.sasl.mechanisms_of(listener.name)
        return tuple(each for each in ("SCRAM-SHA-512", "SCRAM-SHA-256", PLAIN) if each in enabled)

    @property
    def console_listener(self) -> Listener | None:
        """The listener that the console connects to; None if it can connect to none."""
        named = self.console.kafka_listener
        usable = [
            each
            for each in self.listeners
            if (named is None or each.name == named)
            and (self.console_mechanisms(each) if each.is_sasl else not self.authenticates(each))
        ]
        by_rank = sorted(usable, key=lambda each: (not each.is_sasl, each.protocol != PLAINTEXT))
        return by_rank[0] if by_rank else None

    @property
    def counts_traffic(self) -> bool:
        """Whether a process reads what network processes and workers count in shared memory."""
        return self.metrics.is_on or self.console.is_on

    def authenticates(self, listener: Listener) -> bool:
        """Whether a client of the listener must prove who it is."""
        return listener.is_sasl or (
            listener.is_tls and self.tls_of(listener).client_auth == CLIENT_AUTH_REQUIRED
        )

    def tls_of(self, listener: Listener) -> TlsSettings:
        """Return what counts of the options of TLS for one listener."""
        return self.ssl.of(listener.name, is_sasl=listener.is_sasl)

    @property
    def validates_tokens(self) -> bool:
        """Whether a listener has the mechanism OAUTHBEARER, so that the keys of the identity provider are needed."""
        return any(
            each.is_sasl and OAUTHBEARER in self.sasl.mechanisms_of(each.name) for each in self.listeners
        )

    @property
    def main_listener(self) -> Listener:
        """The one for tools on this host and in the metadata image: the first that is PLAINTEXT, else the first."""
        return _main_of(self.listeners)

    @property
    def tells_arrival_address(self) -> bool:
        """Whether clients of the main listener are told the address that they came by."""
        return self.main_listener.tells_arrival_address

    @property
    def client_host(self) -> str:
        """The host of the main listener for tools on this host and for registrations."""
        return self.main_listener.client_host

    def slot_directory(self, slot: int) -> Path:
        """The first log directory of slot `slot`, counted from 0."""
        return self.log_directories(slot)[0]

    def log_directories(self, slot: int) -> tuple[Path, ...]:
        """The log directories of slot `slot`, counted from 0. Relative ones are in `data_dir`."""
        if self.log_dirs is None:
            return (self.data_dir / f"slot-{slot}",)
        return tuple(self.data_dir / name.replace(_SLOT, str(slot)) for name in _names(self.log_dirs))

    def known_directories(self, slot: int) -> Path | None:
        """Where slot `slot` keeps which of its directories were in use; None where the one that it has lies beside."""
        return None if self.log_dirs is None else self.data_dir / f"slot-{slot}.log-dirs.json"


Section = (
    ListenerSettings
    | TlsSettings
    | SaslSettings
    | OAuthBearerSettings
    | DelegationTokenSettings
    | NetworkSettings
    | IoSettings
    | BrokerSettings
    | GroupSettings
    | OffsetsSettings
    | TransactionSettings
    | MetadataSettings
    | ZeroMqSettings
    | SharedMemorySettings
    | AccessSettings
    | AuditSettings
    | MetricsSettings
    | ConsoleSettings
    | ServicesSettings
    | LoggingSettings
)

SECTIONS: Final[Mapping[str, type[Section]]] = {
    "listener": ListenerSettings,
    "ssl": TlsSettings,
    "sasl": SaslSettings,
    "oauthbearer": OAuthBearerSettings,
    "delegation_tokens": DelegationTokenSettings,
    "network": NetworkSettings,
    "io": IoSettings,
    "broker": BrokerSettings,
    "group": GroupSettings,
    "offsets": OffsetsSettings,
    "transaction": TransactionSettings,
    "metadata": MetadataSettings,
    "zeromq": ZeroMqSettings,
    "shared_memory": SharedMemorySettings,
    "access": AccessSettings,
    "audit": AuditSettings,
    "metrics": MetricsSettings,
    "console": ConsoleSettings,
    "services": ServicesSettings,
    "logging": LoggingSettings,
}
"""Attribute of `Settings` → class of the section."""


def option_declarations() -> dict[str, tuple[str, str, Declaration]]:
    """Option name → (section's attribute, "" for Settings itself; field; declaration)."""
    found: dict[str, tuple[str, str, Declaration]] = {}
    for section, of in {"": Settings, **SECTIONS}.items():
        for name, declaration in declared_fields(of):
            found[declaration.name] = (section, name, declaration)
    return found


def _main_of(listeners: tuple[Listener, ...]) -> Listener:
    return next((each for each in listeners if each.protocol == PLAINTEXT), listeners[0])


def _names(log_dirs: str) -> list[str]:
    return [name.strip() for name in log_dirs.split(",") if name.strip()]
