"""confluent-kafka as the commands use it: quiet, quick to say that nobody answers, one sentence per fault."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from appliance.cli.client_settings import TOKEN_AUTH, native_options
from appliance.cli.connecting import (
    CONNECT_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    BrokerError,
    said_options,
    split_address,
)
from appliance.cli.options import CLIENT_OPTIONS
from appliance.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

T = TypeVar("T")

_NOT_TYPED: Final = (ParameterSource.DEFAULT, ParameterSource.ENVIRONMENT)

# Groups are never used: partitions are assigned, nothing is committed. librdkafka wants a name all the same.
UNUSED_GROUP: Final = "appliance-command-line"


def admin_client(bootstrap: str) -> AdminClient:
    """A client for topics and settings; raises BrokerError when nobody listens at `bootstrap`."""
    from confluent_kafka.admin import AdminClient

    return made(lambda: AdminClient({**_common(bootstrap), **_librdkafka_options()}))


def producer(bootstrap: str, options: Mapping[str, object]) -> Producer:
    """A producer with `options` on top; raises BrokerError when nobody listens at `bootstrap`."""
    from confluent_kafka import Producer

    return made(lambda: Producer({**_common(bootstrap), **options, **_librdkafka_options()}))


def consumer(bootstrap: str, options: Mapping[str, object]) -> Consumer:
    """A consumer with `options` on top; raises BrokerError when nobody listens at `bootstrap`."""
    from confluent_kafka import Consumer

    return made(
        lambda: Consumer(
            {
                "group.id": UNUSED_GROUP,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                **_common(bootstrap),
                **options,
                **_librdkafka_options(),
            }
        )
    )


def made(make: Callable[[], T]) -> T:
    """The client that `make` makes.

    Raises:
        click.UsageError: librdkafka does not take a setting that `-X` or `--client-config` gave.
    """
    from confluent_kafka import KafkaException

    try:
        return make()
    except KafkaException as fault:
        error = fault.args[0]
        raise click.UsageError(f"client configuration: {error.str()}") from fault


def _common(bootstrap: str) -> dict[str, Any]:
    bootstrap = bootstrap_of(bootstrap)
    require_listener(bootstrap)
    from appliance.cli.request import require_login  # its codec takes time to load, also for `--help`

    require_login(bootstrap)
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "appliance",
        "log_level": 0,  # librdkafka writes to standard error on its own; errors reach us anyway
        "allow.auto.create.topics": False,
        # librdkafka tries ::1 first for "localhost", waits, and most brokers listen on IPv4 only.
        "broker.address.family": "v4" if _has_ipv4(bootstrap) else "any",
    }


def _librdkafka_options() -> dict[str, str]:
    """What the flags said, for librdkafka.

    Raises:
        click.UsageError: it cannot speak as the flags say.
    """
    said = said_options()
    if said.pop(TOKEN_AUTH, "false").lower() == "true":
        raise click.UsageError(
            "client configuration: tokenauth: librdkafka cannot log in with a delegation token; this command needs"
            " another login"
        )
    return said


def native_client_options(*names: str) -> dict[str, Any]:
    """How the native client is to speak to brokers, and what the flags say of `names`, Kafka's names of options.

    Raises:
        click.UsageError: it cannot speak as the flags say.
    """
    said = said_options()
    chosen = {name.replace(".", "_"): said[name] for name in ("client.id", *names) if name in said}
    return native_options(said) | chosen


def bootstrap_of(bootstrap: str) -> str:
    """`bootstrap`, or `bootstrap.servers` of the client configuration where the command line has no --bootstrap.

    `-X bootstrap.servers` wins over $APPLIANCE_BOOTSTRAP, because a command must not write to another broker than the
    one on its command line.
    """
    context = click.get_current_context(silent=True)
    if context is None or context.get_parameter_source("bootstrap") not in _NOT_TYPED:
        return bootstrap
    return str(context.meta.get(CLIENT_OPTIONS, {}).get("bootstrap.servers", bootstrap))


def _has_ipv4(bootstrap: str) -> bool:
    """Ask as librdkafka asks: on a host without a network, AI_ADDRCONFIG finds no IPv4 address, not even loopback."""
    for address in bootstrap.split(","):
        host, _ = split_address(address)
        try:
            socket.getaddrinfo(host, None, socket.AF_INET, flags=socket.AI_ADDRCONFIG)
        except OSError:
            return False
    return True


def require_listener(bootstrap: str) -> None:
    """Returns as soon as one of the addresses accepts a connection.

    librdkafka retries for as long as it is asked to; a person who mistyped a port should not wait for that.

    Raises:
        BrokerError: none of them does; the text gives each one's reason.
    """
    reasons = []
    for address in bootstrap.split(","):
        host, port = split_address(address)
        try:
            socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
        except OSError as fault:
            reasons.append(f"{address.strip()}: {fault.strerror or fault}")
        else:
            return
    raise BrokerError(f"no broker answers at {'; '.join(reasons)}")


def refusal(error: KafkaError) -> str:
    """One sentence for a person, with Kafka's name of the error for a search.

    The broker's own text wins. Where it sent none, librdkafka fills in its own, and the table of Kafka's errors says it
    better. librdkafka's own errors have negative codes and stand for what happened on this side of the connection.
    """
    code, text = error.code(), error.str().rstrip(".")
    if code in LOCAL_ERRORS:
        return LOCAL_ERRORS[code]
    if code < 0:
        return text.removeprefix("Local: ")
    try:
        known = ErrorCode(code)
    except ValueError:
        return f"{text} (error {code})"
    return f"{known.message.rstrip('.') if 'Broker: ' in text else text} ({known.name})"


LOCAL_ERRORS: Final[Mapping[int, str]] = {
    -199: "librdkafka received an answer that it cannot decode",
    -195: "the connection to the broker broke: does the broker require TLS or a login (security.protocol)?",
    -193: "the broker's host name has no address",
    -192: "the broker did not acknowledge the record in time",
    -190: "there is no such partition",
    -188: "there is no such topic",
    -187: "no broker can be reached",
    -185: "the broker did not answer in time",
    -181: "TLS failed; see ssl.* of the client configuration",
    -169: "the broker refused the login",
}
"""What librdkafka's own errors mean, by code. Source of the codes: `rdkafka.h`, rd_kafka_resp_err_t."""


def answer_of(future: Future[T]) -> T:
    """What an admin request came to.

    Raises:
        BrokerError: with the broker's reason.
    """
    return asked(lambda: future.result(timeout=REQUEST_TIMEOUT_S))


def asked(request: Callable[[], T]) -> T:
    """The answer of a client call, its KafkaException turned into a BrokerError."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        return request()
    except KafkaException as fault:
        error = fault.args[0]
        raise BrokerError(refusal(error) if isinstance(error, KafkaError) else str(error)) from fault
    except TimeoutError as fault:
        raise BrokerError(f"no answer within {REQUEST_TIMEOUT_S:.0f} s") from fault
