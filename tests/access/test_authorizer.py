"""What rules say, against Kafka's own words and against a plain search through all rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.access.acl_filter import AclFilter
from appliance.access.authorizer import DECISIONS_MAX, Authorizer
from appliance.cluster import AclBinding
from appliance.protocol.acl import AclOperation, AclPermission, PatternType, ResourceType

TOPIC = int(ResourceType.TOPIC)
GROUP = int(ResourceType.GROUP)
ALICE = "User:alice"
HERE = "10.0.0.1"


def rule(
    name: str = "orders",
    operation: AclOperation = AclOperation.READ,
    *,
    allow: bool = True,
    prefixed: bool = False,
    principal: str = ALICE,
    host: str = "*",
    kind: int = TOPIC,
) -> AclBinding:
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    permission = AclPermission.ALLOW if allow else AclPermission.DENY
    return AclBinding(kind, name, int(pattern), principal, host, int(operation), int(permission))


def authorizer(*acls: AclBinding, open_without: bool = False) -> Authorizer:
    return Authorizer(acls, super_users=frozenset({"User:root"}), allow_without_acls=open_without)


def may(
    decider: Authorizer,
    operation: AclOperation,
    name: str = "orders",
    *,
    principal: str = ALICE,
    host: str = HERE,
) -> bool:
    return decider.allows(principal, host, int(operation), TOPIC, name)


def test_nobody_may_do_anything_without_a_rule_but_a_super_user() -> None:
    decider = authorizer()
    assert not may(decider, AclOperation.READ)
    assert may(decider, AclOperation.READ, principal="User:root")


def test_one_rule_for_somebody_closes_a_topic_for_all_others() -> None:
    decider = authorizer(rule(principal="User:bob"), open_without=True)
    assert may(decider, AclOperation.READ, principal="User:bob")
    assert not may(decider, AclOperation.READ)
    assert may(decider, AclOperation.READ, "other")


@pytest.mark.parametrize(
    "operation", [AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER]
)
def test_who_is_allowed_to_read_write_delete_or_alter_may_describe(operation: AclOperation) -> None:
    assert may(authorizer(rule(operation=operation)), AclOperation.DESCRIBE)


def test_who_may_alter_settings_may_describe_them_and_no_more() -> None:
    decider = authorizer(rule(operation=AclOperation.ALTER_CONFIGS))
    assert may(decider, AclOperation.DESCRIBE_CONFIGS)
    assert not may(decider, AclOperation.DESCRIBE)


def test_denied_reading_does_not_deny_describing() -> None:
    decider = authorizer(rule(allow=False), rule(operation=AclOperation.DESCRIBE))
    assert may(decider, AclOperation.DESCRIBE)
    assert not may(decider, AclOperation.READ)


@pytest.mark.parametrize(
    "denial",
    [
        rule(allow=False),
        rule(allow=False, operation=AclOperation.ALL),
        rule("*", allow=False),
        rule("ord", allow=False, prefixed=True),
        rule(allow=False, principal="User:*"),
        rule(allow=False, host=HERE),
    ],
)
def test_a_denial_wins_over_every_permission(denial: AclBinding) -> None:
    decider = authorizer(denial, rule(), rule("*"), rule("orders", prefixed=True))
    assert not may(decider, AclOperation.READ)


def test_a_host_is_this_one_or_every_one() -> None:
    decider = authorizer(rule(host="10.0.0.2"), rule("open"))
    assert not may(decider, AclOperation.READ)
    assert may(decider, AclOperation.READ, host="10.0.0.2")
    assert may(decider, AclOperation.READ, "open")


def test_a_prefix_covers_what_begins_with_it_and_the_name_itself() -> None:
    decider = authorizer(rule("team-a.", prefixed=True))
    assert may(decider, AclOperation.READ, "team-a.")
    assert may(decider, AclOperation.READ, "team-a.orders")
    assert not may(decider, AclOperation.READ, "team-a")
    assert not may(decider, AclOperation.READ, "team-b.orders")


def test_who_may_write_one_topic_may_write_some_topic() -> None:
    decider = authorizer(rule("orders", AclOperation.WRITE))
    assert decider.allows_any(ALICE, HERE, int(AclOperation.WRITE), TOPIC)
    assert not decider.allows_any("User:bob", HERE, int(AclOperation.WRITE), TOPIC)
    assert not decider.allows_any(ALICE, HERE, int(AclOperation.WRITE), GROUP)


@pytest.mark.parametrize(
    "denial",
    [
        rule("*", AclOperation.WRITE, allow=False),
        rule("orders", AclOperation.WRITE, allow=False),
        rule("ord", AclOperation.WRITE, allow=False, prefixed=True),
        rule("o", AclOperation.ALL, allow=False, prefixed=True),
    ],
)
def test_who_is_denied_all_that_he_is_allowed_may_write_no_topic(denial: AclBinding) -> None:
    decider = authorizer(rule("orders", AclOperation.WRITE), denial)
    assert not decider.allows_any(ALICE, HERE, int(AclOperation.WRITE), TOPIC)


def test_remembered_decisions_are_bounded_and_right() -> None:
    decider = authorizer(rule("even-", prefixed=True))
    for number in range(DECISIONS_MAX + 10):
        assert may(decider, AclOperation.READ, f"{'even' if number % 2 else 'odd'}-{number}") is bool(
            number % 2
        )
    assert len(decider._decisions) <= DECISIONS_MAX


NAMES = st.text("ab*", max_size=4)
RULES = st.builds(
    AclBinding,
    resource_type=st.just(TOPIC),
    resource_name=NAMES.filter(bool),
    pattern_type=st.sampled_from([int(PatternType.LITERAL), int(PatternType.PREFIXED)]),
    principal=st.sampled_from([ALICE, "User:bob", "User:*"]),
    host=st.sampled_from([HERE, "10.0.0.2", "*"]),
    operation=st.sampled_from([int(each) for each in AclOperation if each >= AclOperation.ALL]),
    permission=st.sampled_from([int(AclPermission.ALLOW), int(AclPermission.DENY)]),
)


def covers(acl: AclBinding, name: str) -> bool:
    if acl.pattern_type == PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in ("*", name)


@given(st.lists(RULES, max_size=12), NAMES, st.sampled_from(list(AclOperation)), st.booleans())
def test_the_index_finds_what_a_search_through_all_rules_finds(
    acls: list[AclBinding], name: str, operation: AclOperation, open_without: bool
) -> None:
    covering = [acl for acl in acls if covers(acl, name)]
    mine = [acl for acl in covering if acl.principal in (ALICE, "User:*") and acl.host in (HERE, "*")]
    implied = {
        AclOperation.DESCRIBE: {
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.DELETE,
            AclOperation.ALTER,
        },
        AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
    }.get(operation, set())
    exact = {operation, AclOperation.ALL}
    if not covering:
        expected = open_without
    elif any(acl.permission == AclPermission.DENY and acl.operation in exact for acl in mine):
        expected = False
    else:
        expected = any(
            acl.permission == AclPermission.ALLOW and acl.operation in exact | implied for acl in mine
        )
    assert may(authorizer(*acls, open_without=open_without), operation, name) is expected


@given(RULES, NAMES)
def test_a_filter_that_matches_a_name_means_the_rules_that_cover_it(acl: AclBinding, name: str) -> None:
    means = AclFilter(resource_name=name, pattern_type=int(PatternType.MATCH)).matches(acl)
    assert means is covers(acl, name)


@given(RULES)
def test_a_filter_of_nothing_means_every_rule_and_one_of_all_its_parts_means_it(acl: AclBinding) -> None:
    assert AclFilter().matches(acl)
    whole = AclFilter(
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    )
    assert whole.matches(acl)
    assert not AclFilter(principal="User:nobody").matches(acl)


@pytest.mark.parametrize("spelled", ["::ffff:10.0.0.1", "::FFFF:a00:1"])
def test_a_rule_for_a_mapped_address_counts_for_the_ipv4_address(spelled: str) -> None:
    assert may(authorizer(rule(host=spelled)), AclOperation.READ)
    denying = authorizer(rule(host=spelled, allow=False), rule())
    assert not may(denying, AclOperation.READ)
    assert may(denying, AclOperation.READ, host="10.0.0.2")


def test_a_rule_in_javas_spelling_counts_for_the_ipv6_address() -> None:
    decider = authorizer(rule(host="2001:DB8:0:0:0:0:0:1"))
    assert may(decider, AclOperation.READ, host="2001:db8::1")
    assert not may(decider, AclOperation.READ, host="2001:db8::2")
    assert decider.allows_any(ALICE, "2001:db8::1", int(AclOperation.READ), TOPIC)


def test_a_filter_finds_a_rule_by_any_spelling_of_its_host() -> None:
    spelled = rule(host="2001:DB8:0:0:0:0:0:1")
    assert AclFilter(host="2001:db8::1").matches(spelled)
    assert not AclFilter(host="2001:db8::2").matches(spelled)
    assert not AclFilter(host="*").matches(spelled)
