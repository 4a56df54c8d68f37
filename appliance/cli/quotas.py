"""`appliance quotas`: list, set, remove."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from appliance.access.client_quotas import CLIENT_ID, IP, IP_KEYS, USER, USER_KEYS
from appliance.cli.aliases import AliasedGroup
from appliance.cli.cluster_view import first_that_answers, refusal_of
from appliance.cli.connecting import BrokerError
from appliance.cli.options import client_options
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.request import request
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    QuotaAlteration,
    QuotaEntity,
    QuotaOperation,
)
from appliance.protocol.apis.describe_client_quotas import (
    DescribeClientQuotasRequest,
    MatchType,
    QuotaFilterComponent,
)

VERSION: Final = 1
_PARTS: Final = ((USER, "user"), (CLIENT_ID, "client_id"), (IP, "ip"))
_DEFAULT: Final = "<default>"

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=AliasedGroup, short_help="Show and change quotas of users, client ids and addresses.")
def quotas() -> None:
    """Show and change quotas: how much users, client ids and addresses may use.

    \b
    producer_byte_rate         bytes a second that a user or client id may write
    consumer_byte_rate         bytes a second that it may read
    request_percentage         time of network processes that it may use; 100 is one processor
    controller_mutation_rate   partitions a second that it may create and delete
    connection_creation_rate   connections a second that an address may open
    """


def _entity_options(command: F) -> F:
    for flag, what in (
        ("--ip", "addresses"),
        ("--client-id", "client ids"),
        ("--user", "users"),
    ):
        command = click.option(
            f"{flag}-default",
            f"{flag.removeprefix('--').replace('-', '_')}_default",
            is_flag=True,
            help=f"All {what} without a quota of their own, each by itself.",
        )(command)
        command = click.option(flag, metavar="NAME", help=f"One of the {what}.")(command)
    return command


def _entity(arguments: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Take the parts of the entity out of a command's arguments: type and name, None for the default."""
    parts: list[tuple[str, str | None]] = []
    for kind, field in _PARTS:
        name, is_default = arguments.pop(field), arguments.pop(f"{field}_default")
        if name is not None and is_default:
            raise click.UsageError(f"--{kind} and --{kind}-default exclude each other")
        if name is not None or is_default:
            parts.append((kind, name))
    return parts


def _named_entity(arguments: dict[str, Any]) -> list[tuple[str, str | None]]:
    parts = _entity(arguments)
    if not parts:
        raise click.UsageError("name an entity: --user, --client-id or --ip, or one of their defaults")
    return parts


@quotas.command(name="list")
@_entity_options
@json_option
@client_options
def list_quotas(*, as_json: bool, bootstrap: str, **arguments: Any) -> None:
    """List the quotas, or those of the entities with these parts."""
    components = tuple(
        QuotaFilterComponent(kind, int(MatchType.DEFAULT if name is None else MatchType.EXACT), name)
        for kind, name in _entity(arguments)
    )
    rows = _described(first_that_answers(bootstrap), DescribeClientQuotasRequest(components))
    if as_json:
        print_json(rows)
    elif rows:
        print_table(
            ("USER", "CLIENT ID", "IP", "QUOTA", "VALUE"),
            [
                (*(_shown(row["entity"], kind) for kind, _ in _PARTS), key, _number(value))
                for row in rows
                for key, value in row["quotas"].items()
            ],
        )
    else:
        click.echo("no quotas", err=True)


def _described(address: str, wanted: DescribeClientQuotasRequest) -> list[dict[str, Any]]:
    answer = request(address, ApiKey.DESCRIBE_CLIENT_QUOTAS, VERSION, wanted, oldest=0)
    if answer.error_code:
        raise BrokerError(f"quotas: {refusal_of(answer.error_code, answer.error_message)}")
    rows = [
        {
            "entity": {part.entity_type: part.entity_name for part in each.entity},
            "quotas": {quota.key: quota.value for quota in sorted(each.values, key=lambda one: one.key)},
        }
        for each in answer.entries
    ]
    return sorted(rows, key=lambda row: [_shown(row["entity"], kind) for kind, _ in _PARTS])


def _shown(entity: dict[str, str | None], kind: str) -> str:
    return "" if kind not in entity else entity[kind] or _DEFAULT


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else str(value)


@quotas.command(name="set")
@click.argument("settings", metavar="QUOTA=VALUE...", nargs=-1, required=True)
@_entity_options
@json_option
@client_options
def set_quotas(*, settings: tuple[str, ...], as_json: bool, bootstrap: str, **arguments: Any) -> None:
    """Set quotas of an entity, for example: quotas set producer_byte_rate=1048576 --user alice."""
    entity = _named_entity(arguments)
    operations = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not equals or value <= 0:
            raise click.BadParameter(f"{setting}: write QUOTA=VALUE, a number above 0", param_hint="QUOTA")
        operations.append(QuotaOperation(_known(key, entity), value))
    _alter(bootstrap, entity, operations, as_json=as_json)


@quotas.command()
@click.argument("keys", metavar="QUOTA...", nargs=-1)
@_entity_options
@json_option
@client_options
def remove(*, keys: tuple[str, ...], as_json: bool, bootstrap: str, **arguments: Any) -> None:
    """Remove quotas of an entity; all of them if none is named."""
    entity = _named_entity(arguments)
    address = first_that_answers(bootstrap)
    components = tuple(
        QuotaFilterComponent(kind, int(MatchType.DEFAULT if name is None else MatchType.EXACT), name)
        for kind, name in entity
    )
    there = _described(address, DescribeClientQuotasRequest(components, strict=True))
    known = there[0]["quotas"] if there else {}
    wanted = [_known(key, entity) for key in keys] or list(known)
    if missing := [key for key in wanted if key not in known]:
        raise BrokerError(f"there is no such quota: {', '.join(missing)}")
    if not wanted:
        raise BrokerError("there is no such quota")
    _alter(address, entity, [QuotaOperation(key, remove=True) for key in wanted], as_json=as_json)


def _known(key: str, entity: list[tuple[str, str | None]]) -> str:
    keys = IP_KEYS if entity[0][0] == IP else USER_KEYS
    if key not in keys:
        raise click.BadParameter(f"{key}: choose from {', '.join(keys)}", param_hint="QUOTA")
    return key


def _alter(
    bootstrap: str, entity: list[tuple[str, str | None]], operations: list[QuotaOperation], *, as_json: bool
) -> None:
    parts = tuple(QuotaEntity(kind, name) for kind, name in entity)
    wanted = AlterClientQuotasRequest((QuotaAlteration(parts, tuple(operations)),))
    address = first_that_answers(bootstrap)
    (result,) = request(address, ApiKey.ALTER_CLIENT_QUOTAS, VERSION, wanted, oldest=0).entries
    if result.error_code:
        raise BrokerError(f"quotas: {refusal_of(result.error_code, result.error_message)}")
    whose = ", ".join(f"{kind} {name or _DEFAULT}" for kind, name in entity)
    if as_json:
        changed = {each.key: None if each.remove else each.value for each in operations}
        print_json([{"entity": dict(entity), "quotas": changed}])
        return
    for each in operations:
        done = f"removed: {each.key}" if each.remove else f"set: {each.key} = {_number(each.value)}"
        click.echo(f"{done} of {whose}")
