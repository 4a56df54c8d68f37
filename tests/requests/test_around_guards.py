"""No way around the guards: what one principal may not do has no effect, and no answer names what is hidden from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cluster import AclBinding
from appliance.protocol.acl import AclOperation, AclPermission, PatternType, ResourceType
from appliance.protocol.errors import ErrorCode
from tests.requests.serving import TOPIC
from tests.requests.transacting import ID, Transacting, batch, produce, transacting

ALICE, BOB = "User:alice", "User:bob"


def allowed(
    principal: str, operation: AclOperation, name: str, kind: ResourceType = ResourceType.TOPIC
) -> AclBinding:
    return AclBinding(
        int(kind),
        name,
        int(PatternType.LITERAL),
        principal,
        "*",
        int(operation),
        int(AclPermission.ALLOW),
    )


RULES = (
    allowed(ALICE, AclOperation.WRITE, TOPIC),
    allowed(BOB, AclOperation.WRITE, TOPIC),
    allowed(BOB, AclOperation.WRITE, ID, ResourceType.TRANSACTIONAL_ID),
)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Transacting]:
    with transacting(tmp_path, acls=RULES) as made:
        yield made


@pytest.mark.parametrize("version", [12, 13])
def test_no_partition_is_added_to_the_transaction_of_somebody_else(house: Transacting, version: int) -> None:
    session = house.session(1, principal=ALICE)
    pending = house.produce(session, produce(version, {0: batch(b"a"), 1: batch(b"b")}))
    assert house.questions() == []
    assert house.errors(pending) == [int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)] * 2
    assert house.worker_got() == []
    assert house.holds_nothing


@pytest.mark.parametrize("version", [12, 13])
def test_the_owner_of_a_transactional_id_adds_partitions(house: Transacting, version: int) -> None:
    house.produce(house.session(1, principal=BOB), produce(version, {0: batch(b"a")}))
    (question,) = house.questions()
    house.coordinator_says(question)
    assert [each.value for each in house.worker_got()] == [b"a"]
