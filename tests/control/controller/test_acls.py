"""Rules through a real controller process: what is too much is refused, what is odd is kept and read again."""

from __future__ import annotations

import pytest

from appliance.access.acl_filter import AclFilter
from appliance.channels.control_channel import AclOutcomes, AlterAcls
from appliance.cluster import AclBinding
from appliance.control.controller.acl_commands import HOST_BYTES_MAX, TEXT_BYTES_MAX
from appliance.control.store.znode_tree import acl_path
from appliance.protocol.acl import AclOperation, AclPermission, PatternType, ResourceType
from appliance.protocol.errors import ErrorCode
from tests.control.controller.instance import Instance

ODD_NAMES = (
    "a/b",
    "..",
    "100%",
    "%2E",
    "\x7f\x85",
    "line\nbreak",
    "\ufffd\ufff9",
    "\ue000 private",
    "\U0001f600",
    "ü",
    " ",
)


def rule(
    name: str, principal: str = "User:a", *, host: str = "*", kind: int = ResourceType.GROUP
) -> AclBinding:
    return AclBinding(
        int(kind),
        name,
        int(PatternType.LITERAL),
        principal,
        host,
        int(AclOperation.READ),
        int(AclPermission.ALLOW),
    )


def create(instance: Instance, *acls: AclBinding) -> list[int]:
    answer = instance.answer(instance.ask(AlterAcls(created=acls)))
    assert isinstance(answer, AclOutcomes)
    return [each.error for each in answer.created]


def test_rules_for_names_of_odd_characters_are_there_after_a_restart(instance: Instance) -> None:
    rules = tuple(map(rule, ODD_NAMES))
    assert create(instance, *rules) == [0] * len(rules)
    assert set(instance.image.acls) == set(rules)
    instance.kill()
    instance.new_memory()
    instance.start()
    instance.start_worker()
    instance.until(lambda: instance.images.version > 0 and set(instance.image.acls) == set(rules))
    answer = instance.answer(instance.ask(AlterAcls(deleted=(AclFilter(),))))
    assert isinstance(answer, AclOutcomes)
    assert set(answer.deleted[0].acls) == set(rules)
    assert instance.image.acls == ()


@pytest.mark.parametrize(
    "acl",
    [
        rule("g" * (TEXT_BYTES_MAX + 1)),
        rule("g", "User:" + "ü" * (TEXT_BYTES_MAX // 2)),
        rule("g", host="h" * (HOST_BYTES_MAX + 1)),
    ],
    ids=["resource", "principal", "host"],
)
def test_a_rule_of_endless_text_is_refused(instance: Instance, acl: AclBinding) -> None:
    assert create(instance, acl, rule("g")) == [int(ErrorCode.POLICY_VIOLATION), 0]
    assert instance.image.acls == (rule("g"),)


def test_more_rules_for_one_resource_than_its_node_holds_are_refused_and_the_controller_lives(
    instance: Instance,
) -> None:
    principal = "User:" + "p" * 3000
    errors = []
    for first in range(0, 400, 100):
        errors += create(instance, *(rule("g", f"{principal}{n}") for n in range(first, first + 100)))
    assert set(errors) == {0, int(ErrorCode.POLICY_VIOLATION)}
    assert errors == sorted(errors)
    assert len(instance.image.acls) == errors.count(0)
    assert create(instance, rule("other")) == [0]


def test_a_node_without_rules_gets_rules(instance: Instance) -> None:
    assert create(instance, rule("g"), rule("other")) == [0, 0]
    instance.kill()
    instance.change_store(acl_path("/kafka-acl/Group", "g"), b'{"version":1,"acls":[]}')
    instance.new_memory()
    instance.start()
    instance.start_worker()
    instance.until(lambda: instance.images.version > 0)
    assert create(instance, rule("third")) == [0]
    assert create(instance, rule("g", "User:b")) == [0]
    assert set(instance.image.acls) == {rule("other"), rule("third"), rule("g", "User:b")}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"version":1,"acls":[{"principal":"User:a"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Fly","host":"*"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Any","operation":"Read","host":"*"}]}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_node_keeps_the_controller_from_starting_and_is_named(
    instance: Instance, data: bytes
) -> None:
    assert create(instance, rule("g")) == [0]
    instance.kill()
    path = acl_path("/kafka-acl/Group", "g")
    instance.change_store(path, data)
    instance.new_memory()
    instance.launch()
    assert path in str(instance.failure())
