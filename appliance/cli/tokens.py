"""`appliance tokens`: create, list, renew, expire: delegation tokens, to log in with in place of a password."""

from __future__ import annotations

import base64
import binascii
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.cluster_view import first_that_answers, refusal_of
from appliance.cli.connecting import BrokerError
from appliance.cli.options import client_options, duration_ms
from appliance.cli.output import json_option, print_json, print_table, say
from appliance.cli.request import request
from appliance.errors import OperatorFault
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from appliance.protocol.apis.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from appliance.protocol.apis.expire_delegation_token import ExpireDelegationTokenRequest
from appliance.protocol.apis.renew_delegation_token import RenewDelegationTokenRequest

_PASSWORD_BYTES_MAX: Final = 4096
_NOW: Final = -1
_DEFAULT: Final = -1


@click.group(cls=AliasedGroup, short_help="Create, list, renew and end delegation tokens.")
def tokens() -> None:
    """Create, list, renew and end delegation tokens, which clients log in with in place of a password.

    The option `delegation.token.secret.key` of the broker turns tokens on. These commands need a login
    (--command-config or -X). This login must not use a token.
    """


def _principal(_context: click.Context, parameter: click.Parameter, given: Any) -> Any:
    for text in given if isinstance(given, tuple) else [given]:
        kind, colon, name = (text or "User:x").partition(":")
        if not (kind and colon and name):
            raise click.BadParameter(f"{text}: must be TYPE:NAME, for example User:alice", param=parameter)
    return given


def _password_of(path: Path | None) -> bytes:
    """Return the HMAC of a token from the first line of a file or of standard input."""
    if path is None or str(path) == "-":
        if path is None and sys.stdin.isatty():
            text = str(click.prompt("Password of the token", hide_input=True, err=True))
        else:
            text = sys.stdin.buffer.readline(_PASSWORD_BYTES_MAX).decode(errors="replace")
    else:
        with path.open("rb") as file:
            text = file.readline(_PASSWORD_BYTES_MAX).decode(errors="replace")
    try:
        found = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not found:
        raise OperatorFault("this is no password of a token: it must be one line of base64")
    return found


password_option = click.option(
    "--password-file",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    help="Read the password of the token from the first line of FILE; - is standard input. Without it you are asked.",
)


@tokens.command()
@click.option("--owner", metavar="PRINCIPAL", callback=_principal, help="The owner, if it is not you.")
@click.option(
    "--renewer",
    "renewers",
    metavar="PRINCIPAL",
    multiple=True,
    callback=_principal,
    help="Who may renew the token and end it, beside its owner; repeatable.",
)
@click.option(
    "--max-lifetime",
    metavar="DURATION",
    callback=duration_ms,
    help="Time after which the token ends at the latest, such as 30m or 2d.  [default: the broker's]",
)
@json_option
@client_options
def create(
    *, owner: str | None, renewers: tuple[str, ...], max_lifetime: int | None, as_json: bool, bootstrap: str
) -> None:
    """Create a token, and print its id and its password. Anybody who knows both can log in as the owner."""
    kind, _, name = (owner or "").partition(":")
    body = CreateDelegationTokenRequest(
        tuple(CreatableRenewers(*each.split(":", 1)) for each in renewers),
        _DEFAULT if max_lifetime is None else max_lifetime,
        kind or None,
        name or None,
    )
    told = _asked(first_that_answers(bootstrap), ApiKey.CREATE_DELEGATION_TOKEN, body)
    row = {
        "id": told.token_id,
        "password": base64.b64encode(told.hmac).decode(),
        "owner": f"{told.principal_type}:{told.principal_name}",
        "requester": f"{told.token_requester_principal_type}:{told.token_requester_principal_name}",
        "expires": _time(told.expiry_timestamp_ms),
        "ends": _time(told.max_timestamp_ms),
    }
    if as_json:
        print_json(row)
    else:
        for field, value in row.items():
            say(f"{field}: {value}")


@tokens.command(name="list")
@click.option(
    "--owner",
    "owners",
    metavar="PRINCIPAL",
    multiple=True,
    callback=_principal,
    help="Only tokens that this principal owns, requested or may renew; repeatable.",
)
@json_option
@client_options
def list_tokens(*, owners: tuple[str, ...], as_json: bool, bootstrap: str) -> None:
    """List the tokens that you may see, without their passwords."""
    named = tuple(DescribeDelegationTokenOwner(*each.split(":", 1)) for each in owners)
    body = DescribeDelegationTokenRequest(named or None)
    told = _asked(first_that_answers(bootstrap), ApiKey.DESCRIBE_DELEGATION_TOKEN, body)
    rows = [
        {
            "id": each.token_id,
            "owner": f"{each.principal_type}:{each.principal_name}",
            "requester": f"{each.token_requester_principal_type}:{each.token_requester_principal_name}",
            "renewers": [f"{one.principal_type}:{one.principal_name}" for one in each.renewers],
            "issued": _time(each.issue_timestamp),
            "expires": _time(each.expiry_timestamp),
            "ends": _time(each.max_timestamp),
        }
        for each in told.tokens
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(
            ("ID", "OWNER", "REQUESTER", "RENEWERS", "ISSUED", "EXPIRES", "ENDS"),
            [
                tuple(",".join(value) or "-" if isinstance(value, list) else value for value in row.values())
                for row in rows
            ],
        )
    else:
        click.echo("no tokens", err=True)


@tokens.command()
@password_option
@click.option(
    "--period",
    metavar="DURATION",
    callback=duration_ms,
    help="Time from now that the token is to live.  [default: the broker's]",
)
@json_option
@client_options
def renew(*, password_file: Path | None, period: int | None, as_json: bool, bootstrap: str) -> None:
    """Renew a token: it lives longer, but not beyond its maximum lifetime."""
    body = RenewDelegationTokenRequest(_password_of(password_file), _DEFAULT if period is None else period)
    told = _asked(first_that_answers(bootstrap), ApiKey.RENEW_DELEGATION_TOKEN, body)
    if as_json:
        print_json({"expires": _time(told.expiry_timestamp_ms)})
    else:
        click.echo(f"the token expires at {_time(told.expiry_timestamp_ms)}")


@tokens.command()
@password_option
@click.option(
    "--in", "period", metavar="DURATION", callback=duration_ms, help="Time from now.  [default: at once]"
)
@json_option
@client_options
def expire(*, password_file: Path | None, period: int | None, as_json: bool, bootstrap: str) -> None:
    """End a token, now or earlier than it would. Connections that are open last as long as before."""
    body = ExpireDelegationTokenRequest(_password_of(password_file), _NOW if period is None else period)
    told = _asked(first_that_answers(bootstrap), ApiKey.EXPIRE_DELEGATION_TOKEN, body)
    ended = period is None
    if as_json:
        print_json({"ended": ended, "expires": _time(told.expiry_timestamp_ms)})
        return
    click.echo("the token is ended" if ended else f"the token expires at {_time(told.expiry_timestamp_ms)}")


def _asked(address: str, api: ApiKey, body: Any) -> Any:
    told = request(address, api, api.max_version, body)
    if told.error_code:
        raise BrokerError(f"tokens: {refusal_of(told.error_code, None)}")
    return told


def _time(milliseconds: int) -> str:
    """Return a time as people write it, for example `2026-03-01T12:00:00Z`."""
    try:
        return f"{datetime.fromtimestamp(milliseconds // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return "never"
