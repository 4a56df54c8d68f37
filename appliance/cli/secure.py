"""`appliance serve --secure`: which options it sets, and the client settings that it prints.

One listener with TLS that wants a client certificate; the authorizer on; the administrator of the demonstration
certificates (demonstration_certificates.py) is the only one who may do anything.

A further way to log in, such as an administrator with SCRAM, is a further listener in `options_of`, a principal in
SUPER_USERS, and a group of lines in `client_text`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from appliance.cli.demonstration_certificates import (
    ADMIN,
    DIRECTORY,
    WARN_DAYS,
    Certificates,
    prepare,
)
from appliance.config import Settings
from appliance.config.sections.listeners import host_and_port
from appliance.control.supervisor.permissions import check_directory, check_path, readers_group
from appliance.errors import ConfigurationError, OperatorFault

LISTENER: Final = "SSL"
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SUPER_USERS: Final = (f"User:CN={ADMIN}",)

REPLACED: Final = ("host", "port", "advertised.host")
"""Options that the listener takes over."""
_CHOSEN: Final = frozenset(
    {
        "listeners",
        "listener.security.protocol.map",
        "advertised.listeners",
        "insecure",
        "authorizer.class.name",
        "super.users",
        "ssl.keystore.location",
        "ssl.certificate.file",
        "ssl.key.file",
        "ssl.truststore.location",
        "ssl.client.auth",
        "ssl.principal.mapping.rules",
    }
)
_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::", ""})


def options_of(asked: Settings) -> dict[str, str]:
    """Return the options of a secure start, for settings without them.

    Raises:
        ConfigurationError: one of them is set already.
    """
    if both := sorted(_CHOSEN & set(asked.configured)):
        raise ConfigurationError(
            f"--secure sets {both[0]} itself: remove the option, or start without --secure"
        )
    place = asked.data_dir / DIRECTORY
    chosen = {
        "listeners": f"{LISTENER}://{host_and_port(asked.host, asked.port)}",
        "ssl.certificate.file": str(place / "server.pem"),
        "ssl.key.file": str(place / "server.key"),
        "ssl.truststore.location": str(place / "ca.pem"),
        "ssl.client.auth": "required",
        "authorizer.class.name": AUTHORIZER,
        "super.users": ";".join(SUPER_USERS),
    }
    if asked.advertised_host is not None:
        told = host_and_port(asked.advertised_host, asked.port)
        chosen["advertised.listeners"] = f"{LISTENER}://{told}"
    return chosen


def certificates_for(settings: Settings) -> Certificates:
    """Make the data directory and the certificates, where they are not there; return where they are.

    Raises:
        OperatorFault: see `demonstration_certificates.prepare`; or the data directory is another user's.
    """
    data_dir = settings.data_dir
    check_path(data_dir, "data directory")
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_directory(data_dir, "data directory", group=readers_group(settings), has_logs=False)
    except OSError as error:
        raise OperatorFault(f"data directory {data_dir}: {error.strerror}") from error
    listener = settings.main_listener
    hosts = [listener.host, listener.advertised_host or ""]
    certificates = prepare(data_dir, [host for host in hosts if host not in _EVERY_ADDRESS])
    write_client_files(certificates, settings)
    return certificates


def java_properties(certificates: Certificates) -> list[str]:
    """Return lines for Java clients and for Kafka's own tools."""
    return [
        "security.protocol=SSL",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={_java(certificates.ca)}",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={_java(certificates.admin_keystore)}",
    ]


def librdkafka_settings(certificates: Certificates, settings: Settings) -> dict[str, str]:
    """Return settings for librdkafka: confluent-kafka, kcat and others."""
    certificate, key = certificates.admin
    return {
        "bootstrap.servers": address_of(settings),
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates.ca),
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
    }


def address_of(settings: Settings) -> str:
    """Return where clients on this host connect."""
    listener = settings.main_listener
    return host_and_port(listener.client_host, listener.client_port)


def _java(path: Path) -> str:
    return str(path).replace("\\", "\\\\")


def write_client_files(certificates: Certificates, settings: Settings) -> None:
    """Write what is printed into two files beside the certificates, for commands that take a file.

    Only they are replaced at a later start, because the port may be another one.
    """
    texts = {
        "client.properties": java_properties(certificates),
        "kcat.conf": [
            f"{name}={value}" for name, value in librdkafka_settings(certificates, settings).items()
        ],
    }
    for name, lines in texts.items():
        path = certificates.directory / name
        temporary = path.with_name(f"{name}.new")
        temporary.unlink(missing_ok=True)
        temporary.touch(mode=0o600, exist_ok=False)
        temporary.write_text("".join(f"{line}\n" for line in lines))
        temporary.replace(path)


def client_text(certificates: Certificates, settings: Settings, command: str) -> str:
    """Return what a person may copy once the broker answers."""
    address = address_of(settings)
    properties = shlex.quote(str(certificates.directory / "client.properties"))
    kcat = f"kcat -F {shlex.quote(str(certificates.directory / 'kcat.conf'))}"
    valid = certificates.valid_until.date().isoformat()
    dictionary = json.dumps(librdkafka_settings(certificates, settings), indent=4).splitlines()
    return "\n".join(
        [
            f"Only clients with the administrator's certificate get in. It is valid until {valid}.",
            "Try it from another terminal:",
            f"  printf 'hello\\n' | {kcat} -P -t demo",
            f"  {kcat} -C -e -t demo",
            f"  {command} topics list --bootstrap {address} --command-config {properties}",
            f"  kafka-topics.sh --bootstrap-server {address} --command-config {properties} --list",
            f"Java clients (in {properties}), with bootstrap.servers={address}:",
            *(f"  {line}" for line in java_properties(certificates)),
            "confluent-kafka:",
            *(f"  {line}" for line in dictionary),
        ]
    )


def expiry_text(certificates: Certificates, now: datetime | None = None) -> str:
    """Return a line for certificates that expire soon; empty for others."""
    left = certificates.days_left(datetime.now(UTC) if now is None else now)
    if left > WARN_DAYS:
        return ""
    return (
        f"appliance: a certificate in {certificates.directory} expires in {left} days: stop the appliance, remove its"
        " .pem and .key, and start it again"
    )


def made_text(certificates: Certificates) -> str:
    """Return a line about what was made now; empty if nothing was."""
    if not certificates.made:
        return ""
    return f"appliance: made new certificates in {certificates.directory}: {_listed(certificates.made)}"


def _listed(words: Collection[str]) -> str:
    return ", ".join(words)
