"""`appliance acls`: list, allow, deny, remove."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from appliance.cli.aliases import AliasedGroup
from appliance.cli.cluster_view import first_that_answers, refusal_of
from appliance.cli.connecting import BrokerError
from appliance.cli.options import client_options
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.request import request
from appliance.protocol.acl import (
    CLUSTER_NAME,
    WILDCARD,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.create_acls import AclCreation, CreateAclsRequest
from appliance.protocol.apis.delete_acls import DeleteAclsFilter, DeleteAclsMatchingAcl, DeleteAclsRequest
from appliance.protocol.apis.describe_acls import DescribeAclsRequest

VERSION: Final = 3
_OPERATIONS: Final = {
    each.name.lower().replace("_", "-"): each for each in AclOperation if each >= AclOperation.ALL
}
_RESOURCES: Final = (
    ("topics", "--topic", ResourceType.TOPIC),
    ("groups", "--group", ResourceType.GROUP),
    ("transactional_ids", "--transactional-id", ResourceType.TRANSACTIONAL_ID),
)

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=AliasedGroup, short_help="Show and change ACLs: who may do what.")
def acls() -> None:
    """Show and change ACLs, the rules that say who may do what.

    The option `authorizer.class.name` of the broker turns ACLs on.
    """


def _resource_options(command: F) -> F:
    command = click.option("--cluster", is_flag=True, help="The cluster.")(command)
    for _, flag, kind in reversed(_RESOURCES):
        command = click.option(
            flag,
            f"{flag.removeprefix('--').replace('-', '_')}s",
            metavar="NAME",
            multiple=True,
            help=f"This {kind.name.lower().replace('_', ' ')}; * for all of them. Repeatable.",
        )(command)
    return command


def _named(names: dict[str, tuple[str, ...]], *, cluster: bool) -> list[tuple[ResourceType, str]]:
    found = [(kind, name) for field, _, kind in _RESOURCES for name in names[field]]
    return [*found, (ResourceType.CLUSTER, CLUSTER_NAME)] if cluster else found


def _operations(names: tuple[str, ...]) -> list[AclOperation]:
    for name in names:
        if name not in _OPERATIONS:
            raise click.BadParameter(f"{name}: choose from {', '.join(_OPERATIONS)}", param_hint="OPERATION")
    return [_OPERATIONS[name] for name in names]


@acls.command(name="list")
@_resource_options
@click.option("--principal", metavar="PRINCIPAL", help="Only rules for this principal.")
@json_option
@client_options
def list_acls(
    *, cluster: bool, principal: str | None, as_json: bool, bootstrap: str, **names: tuple[str, ...]
) -> None:
    """List the ACLs. For a named resource, also list the ACLs that cover it by a prefix or by *."""
    address = first_that_answers(bootstrap)
    wanted: list[tuple[ResourceType, str | None]] = [*_named(names, cluster=cluster)]
    if not wanted:
        wanted.append((ResourceType.ANY, None))
    rows: dict[tuple[Any, ...], dict[str, str]] = {}
    for kind, name in wanted:
        body = DescribeAclsRequest(
            int(kind),
            name,
            principal,
            None,
            int(AclOperation.ANY),
            int(AclPermission.ANY),
            int(PatternType.ANY if name is None else PatternType.MATCH),
        )
        answer = request(address, ApiKey.DESCRIBE_ACLS, VERSION, body, oldest=1)
        if answer.error_code:
            raise BrokerError(f"ACLs: {refusal_of(answer.error_code, answer.error_message)}")
        for resource in answer.resources:
            for each in resource.acls:
                row = _row(
                    resource.resource_type,
                    resource.resource_name,
                    resource.pattern_type,
                    each.principal,
                    each.host,
                    each.operation,
                    each.permission_type,
                )
                rows[tuple(row.values())] = row
    if as_json:
        print_json(list(rows.values()))
    elif rows:
        print_table(
            ("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "PERMISSION", "OPERATION"),
            [tuple(row.values()) for row in rows.values()],
        )
    else:
        click.echo("no ACLs", err=True)


def _row(  # noqa: PLR0917 (the fields of a rule, in Kafka's order)
    kind: int, name: str, pattern: int, principal: str, host: str, operation: int, permission: int
) -> dict[str, str]:
    return {
        "resource": _text(ResourceType, kind),
        "name": name,
        "pattern": _text(PatternType, pattern),
        "principal": principal,
        "host": host,
        "permission": _text(AclPermission, permission),
        "operation": _text(AclOperation, operation),
    }


def _text(enum: type[ResourceType | PatternType | AclPermission | AclOperation], number: int) -> str:
    return enum(number).name.lower().replace("_", "-")


def _changing(command: F) -> F:
    for decorate in (
        client_options,
        json_option,
        click.option(
            "--host",
            metavar="ADDRESS",
            default=WILDCARD,
            help="Only from this address; * means every address.",
        ),
        click.option("--prefix", is_flag=True, help="Apply to all resources whose names begin with NAME."),
        _resource_options,
        click.argument("operations", metavar="OPERATION...", nargs=-1, required=True),
        click.argument("principal", metavar="PRINCIPAL"),
    ):
        command = decorate(command)
    return command


@acls.command()
@_changing
def allow(**arguments: Any) -> None:
    """Allow PRINCIPAL, for example User:alice, each OPERATION on the resources."""
    _add(AclPermission.ALLOW, **arguments)


@acls.command()
@_changing
def deny(**arguments: Any) -> None:
    """Deny PRINCIPAL each OPERATION on the resources. A denial wins over every ACL that allows."""
    _add(AclPermission.DENY, **arguments)


def _add(
    permission: AclPermission,
    *,
    principal: str,
    operations: tuple[str, ...],
    cluster: bool,
    prefix: bool,
    host: str,
    as_json: bool,
    bootstrap: str,
    **names: tuple[str, ...],
) -> None:
    pattern = int(PatternType.PREFIXED if prefix else PatternType.LITERAL)
    wanted = [
        AclCreation(int(kind), name, principal, host, int(operation), int(permission), pattern)
        for kind, name in _required(names, cluster=cluster)
        for operation in _operations(operations)
    ]
    address = first_that_answers(bootstrap)
    answer = request(address, ApiKey.CREATE_ACLS, VERSION, CreateAclsRequest(tuple(wanted)), oldest=1)
    for result in answer.results:
        if result.error_code:
            raise BrokerError(f"ACLs: {refusal_of(result.error_code, result.error_message)}")
    _tell("added", [_row_of(each) for each in wanted], as_json=as_json)


@acls.command()
@_changing
def remove(
    *,
    principal: str,
    operations: tuple[str, ...],
    cluster: bool,
    prefix: bool,
    host: str,
    as_json: bool,
    bootstrap: str,
    **names: tuple[str, ...],
) -> None:
    """Remove the ACLs that allow or deny PRINCIPAL each OPERATION on the resources."""
    pattern = int(PatternType.PREFIXED if prefix else PatternType.LITERAL)
    filters = tuple(
        DeleteAclsFilter(int(kind), name, principal, host, int(operation), int(AclPermission.ANY), pattern)
        for kind, name in _required(names, cluster=cluster)
        for operation in _operations(operations)
    )
    address = first_that_answers(bootstrap)
    answer = request(address, ApiKey.DELETE_ACLS, VERSION, DeleteAclsRequest(filters), oldest=1)
    gone: list[dict[str, str]] = []
    for result in answer.filter_results:
        if result.error_code:
            raise BrokerError(f"ACLs: {refusal_of(result.error_code, result.error_message)}")
        gone += [_row_of(each) for each in result.matching_acls]
    if not gone:
        raise BrokerError("there is no such ACL")
    _tell("removed", gone, as_json=as_json)


def _required(names: dict[str, tuple[str, ...]], *, cluster: bool) -> list[tuple[ResourceType, str]]:
    found = _named(names, cluster=cluster)
    if not found:
        raise click.UsageError("name a resource: --topic, --group, --transactional-id or --cluster")
    return found


def _row_of(acl: AclCreation | DeleteAclsMatchingAcl) -> dict[str, str]:
    pattern = acl.resource_pattern_type if isinstance(acl, AclCreation) else acl.pattern_type
    return _row(
        acl.resource_type,
        acl.resource_name,
        pattern,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )


def _tell(what: str, rows: list[dict[str, str]], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    for row in rows:
        begins = " (prefix)" if row["pattern"] == "prefixed" else ""
        click.echo(
            f"{what}: {row['permission']} {row['principal']} from {row['host']}: {row['operation']} on"
            f" {row['resource']} {row['name']}{begins}"
        )
