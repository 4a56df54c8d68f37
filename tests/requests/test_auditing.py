"""What of requests gets into the audit journal: refusals of what is named, changes with what became of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.config.sections.audit import EVENTS
from appliance.protocol.acl import AclOperation, ResourceType
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.create_acls import AclCreation, CreateAclsRequest
from appliance.protocol.apis.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from appliance.protocol.apis.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicName
from appliance.protocol.apis.find_coordinator import FindCoordinatorRequest
from appliance.protocol.apis.list_groups import ListGroupsRequest, ListGroupsResponse
from appliance.protocol.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.errors import ErrorCode
from appliance.protocol.messages import encode_request
from appliance.requests.auditing import Auditing
from appliance.requests.session import Request
from tests.requests.serving import TOPIC
from tests.requests.test_around_guards import ALICE, allowed
from tests.requests.transacting import ID, Transacting, batch, produce, transacting

RULES = (
    allowed(ALICE, AclOperation.DESCRIBE, "other"),
    allowed(ALICE, AclOperation.DELETE, "mine", ResourceType.GROUP),
    allowed(ALICE, AclOperation.WRITE, "free"),
)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Transacting]:
    with transacting(tmp_path, acls=RULES, audit_events=EVENTS) as made:
        yield made


@pytest.fixture
def open_house(tmp_path: Path) -> Iterator[Transacting]:
    """Everybody may do everything."""
    with transacting(tmp_path, audit_events=EVENTS) as made:
        yield made


def entries(house: Transacting) -> list[dict[str, Any]]:
    """Return what has been recorded since the last time."""
    assert house.recorder is not None
    house.recorder.flush()
    lines, house.journal = house.journal, []
    return [json.loads(line) for message in lines for line in message.splitlines()]


def denied(house: Transacting) -> list[tuple[str, str, str]]:
    """Return operation, type and name of each resource of the only entry, a refusal."""
    (entry,) = entries(house)
    assert (entry["event"], entry["result"], entry["principal"]) == ("refusal", "denied", ALICE)
    return [(each["operation"], each["type"], each["name"]) for each in entry["resources"]]


def begin(house: Transacting, api: ApiKey, version: int, request: Any) -> Request:
    """Hand over a request for the coordinator."""
    frame = encode_request(api, version, request, 1)
    pending = house.serve(house.session(1, principal=ALICE), frame)
    house.run()
    house.timers.run_due(time.monotonic_ns())
    return pending


def test_a_refused_produce_request_is_one_entry(house: Transacting) -> None:
    session = house.session(1, principal=ALICE)
    pending = house.produce(session, produce(9, {0: batch(b"a"), 1: batch(b"b")}, transactional_id=None))
    assert house.errors(pending) is not None
    assert denied(house) == [("write", "topic", TOPIC)]


def test_a_transactional_id_that_may_not_be_written_is_an_entry(house: Transacting) -> None:
    house.produce(house.session(1, principal=ALICE), produce(12, {0: batch(b"a")}))
    assert ("write", "transactional-id", ID) in denied(house)


def test_metadata_of_a_topic_by_name_is_a_refusal_and_a_list_is_none(house: Transacting) -> None:
    session = house.session(1, principal=ALICE)
    every = house.ask(session, ApiKey.METADATA, 12, MetadataRequest(None, False))
    assert every.topics == ()
    assert entries(house) == []
    named = MetadataRequest((TopicSelector(TOPIC), TopicSelector("other")), False)
    house.ask(house.session(2, principal=ALICE), ApiKey.METADATA, 12, named)
    assert denied(house) == [("describe", "topic", TOPIC)]


def test_pages_of_topics_are_no_refusal_unless_a_topic_is_named(house: Transacting) -> None:
    session = house.session(1, principal=ALICE)
    house.ask(session, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, DescribeTopicPartitionsRequest(()))
    assert entries(house) == []
    named = DescribeTopicPartitionsRequest((TopicName(TOPIC),))
    house.ask(house.session(2, principal=ALICE), ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, named)
    assert denied(house) == [("describe", "topic", TOPIC)]


def test_a_guard_that_refuses_and_one_that_narrows_are_entries(house: Transacting) -> None:
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=("g", "h"))
    house.ask(house.session(1, principal=ALICE), ApiKey.FIND_COORDINATOR, 4, find)
    assert denied(house) == [("describe", "group", "g"), ("describe", "group", "h")]
    create = CreateAclsRequest((AclCreation(2, "t", ALICE, "*", 3, 3),))
    house.ask(house.session(2, principal=ALICE), ApiKey.CREATE_ACLS, 3, create)
    assert denied(house) == [("alter", "cluster", "kafka-cluster")]
    offsets = ListOffsetsRequest(-1, topics=(ListOffsetsTopic(TOPIC, (ListOffsetsPartition(0, -1),)),))
    house.ask(house.session(3, principal=ALICE), ApiKey.LIST_OFFSETS, 7, offsets)
    assert denied(house) == [("describe", "topic", TOPIC)]


def test_what_a_list_of_groups_leaves_out_is_no_entry(house: Transacting) -> None:
    begin(house, ApiKey.LIST_GROUPS, 4, ListGroupsRequest())
    (received,) = house.coordinator_got()
    house.reply(received, ListGroupsResponse())
    assert entries(house) == []


def test_a_deletion_of_groups_is_a_change_and_its_refused_part_a_refusal(house: Transacting) -> None:
    pending = begin(house, ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(("mine", "theirs")))
    (received,) = house.coordinator_got()
    house.reply(received, DeleteGroupsResponse((DeletableGroupResult("mine"),)))
    assert [each.group_id for each in house.told(pending).results] == ["mine", "theirs"]
    told = {entry["event"]: entry for entry in entries(house)}
    assert [(each["name"], each["result"]) for each in told["change"]["resources"]] == [
        ("mine", "done"),
        ("theirs", "denied"),
    ]
    assert told["change"]["result"] == "denied"
    assert [each["name"] for each in told["refusal"]["resources"]] == ["theirs"]


def test_changes_are_recorded_without_an_authorizer_too(open_house: Transacting) -> None:
    house = open_house
    pending = begin(house, ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(("g", "h")))
    (received,) = house.coordinator_got()
    response = DeleteGroupsResponse(
        (DeletableGroupResult("g"), DeletableGroupResult("h", int(ErrorCode.NON_EMPTY_GROUP)))
    )
    house.reply(received, response)
    assert house.told(pending) == response
    (entry,) = entries(house)
    assert (entry["event"], entry["result"], entry["api"]) == ("change", "failed", "DeleteGroups")
    assert [(each["name"], each["result"], each.get("error")) for each in entry["resources"]] == [
        ("g", "done", None),
        ("h", "failed", "NON_EMPTY_GROUP"),
    ]
    assert house.holds_nothing


def test_a_coordinator_that_dies_is_an_entry_with_its_error(open_house: Transacting) -> None:
    begin(open_house, ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(("g",)))
    open_house.coordinator_dies()
    (entry,) = entries(open_house)
    assert entry["result"] == "failed"
    assert open_house.holds_nothing


def test_a_denied_request_names_no_more_than_some_and_says_how_many(house: Transacting) -> None:
    topics = tuple(ListOffsetsTopic(f"t{n}", (ListOffsetsPartition(0, -1),)) for n in range(80))
    house.ask(
        house.session(1, principal=ALICE), ApiKey.LIST_OFFSETS, 7, ListOffsetsRequest(-1, topics=topics)
    )
    (entry,) = entries(house)
    assert (len(entry["resources"]), entry["count"]) == (50, 80)


def test_who_authenticated_and_who_did_not(open_house: Transacting) -> None:
    assert open_house.recorder is not None
    auditing = Auditing(open_house.recorder)
    auditing.authenticated(open_house.session(1, principal=ALICE), mechanism="SSL")
    auditing.authenticated(open_house.session(2), mechanism="SSL")  # proved nothing
    auditing.failed(
        open_house.session(3), mechanism="SCRAM-SHA-512", claimed="User:bob", why="wrong password"
    )
    auditing.not_admitted("::ffff:10.0.0.1", "CURVE")
    told = [
        tuple(entry.get(key, "") for key in ("result", "principal", "host", "mechanism", "reason"))
        for entry in entries(open_house)
    ]
    assert told == [
        ("done", ALICE, "h", "SSL", ""),
        ("denied", "User:bob", "h", "SCRAM-SHA-512", "wrong password"),
        ("denied", "", "10.0.0.1", "CURVE", "it is not admitted"),
    ]


def test_a_change_whose_client_has_left_is_recorded_too(open_house: Transacting) -> None:
    assert open_house.recorder is not None
    auditing = Auditing(open_house.recorder)
    pending = begin(open_house, ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(("g", "h")))
    auditing.left(pending.session)
    (entry,) = entries(open_house)
    assert (entry["event"], entry["result"], entry["api"]) == ("change", "unknown", "DeleteGroups")
    assert [each["name"] for each in entry["resources"]] == ["g", "h"]
    auditing.left(pending.session)
    assert entries(open_house) == []
