"""ACLs, SCRAM users and quotas: lists, and the simple changes. The broker decides who may see and change them."""

from __future__ import annotations

import secrets
from typing import Final

from appliance.access.client_quotas import CLIENT_ID, IP, IP_KEYS, USER, USER_KEYS
from appliance.console.kafka_link import BrokerFault, check, not_done
from appliance.console.pages.paging import part_of
from appliance.console.server import Response
from appliance.console.visit import BadInput, Visit
from appliance.protocol.acl import AclOperation, AclPermission, PatternType, ResourceType
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    QuotaAlteration,
    QuotaEntity,
    QuotaOperation,
)
from appliance.protocol.apis.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from appliance.protocol.apis.create_acls import AclCreation, CreateAclsRequest
from appliance.protocol.apis.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from appliance.protocol.apis.describe_acls import DescribeAclsRequest
from appliance.protocol.apis.describe_client_quotas import DescribeClientQuotasRequest
from appliance.protocol.apis.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from appliance.protocol.errors import ErrorCode
from appliance.sasl.scram_credential import ITERATIONS_MIN, NUMBERS, SALT_BYTES, TYPES, salted_password

RESOURCES: Final = tuple(each for each in ResourceType if each > ResourceType.ANY)
OPERATIONS: Final = tuple(each for each in AclOperation if each > AclOperation.ANY)
PERMISSIONS: Final = (AclPermission.ALLOW, AclPermission.DENY)
PATTERNS: Final = (PatternType.LITERAL, PatternType.PREFIXED)
ENTITIES: Final = (USER, CLIENT_ID, IP)
PASSWORD_CHARACTERS_MAX: Final = 1_000


# ACLs


def acls(visit: Visit) -> Response:
    """All rules, in pages."""
    wanted = visit.asked("q").strip()
    answer = visit.link.ask(
        ApiKey.DESCRIBE_ACLS,
        3,
        DescribeAclsRequest(
            int(ResourceType.ANY),
            None,
            None,
            None,
            int(AclOperation.ANY),
            int(AclPermission.ANY),
            int(PatternType.ANY),
        ),
    )
    is_off = answer.error_code == ErrorCode.SECURITY_DISABLED
    check(0 if is_off else answer.error_code, answer.error_message)
    rows = sorted(
        (
            ResourceType(resource.resource_type).spelled,
            resource.resource_name,
            PatternType(resource.pattern_type).spelled,
            each.principal,
            AclPermission(each.permission_type).spelled,
            AclOperation(each.operation).spelled,
            each.host,
        )
        for resource in answer.resources
        for each in resource.acls
    )
    found = [row for row in rows if any(wanted.lower() in cell.lower() for cell in row)]
    return visit.page(
        "acls.html",
        is_off=is_off,
        part=part_of(visit, found),
        q=wanted,
        resources=[each.spelled for each in RESOURCES],
        operations=[each.spelled for each in OPERATIONS],
        permissions=[each.spelled for each in PERMISSIONS],
        patterns=[each.spelled for each in PATTERNS],
    )


def _rule(visit: Visit) -> AclCreation:
    """Return the rule of the form.

    Raises:
        BadInput: a field holds what it cannot hold.
    """
    principal = visit.asked("principal").strip()
    if ":" not in principal:
        raise BadInput("principal: write TYPE:NAME, such as User:alice")
    name = visit.asked("name")
    if not name:
        raise BadInput("name: write the name of the resource, or * for all")
    return AclCreation(
        _chosen(visit, "resource", ResourceType),
        name,
        principal,
        visit.asked("host").strip() or "*",
        _chosen(visit, "operation", AclOperation),
        _chosen(visit, "permission", AclPermission),
        _chosen(visit, "pattern", PatternType),
    )


def _chosen(
    visit: Visit,
    field: str,
    kind: type[ResourceType] | type[AclOperation] | type[AclPermission] | type[PatternType],
) -> int:
    for each in kind:
        if each.spelled == visit.asked(field) and int(each) > 1:
            return int(each)
    raise BadInput(f"{field}: choose one of the list")


def add_acl(visit: Visit) -> Response:
    """Add a rule."""
    try:
        rule = _rule(visit)
        answer = visit.link.ask(ApiKey.CREATE_ACLS, 3, CreateAclsRequest((rule,)))
        (result,) = answer.results
        check(result.error_code, result.error_message)
    except (BadInput, BrokerFault) as fault:
        visit.failed(not_done("the rule was not added", fault))
    else:
        visit.done(f"rule added for {rule.principal}")
    return visit.back_to("/acls")


def remove_acl(visit: Visit) -> Response:
    """Remove the one rule that the form names."""
    try:
        rule = _rule(visit)
        wanted = DeleteAclsFilter(
            rule.resource_type,
            rule.resource_name,
            rule.principal,
            rule.host,
            rule.operation,
            rule.permission_type,
            rule.resource_pattern_type,
        )
        answer = visit.link.ask(ApiKey.DELETE_ACLS, 3, DeleteAclsRequest((wanted,)))
        (result,) = answer.filter_results
        check(result.error_code, result.error_message)
        for each in result.matching_acls:
            check(each.error_code, each.error_message)
    except (BadInput, BrokerFault) as fault:
        visit.failed(not_done("the rule was not removed", fault))
    else:
        visit.done("rule removed" if result.matching_acls else "there was no such rule any more")
    return visit.back_to("/acls")


# Users


def users(visit: Visit) -> Response:
    """The users that log in with SCRAM. No password or key is shown."""
    answer = visit.link.ask(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, DescribeUserScramCredentialsRequest(None)
    )
    check(answer.error_code, answer.error_message)
    rows = sorted(
        (each.user, TYPES.get(info.mechanism, str(info.mechanism)), info.iterations)
        for each in answer.results
        for info in each.credential_infos
    )
    return visit.page("users.html", part=part_of(visit, rows), mechanisms=sorted(NUMBERS))


def add_user(visit: Visit) -> Response:
    """Add a user, or give a user another password. The broker gets the salted password only."""
    name, password = visit.asked("user"), visit.request.form.get("password", "")
    mechanism = visit.asked("mechanism")
    if mechanism not in NUMBERS:
        raise BadInput("mechanism: choose one of the list")
    if not name or not 0 < len(password) <= PASSWORD_CHARACTERS_MAX:
        raise BadInput("write a user and a password")
    salt = secrets.token_bytes(SALT_BYTES)
    salted = salted_password(mechanism, password, salt, ITERATIONS_MIN)
    change = ScramCredentialUpsertion(name, NUMBERS[mechanism], ITERATIONS_MIN, salt, salted)
    return _altered(
        visit, AlterUserScramCredentialsRequest(upsertions=(change,)), f"user {name}: {mechanism}"
    )


def remove_user(visit: Visit) -> Response:
    """Remove a user's credential of one mechanism."""
    name, mechanism = visit.asked("user"), visit.asked("mechanism")
    if mechanism not in NUMBERS:
        raise BadInput("mechanism: choose one of the list")
    change = ScramCredentialDeletion(name, NUMBERS[mechanism])
    return _altered(
        visit, AlterUserScramCredentialsRequest(deletions=(change,)), f"user {name}: {mechanism} removed"
    )


def _altered(visit: Visit, request: AlterUserScramCredentialsRequest, done: str) -> Response:
    try:
        answer = visit.link.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request)
        (result,) = answer.results
        check(result.error_code, result.error_message)
    except BrokerFault as fault:
        visit.failed(not_done("the user was not changed", fault))
    else:
        visit.done(done)
    return visit.back_to("/users")


# Quotas


def quotas(visit: Visit) -> Response:
    """All quotas, in pages."""
    answer = visit.link.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, DescribeClientQuotasRequest(()))
    check(answer.error_code, answer.error_message)
    rows = []
    for each in answer.entries or ():
        entity = {part.entity_type: part.entity_name for part in each.entity}
        for quota in sorted(each.values, key=lambda one: one.key):
            rows.append((entity, quota.key, quota.value))
    rows.sort(key=lambda row: ([str(row[0].get(kind, "")) for kind in ENTITIES], row[1]))
    return visit.page(
        "quotas.html", part=part_of(visit, rows), entities=ENTITIES, keys=(*USER_KEYS, *IP_KEYS)
    )


def alter_quota(visit: Visit) -> Response:
    """Set or remove one quota of an entity. An empty name is the default of its type; a box says which types count."""
    entity = tuple(
        QuotaEntity(kind, visit.asked(kind) or None) for kind in ENTITIES if visit.asked(f"has_{kind}") == "1"
    )
    key, operation = visit.asked("key"), visit.asked("operation")
    if not entity or key not in (*USER_KEYS, *IP_KEYS) or operation not in {"set", "remove"}:
        raise BadInput("choose an entity and a quota")
    value = 0.0
    if operation == "set":
        try:
            value = float(visit.asked("value"))
        except ValueError:
            raise BadInput("value: must be a number above 0") from None
        if not 0 < value < float("inf"):
            raise BadInput("value: must be a number above 0")
    change = QuotaOperation(key, value, remove=operation == "remove")
    wanted = AlterClientQuotasRequest((QuotaAlteration(entity, (change,)),))
    try:
        (result,) = visit.link.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, wanted).entries
        check(result.error_code, result.error_message)
    except BrokerFault as fault:
        visit.failed(not_done("the quota was not changed", fault))
    else:
        visit.done(f"{key} removed" if operation == "remove" else f"{key} = {value:g}")
    return visit.back_to("/quotas")
