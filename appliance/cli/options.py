"""Flags that several commands share, and how their texts are read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

F = TypeVar("F", bound=Callable[..., Any])

DURATION: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
"""Days, hours, minutes and seconds: `2d12h`."""
_UNITS_MS: Final = (86_400_000, 3_600_000, 60_000, 1_000)
_DURATION_MS_MAX: Final = 2**63 - 1

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE: Final = "APPLIANCE_BOOTSTRAP"
BOOTSTRAP_SERVERS: Final = "bootstrap.servers"

bootstrap_option = click.option(
    "--bootstrap",
    "-b",
    metavar="HOST:PORT",
    default=DEFAULT_BOOTSTRAP,
    envvar=BOOTSTRAP_VARIABLE,
    show_default=True,
    help="Address of a broker; several separated by commas. Also $APPLIANCE_BOOTSTRAP.",
)

CLIENT_OPTIONS: Final = "appliance.cli.client_options"
"""Under this key click's context keeps what `-X`, `--client-config` and `--command-config` said, as settings of
librdkafka (client_settings.py)."""
_FILE: Final = "appliance.cli.client_file"


def _read_client_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Reads `name=value` lines, as librdkafka's and Kafka's own tools take them; `#` begins a comment."""
    if path is None:
        return
    _take_file(context, "--client-config")
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"{path}: line {number}: must be NAME=VALUE")
        found[_one_name(name.strip())] = value.strip()
    if (
        BOOTSTRAP_VARIABLE in os.environ
        and context.get_parameter_source(parameter.name or "") is ParameterSource.ENVIRONMENT
    ):
        # Of two variables of the environment, the one that names the broker wins.
        found.pop(BOOTSTRAP_SERVERS, None)
    # -X wins, whichever click reads first.
    context.meta[CLIENT_OPTIONS] = found | context.meta.get(CLIENT_OPTIONS, {})


def _read_command_file(context: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Reads a properties file of Kafka's own tools."""
    if path is None:
        return
    _take_file(context, "--command-config")
    from appliance.cli.client_settings import from_kafka, read_properties

    found = from_kafka(path, read_properties(path))
    context.meta[CLIENT_OPTIONS] = found | context.meta.get(CLIENT_OPTIONS, {})


def _one_name(name: str) -> str:
    """librdkafka has two names for the addresses of brokers."""
    return BOOTSTRAP_SERVERS if name == "metadata.broker.list" else name


def says_how_to_connect() -> bool:
    """Whether the flags of the command say how to speak to a broker."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(CLIENT_OPTIONS))


def _take_file(context: click.Context, flag: str) -> None:
    if (other := context.meta.setdefault(_FILE, flag)) != flag:
        raise click.UsageError(f"{other} and {flag} exclude each other: give one of them")


def _read_client_options(context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> None:
    said = {_one_name(name): value for name, value in (name_and_value("-X", text) for text in texts)}
    context.meta[CLIENT_OPTIONS] = context.meta.get(CLIENT_OPTIONS, {}) | said


def client_options(command: F) -> F:
    """The flags of a command that connects: where the broker is, and how to speak to it."""
    return security_options(bootstrap_option(command))


def security_options(command: F) -> F:
    """The flags that say how to speak to a broker."""
    for decorate in (
        click.option(
            "--command-config",
            metavar="FILE",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            expose_value=False,
            callback=_read_command_file,
            help="A properties file of Kafka's own tools: security.protocol, sasl.*, ssl.* with PEM files.",
        ),
        click.option(
            "-X",
            "--client-option",
            metavar="NAME=VALUE",
            multiple=True,
            expose_value=False,
            callback=_read_client_options,
            help="A librdkafka setting, such as security.protocol=SSL; repeatable.",
        ),
        click.option(
            "--client-config",
            metavar="FILE",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            envvar="APPLIANCE_CLIENT_CONFIG",
            expose_value=False,
            callback=_read_client_file,
            help="A file of librdkafka settings, one NAME=VALUE per line. Also $APPLIANCE_CLIENT_CONFIG.",
        ),
    ):
        command = decorate(command)
    return command


data_dirs_option = click.option(
    "--data-dir",
    "data_dirs",
    metavar="DIR",
    multiple=True,
    help="The data directory; repeat it for log directories of several slots.  [default: ./data]",
)


def data_paths(data_dirs: tuple[str, ...]) -> tuple[str, ...]:
    """What `--data-dir` named, or the directory that a broker without settings keeps."""
    # Other commands that take their flags from here need no settings.
    from appliance.config import load_settings

    return data_dirs or (str(load_settings(None, {}).data_dir),)


def duration_ms(_context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return a flag's duration in milliseconds; None where it is not given.

    Raises:
        click.BadParameter: it is no duration, or longer than the protocol has room for.
    """
    if text is None:
        return None
    match = DURATION.fullmatch(text)
    found = sum(int(n or 0) * unit for n, unit in zip(match.groups(), _UNITS_MS, strict=True)) if match else 0
    if not 0 < found <= _DURATION_MS_MAX:
        raise click.BadParameter(f"{text}: must be a duration such as 90m or 2d12h", param=parameter)
    return found


_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.))|([^\\]+)", re.DOTALL)
_ESCAPED: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def unescaped(flag: str, text: str) -> bytes:
    """Return the bytes of a text with `\\n \\t \\r \\0 \\xHH` and `\\\\`, as a user types a separator in a shell.

    Raises:
        click.UsageError: another escape, or a backslash at the end.
    """
    found, position = b"", 0
    while position < len(text):
        match = _ESCAPE.match(text, position)
        if match is None or (match[2] is not None and match[2] not in _ESCAPED):
            raise click.UsageError(f"{flag} {text!r}: the escapes are \\n \\t \\r \\0 \\xHH and \\\\")
        found += (
            bytes.fromhex(match[1]) if match[1] else _ESCAPED[match[2]] if match[2] else match[3].encode()
        )
        position = match.end()
    return found


def name_and_value(flag: str, text: str) -> tuple[str, str]:
    """`NAME=VALUE` split at the first equals sign.

    Raises:
        click.UsageError: there is none, or no name before it.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.UsageError(f"{flag} {text!r}: must be NAME=VALUE")
    return name.strip(), value


def setting_and_value(flag: str, text: str) -> tuple[str, str]:
    """As `name_and_value`, with a unit turned into the plain number that a broker takes: `7d`, `64 MiB`.

    A text that is no amount of the setting's unit stays as it is, for the broker to judge.

    Raises:
        click.UsageError: as there.
    """
    from appliance.config.units import plain_value

    name, value = name_and_value(flag, text)
    return name, plain_value(name, value)
