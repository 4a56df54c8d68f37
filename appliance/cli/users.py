"""`appliance users`: list, describe, add, delete: the users that authenticate with SCRAM."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.client import admin_client, answer_of, asked
from appliance.cli.confirming import require_yes, yes_option
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.cli.options import client_options, name_and_value
from appliance.cli.output import json_option, print_json, print_table
from appliance.errors import OperatorFault
from appliance.protocol.errors import ErrorCode
from appliance.sasl.scram_credential import DIGESTS, ITERATIONS_MAX, ITERATIONS_MIN

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

PASSWORD_BYTES_MAX: Final = 64 << 10

mechanism_option = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(tuple(DIGESTS), case_sensitive=False),
    multiple=True,
    help="Only for this mechanism; repeatable.  [default: all]",
)


@click.group(cls=AliasedGroup, short_help="Show and change the users that log in with SCRAM.")
def users() -> None:
    """Show and change the users that authenticate with SCRAM on listeners with SASL.

    The users of PLAIN are in the file that `sasl.plain.users.file` names.
    """


@users.command(name="list")
@json_option
@client_options
def list_users(*, as_json: bool, bootstrap: str) -> None:
    """List the users, and what they can log in with."""
    _show(_described(admin_client(bootstrap), None), as_json=as_json)


@users.command()
@click.argument("names", metavar="USER...", nargs=-1, required=True)
@json_option
@client_options
def describe(*, names: tuple[str, ...], as_json: bool, bootstrap: str) -> None:
    """Show what users can log in with. No password or key is shown."""
    client = admin_client(bootstrap)
    rows = [row for name in dict.fromkeys(names) for row in _described(client, name)]
    _show(rows, as_json=as_json)


@users.command()
@click.argument("name", metavar="USER")
@mechanism_option
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_MIN,
    show_default=True,
    help="Rounds of the hash function; more make it slower to try passwords.",
)
@click.option(
    "--password-file",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    help="Read the password from the first line of FILE; - is standard input. Without it you are asked.",
)
@click.option(
    "--data-dir",
    metavar="DIR",
    help="Write to this data directory, of an appliance that does not run: for the first user.",
)
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The same, with the options of this TOML file.",
)
@click.option(
    "--set", "overrides", metavar="NAME=VALUE", multiple=True, help="The same, with this option; repeatable."
)
@json_option
@client_options
def add(
    *,
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    password_file: Path | None,
    data_dir: str | None,
    config_path: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
    bootstrap: str,
) -> None:
    """Add USER, or give USER another password. The command line never holds the password."""
    wanted = tuple(dict.fromkeys(each.upper() for each in mechanisms)) or tuple(DIGESTS)
    if not name:
        raise click.BadParameter("must not be empty", param_hint="USER")
    if data_dir is not None or config_path is not None or overrides:
        given = dict(name_and_value("--set", text) for text in overrides)
        given |= {} if data_dir is None else {"data.dir": data_dir}
        _add_offline(
            name,
            _password(password_file),
            wanted,
            iterations=iterations,
            config_path=config_path,
            given=given,
        )
    else:
        client = admin_client(bootstrap)
        _add_online(client, name, _password(password_file), wanted, iterations=iterations)
    if as_json:
        print_json({"user": name, "mechanisms": list(wanted), "result": "added"})
    else:
        click.echo(f"user {name}: {', '.join(wanted)}")


@users.command()
@click.argument("name", metavar="USER")
@mechanism_option
@yes_option
@json_option
@client_options
def delete(*, name: str, mechanisms: tuple[str, ...], yes: bool, as_json: bool, bootstrap: str) -> None:
    """Delete USER. Connections that are open stay open until they end or must authenticate again.

    The command asks for confirmation; without a terminal it requires --yes.
    """
    from confluent_kafka.admin import ScramMechanism, UserScramCredentialDeletion  # type: ignore[attr-defined]

    if not yes:
        require_yes("users delete", f"Delete the user {name}?")
    client = admin_client(bootstrap)
    there = [row["mechanism"] for row in _described(client, name)]
    wanted = [each.upper() for each in mechanisms] or there
    for mechanism in dict.fromkeys(wanted):
        kind = ScramMechanism[mechanism.replace("-", "_")]
        _altered(client, name, UserScramCredentialDeletion(name, kind))
    if as_json:
        print_json({"user": name, "mechanisms": wanted, "result": "deleted"})
    else:
        click.echo(f"user {name} deleted: {', '.join(wanted)}")


# With a broker


def _described(client: AdminClient, name: str | None) -> list[dict[str, Any]]:
    """Return a row for each credential, of one user or of all."""
    names = None if name is None else [name]
    found: Any = asked(
        lambda: client.describe_user_scram_credentials(names, request_timeout=REQUEST_TIMEOUT_S)
    )
    descriptions = answer_of(found) if name is None else {name: _description(name, found[name])}
    return [
        {
            "user": user,
            "mechanism": info.mechanism.name.replace("_", "-"),
            "iterations": info.iterations,
        }
        for user, description in sorted(descriptions.items())
        for info in description.scram_credential_infos
    ]


def _description(name: str, future: Any) -> Any:
    try:
        return answer_of(future)
    except BrokerError as fault:
        # The broker says so, too, but librdkafka adds bytes that follow this text in the answer.
        if ErrorCode.RESOURCE_NOT_FOUND.name in str(fault):
            raise BrokerError(f"there is no user {name}") from fault
        raise


def _add_online(
    client: AdminClient, name: str, password: str, mechanisms: Iterable[str], *, iterations: int
) -> None:
    from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion  # type: ignore[attr-defined]

    # A request may name a user once.
    for mechanism in mechanisms:
        info = ScramCredentialInfo(ScramMechanism[mechanism.replace("-", "_")], iterations)
        _altered(client, name, UserScramCredentialUpsertion(name, info, password.encode()))


def _altered(client: AdminClient, name: str, change: Any) -> None:
    futures = client.alter_user_scram_credentials([change], request_timeout=REQUEST_TIMEOUT_S)
    try:
        answer_of(futures[name])
    except BrokerError as fault:
        raise BrokerError(f"user {name}: {fault}") from fault


def _show(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
    elif rows:
        print_table(("USER", "MECHANISM", "ITERATIONS"), [tuple(row.values()) for row in rows])
    else:
        click.echo("no users", err=True)


# Without a broker


def _add_offline(
    name: str,
    password: str,
    mechanisms: Iterable[str],
    *,
    iterations: int,
    config_path: Path | None,
    given: dict[str, str],
) -> None:
    from appliance.clock import SystemClock
    from appliance.config import load_settings
    from appliance.control.controller.stopped_users import add_credentials
    from appliance.sasl.scram_credential import new_credential

    settings = load_settings(config_path, given)
    credentials = [new_credential(name, each, password, iterations=iterations) for each in mechanisms]
    add_credentials(settings, credentials, SystemClock())


# Passwords


def _password(path: Path | None) -> str:
    """Return the password, of a file, of standard input, or as a person types it twice."""
    if path is None and sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return str(password)
    try:
        if path is None or str(path) == "-":
            data = sys.stdin.buffer.readline(PASSWORD_BYTES_MAX)
        else:
            with path.open("rb") as file:
                data = file.readline(PASSWORD_BYTES_MAX)
        password = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise OperatorFault("the password is not UTF-8") from None
    if not password:
        raise OperatorFault("the password is empty: write it in one line")
    return password
