"""Kafka's options by Kafka's names: as a dict with dots, or as keyword arguments with underscores.

An option that is not known, of the wrong type or out of its bounds is an `OptionError` at once, never ignored.
Defaults are Apache Kafka 4.3's unless the comment beside one says why not.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from math import isfinite
from operator import index
from pathlib import Path
from typing import Any, Final, TypeVar

from appliance.protocol.records.compression import Codec
from appliance_client.assignors import assignors_of
from appliance_client.data_directory import address_in, data_directory_of, has_lanes, is_local
from appliance_client.errors import OptionError
from appliance_client.sasl import SASL_ALIASES, Login, login_of
from appliance_client.tls import ALIASES, tls_context

Address = tuple[str, int]
"""Host and port; of a transport beside TCP, the address as it was given, and 0."""
Serializer = Callable[[Any], bytes | None]
Deserializer = Callable[[bytes], Any]

DEFAULT_PORT: Final = 9092
INT32_MAX: Final = 2_147_483_647
TEXT_BYTES_MAX: Final = 32_767
"""Of a text in Kafka's protocol, whose length is an int16."""
INT64_MAX: Final = 9_223_372_036_854_775_807
_LONG: Final = ("buffer_memory", "max_block_ms", "metadata_max_age_ms", "metadata_max_idle_ms", "linger_ms")
"""Options that are a long in Kafka; the other numbers are an int."""
LEVELS: Final = {Codec.GZIP: (-1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131_072, 22)}
"""Compression levels, as Kafka's `compression.gzip.level` and the others bound them."""
ACKS: Final = {"all": -1, "-1": -1, "0": 0, "1": 1, -1: -1, 0: 0, 1: 1}
ISOLATION: Final = {"read_uncommitted": 0, "read_committed": 1}
RESETS: Final = ("earliest", "latest", "none")
BROKER_DECIDES: Final = frozenset(
    ("session_timeout_ms", "heartbeat_interval_ms", "partition_assignment_strategy")
)
"""Options of the classic protocol of groups that the consumer protocol (KIP-848) has not."""
TCP_SCHEMES: Final = ("kafka", "tcp", "plaintext")
TRANSPORTS: Final = {
    "zmq+ipc": ("appliance_client.zeromq", "zeromq"),
    "zmq+tcp": ("appliance_client.zeromq", "zeromq"),
    "shm": ("appliance_client.shared_memory", ""),
}
"""Schemes beside TCP: the module that has the `Transport`, and the extra of the distribution that it needs."""

_ADDRESS: Final = re.compile(
    r"(?:(?P<scheme>[a-z+]+)://)?(?P<host>\[[^\]]+\]|[^:/]*)(?::(?P<port>\d+))?/?", re.I
)


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """What producer, consumer and admin share."""

    bootstrap_servers: Any = "localhost:9092"
    client_id: str = "appliance-client"
    request_timeout_ms: int = 30_000
    metadata_max_age_ms: int = 300_000
    metadata_max_idle_ms: int = 300_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    # One more than Kafka has: nothing larger is taken from a broker, whatever it declares.
    receive_message_max_bytes: int = 256 * 1024 * 1024

    # TLS over TCP (tls.py). The names are those of kafka-python and aiokafka; those of librdkafka are accepted for the
    # files, too. All files are PEM; the key may be in the certificate's file.
    security_protocol: str = "PLAINTEXT"
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_password: str | None = field(default=None, repr=False)
    ssl_check_hostname: bool = True

    # SASL over TCP (sasl.py), with security_protocol SASL_PLAINTEXT or SASL_SSL. The names are those of librdkafka.
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    sasl_token_auth: bool = False
    sasl_oauth_token_provider: Any = None

    # CURVE on zmq+tcp: a file of `zmq.auth.create_certificates` with both keys of this client, and the server's
    # public key in Z85 or such a file of it. Neither is used elsewhere.
    zeromq_curve_key_file: str | None = None
    zeromq_curve_server_key: str | None = None

    data_directory: Path | None = field(init=False)
    """Of `shm:///data-dir`: a consumer reads the files in there."""
    addresses: tuple[Address, ...] = field(init=False)
    scheme: str = field(init=False)
    tls: ssl.SSLContext | None = field(init=False, repr=False, compare=False)
    """For connections over TCP; None in plain text."""
    login: Login | None = field(init=False, repr=False, compare=False)
    """How the client authenticates with SASL; None without."""

    def __post_init__(self) -> None:
        servers, directory = self.bootstrap_servers, None
        if is_local(servers):
            directory = data_directory_of(servers)
            if not has_lanes(directory):
                servers = address_in(directory)  # what is asked of the broker goes over TCP
        object.__setattr__(self, "data_directory", directory)
        scheme, addresses = addresses_of(servers)
        object.__setattr__(self, "addresses", addresses)
        object.__setattr__(self, "scheme", scheme)
        object.__setattr__(self, "tls", tls_context(self))
        object.__setattr__(self, "login", login_of(self))
        if (self.zeromq_curve_key_file is None) != (self.zeromq_curve_server_key is None):
            raise OptionError("zeromq.curve.key.file and zeromq.curve.server.key: both or neither")
        for name in (
            "request_timeout_ms",
            "metadata_max_age_ms",
            "socket_connection_setup_timeout_ms",
            "receive_message_max_bytes",
        ):
            _at_least(self, name, 1)
        _at_least(self, "metadata_max_idle_ms", 5_000)
        for name in (
            "retry_backoff_ms",
            "retry_backoff_max_ms",
            "reconnect_backoff_ms",
            "reconnect_backoff_max_ms",
        ):
            _at_least(self, name, 0)

    def check_given(self, given: Iterable[str]) -> None:
        """Raises OptionError where options were given that do not go together, though their defaults do."""

    def address_now(self) -> Address:
        """The bootstrap address. With `shm:///data-dir` the broker may listen at another one since it was restarted."""
        if self.data_directory is not None and self.scheme == "kafka":
            try:
                return addresses_of(address_in(self.data_directory))[1][0]
            except OptionError:
                pass  # none runs now: the old address is as good as any
        return self.addresses[0]


@dataclass(frozen=True, kw_only=True)
class ProducerOptions(ConnectionOptions):
    """Options of a producer."""

    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    partitioner: Any = "murmur2"
    interceptors: tuple[Any, ...] = ()
    acks: Any = "all"
    enable_idempotence: bool | None = None
    compression_type: str | None = "none"
    compression_level: int | None = None
    batch_size: int = 16_384
    linger_ms: float = 5.0
    buffer_memory: int = 32 * 1024 * 1024
    max_block_ms: int = 60_000
    max_request_size: int = 1_048_576
    max_in_flight_requests_per_connection: int = 5
    retries: int = 2_147_483_647
    delivery_timeout_ms: int = 120_000
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000

    acks_number: int = field(init=False)
    codec: Codec = field(init=False)
    idempotent: bool = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            acks = ACKS[self.acks if not isinstance(self.acks, bool) else "a truth"]
        except (KeyError, TypeError):
            raise OptionError(f"acks is {self.acks!r}: all, 1 or 0") from None
        try:
            codec = Codec[(self.compression_type or "none").upper()]
        except KeyError:
            words = ", ".join(each.name.lower() for each in Codec)
            raise OptionError(f"compression.type is {self.compression_type!r}: one of {words}") from None
        low, high = LEVELS.get(codec, (-INT32_MAX, INT32_MAX))
        if self.compression_level is not None and not low <= self.compression_level <= high:
            raise OptionError(
                f"compression level is {self.compression_level}: {low} to {high} with {codec.name.lower()}"
            )
        for name in ("batch_size", "linger_ms", "max_block_ms", "retries"):
            _at_least(self, name, 0)
        for name in ("buffer_memory", "max_request_size", "delivery_timeout_ms", "transaction_timeout_ms"):
            _at_least(self, name, 1)
        _at_least(self, "max_in_flight_requests_per_connection", 1)
        wanted = self.enable_idempotence
        possible = acks == -1 and self.retries > 0 and self.max_in_flight_requests_per_connection <= 5
        if (wanted or self.transactional_id is not None) and not possible:
            raise OptionError(
                "idempotence needs acks=all, retries of 1 or more and at most 5 in "
                "max.in.flight.requests.per.connection"
            )
        if self.transactional_id is not None and (wanted is False or not self.transactional_id):
            raise OptionError("transactional.id must not be empty and needs enable.idempotence")
        if self.delivery_timeout_ms < self.linger_ms:
            raise OptionError("delivery.timeout.ms must not be smaller than linger.ms")
        object.__setattr__(self, "acks_number", acks)
        object.__setattr__(self, "codec", codec)
        object.__setattr__(self, "idempotent", possible if wanted is None else wanted)


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(ConnectionOptions):
    """Options of a consumer."""

    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: Any = "classic"
    group_remote_assignor: str | None = None
    client_rack: str = ""
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None
    interceptors: tuple[Any, ...] = ()
    partition_assignment_strategy: Any = ("range", "cooperative-sticky")
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    auto_offset_reset: Any = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    isolation_level: Any = "read_uncommitted"
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 1_048_576
    check_crcs: bool = True
    allow_auto_create_topics: bool = True
    exclude_internal_topics: bool = True
    default_api_timeout_ms: int = 60_000
    # Read the retry topics of the group, too (handing_back.py). Topics are not created then, because a retry topic that
    # nobody has set up would be an ordinary topic.
    retry_topics: bool = False

    isolation: int = field(init=False)
    strategies: tuple[Any, ...] = field(init=False)
    has_fetch_size: bool = field(init=False, default=False)
    """Whether max.partition.fetch.bytes was given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            isolation = ISOLATION[self.isolation_level]
        except (KeyError, TypeError):
            raise OptionError(
                f"isolation.level is {self.isolation_level!r}: read_committed or read_uncommitted"
            ) from None
        if self.auto_offset_reset not in RESETS:
            raise OptionError(f"auto.offset.reset is {self.auto_offset_reset!r}: {', '.join(RESETS)}")
        protocol = self.group_protocol.lower() if isinstance(self.group_protocol, str) else None
        if protocol not in ("classic", "consumer"):
            raise OptionError(f"group.protocol is {self.group_protocol!r}: classic or consumer")
        object.__setattr__(self, "group_protocol", protocol)
        for name in (
            "session_timeout_ms",
            "heartbeat_interval_ms",
            "max_poll_interval_ms",
            "max_poll_records",
            "max_partition_fetch_bytes",
            "fetch_max_bytes",
            "default_api_timeout_ms",
        ):
            _at_least(self, name, 1)
        for name in ("fetch_min_bytes", "fetch_max_wait_ms", "auto_commit_interval_ms"):
            _at_least(self, name, 0)
        if self.retry_topics and self.group_id is None:
            raise OptionError("retry.topics needs a group.id")
        if self.group_remote_assignor is not None and self.group_protocol == "classic":
            raise OptionError("group.remote.assignor needs group.protocol=consumer")
        if self.group_id == "" or self.group_instance_id == "":
            raise OptionError("group.id and group.instance.id must not be empty")
        if self.group_protocol == "classic" and self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise OptionError("heartbeat.interval.ms must be smaller than session.timeout.ms")
        chosen = self.partition_assignment_strategy
        strategies = (
            (chosen,) if isinstance(chosen, str) or not isinstance(chosen, Iterable) else tuple(chosen)
        )
        object.__setattr__(self, "isolation", isolation)
        assignors_of(strategies)
        object.__setattr__(self, "strategies", strategies)

    def check_given(self, given: Iterable[str]) -> None:
        """Raises OptionError where an option was given that the group's protocol has the broker decide, as Kafka."""
        object.__setattr__(self, "has_fetch_size", "max_partition_fetch_bytes" in given)
        if self.group_protocol == "consumer" and (useless := sorted(BROKER_DECIDES.intersection(given))):
            names = ", ".join(each.replace("_", ".") for each in useless)
            raise OptionError(f"{names} cannot be set when group.protocol=consumer: the broker decides it")


Options = TypeVar("Options", bound=ConnectionOptions)


def options_of(kind: type[Options], given: Mapping[str, Any] | None, named: Mapping[str, Any]) -> Options:
    """Options from a dict (`{"linger.ms": 5}`) and keyword arguments (`linger_ms=5`); the latter count more.

    Raises:
        OptionError: one is unknown, of the wrong type, out of bounds, or contradicts another one.
    """
    known = {each.name: each for each in fields(kind) if each.init}
    values: dict[str, Any] = {}
    for name, value in {**(given or {}), **named}.items():
        own = name.replace(".", "_").replace("-", "_")
        own = ALIASES.get(own) or SASL_ALIASES.get(own, own)
        if own not in known:
            close = get_close_matches(own, known, 1)
            hint = f"; did you mean {close[0].replace('_', '.')}?" if close else ""
            raise OptionError(f"unknown option {name}{hint}")
        values[own] = _of_type(name, value, str(known[own].type))
    made = kind(**values)
    made.check_given(values)
    return made


def _of_type(name: str, value: Any, wanted: str) -> Any:
    """The value as its option has it. Text becomes the number or truth that it spells, as in a properties file."""
    if value is None and wanted.endswith("| None"):
        return value
    if wanted.startswith(("int", "float")):
        return _number(name, value, is_whole=wanted.startswith("int"))
    if wanted.startswith("bool"):
        return _truth(name, value)
    if wanted.startswith("str"):
        _check_text(name, value)
    if wanted.startswith(("Serializer", "Deserializer")) and not callable(value):
        raise OptionError(f"{name} is {value!r}: a callable, such as str.encode or bytes.decode")
    if wanted.startswith("tuple"):
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise OptionError(f"{name} is {value!r}: a list of objects")
        return tuple(value)
    return value


def _check_text(name: str, value: Any) -> None:
    """Raises OptionError where no request could carry it."""
    if not isinstance(value, str):
        raise OptionError(f"{name} is {value!r}, which is no text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise OptionError(f"{name} is {value!r}, which cannot be encoded as UTF-8") from None
    if size > TEXT_BYTES_MAX:
        raise OptionError(f"{name} has {size} bytes: at most {TEXT_BYTES_MAX}")


def _number(name: str, value: Any, *, is_whole: bool) -> int | float:
    found = value
    if isinstance(value, str):
        try:
            found = int(value) if is_whole else float(value)
        except ValueError:
            raise OptionError(f"{name} is {value!r}, which is no number") from None
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
        raise OptionError(f"{name} is {value!r}, which is no number")
    if is_whole and found != int(found):
        raise OptionError(f"{name} is {value!r}, which is no whole number")
    most = INT64_MAX if name.replace(".", "_").replace("-", "_") in _LONG else INT32_MAX
    if found > most:
        raise OptionError(f"{name} is {value!r}: at most {most}")
    return int(found) if is_whole else found


def _truth(name: str, value: Any) -> bool:
    if isinstance(value, str):
        if value.lower() not in ("true", "false"):
            raise OptionError(f"{name} is {value!r}: true or false")
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise OptionError(f"{name} is {value!r}: True or False")
    return value


def addresses_of(servers: Any) -> tuple[str, tuple[Address, ...]]:
    """The transport and the bootstrap servers: one address, a list of them or a comma list. "kafka" is TCP.

    `host:port` and `kafka://host:port` are TCP; the schemes of TRANSPORTS are kept as they are written.

    Raises:
        OptionError: none is there, one does not parse, nothing is known of a scheme, or they are of several transports.
    """
    if not isinstance(servers, str) and not isinstance(servers, Iterable):
        raise OptionError(f"bootstrap.servers is {servers!r}: host:port, or a list of them")
    listed = servers.split(",") if isinstance(servers, str) else list(servers)
    found: list[Address] = []
    schemes = set()
    for each in listed:
        text = str(each).strip()
        if not text:
            continue
        scheme, _, place = text.partition("://") if "://" in text else ("kafka", "", text)
        scheme = "kafka" if scheme.lower() in TCP_SCHEMES else scheme.lower()
        schemes.add(scheme)
        if scheme in TRANSPORTS:
            if not place:
                raise OptionError(f"bootstrap.servers: {text!r} names no place")
            found.append((text, 0))
            continue
        if scheme != "kafka":
            known = ", ".join(f"{each}://" for each in TRANSPORTS)
            raise OptionError(
                f"bootstrap.servers: no transport for {scheme}://; kafka://host:port is TCP, others are {known}"
            )
        match = _ADDRESS.fullmatch(text)
        if match is None or not 0 <= int(match["port"] or DEFAULT_PORT) <= 65_535:
            raise OptionError(f"bootstrap.servers: {text!r} is not host:port")
        found.append((match["host"].strip("[]") or "localhost", int(match["port"] or DEFAULT_PORT)))
    if not found:
        raise OptionError("bootstrap.servers names no server")
    if len({each.split("+")[0] for each in schemes}) > 1:
        raise OptionError(
            f"bootstrap.servers: one transport for a client, not {' and '.join(sorted(schemes))}"
        )
    return min(schemes), tuple(found)


def check_topics(given: Iterable[Any]) -> None:
    """Check the topics that a consumer is made with.

    Raises:
        OptionError: there are options among them, as confluent-kafka's consumer takes them.
    """
    if any(isinstance(each, Mapping) for each in given):
        raise OptionError("a consumer takes options as config={…} or by name; what comes first are topics")


def pattern_of(pattern: Any) -> re.Pattern[str]:
    """The regular expression of a subscription.

    Raises:
        OptionError: it is none. Found later, it would stop the thread that matches names.
    """
    given = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if not isinstance(given, str):
        raise OptionError(f"pattern is {pattern!r}: a regular expression as text")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise OptionError(f"pattern is {given!r}, which is no regular expression: {error}") from None


def records_max_of(given: Any) -> int:
    """How many records a poll may give, as callers write it.

    Raises:
        OptionError: it is no whole number from 1 on.
    """
    try:
        found = -1 if isinstance(given, bool) else index(given)
    except TypeError:
        found = -1
    if found < 1:
        raise OptionError(f"max_records is {given!r}: a whole number from 1 on, or None")
    return found


def _at_least(options: ConnectionOptions, name: str, least: int) -> None:
    value = getattr(options, name)
    if value < least:
        raise OptionError(f"{name.replace('_', '.')} is {value}: at least {least}")
