"""Every admin API has a row, and its row says what was to be changed and what became of each resource."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from appliance.audit.changes import CHANGES, is_daily_work, named
from appliance.audit.entry import DENIED, DONE, FAILED, UNKNOWN, Resource
from appliance.protocol.acl import AclOperation
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis import (
    alter_client_quotas,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    create_acls,
    create_delegation_token,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    elect_leaders,
    expire_delegation_token,
    incremental_alter_configs,
    offset_commit,
    offset_delete,
    renew_delegation_token,
    update_features,
)
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.group_requests import is_commit_of_nobody
from appliance.protocol.headers import parse_request_header
from appliance.protocol.messages import encode_request
from appliance.requests.api_table import API_TABLE

CHANGING = frozenset(
    {
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.ALTER_CONFIGS,
        AclOperation.CREATE_TOKENS,
    }
)
OF_OWNERS = frozenset({ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN})


def described(api: ApiKey, request: Any, response: Any) -> list[Resource]:
    return list(CHANGES[api](request, response))


def test_every_served_api_that_changes_something_is_recorded() -> None:
    changing = {api.key for api in API_TABLE if api.acl is not None and api.acl.operation in CHANGING}
    assert changing | OF_OWNERS | {ApiKey.OFFSET_COMMIT} == CHANGES.keys()


def test_topics() -> None:
    asked = create_topics.CreateTopicsRequest(
        (create_topics.CreatableTopic("a", 3, configs=(create_topics.TopicConfig("retention.ms", "5"),)),)
    )
    response = create_topics.CreateTopicsResponse(
        (
            create_topics.CreatableTopicResult("a", UUID(int=1), num_partitions=3, replication_factor=1),
            create_topics.CreatableTopicResult("b", error_code=29),
        )
    )
    first, second = described(ApiKey.CREATE_TOPICS, asked, response)
    assert (first.type, first.name, first.result) == ("topic", "a", DONE)
    assert first.detail == {
        "id": str(UUID(int=1)),
        "partitions": "3",
        "replication_factor": "1",
        "retention.ms": "5",
    }
    assert (second.name, second.result, second.error) == ("b", DENIED, "TOPIC_AUTHORIZATION_FAILED")
    validated = create_topics.CreateTopicsRequest(asked.topics, validate_only=True)
    assert described(ApiKey.CREATE_TOPICS, validated, response) == []
    by_id = delete_topics.DeleteTopicsResponse((delete_topics.DeletableTopicResult(None, UUID(int=2), 100),))
    (gone,) = described(
        ApiKey.DELETE_TOPICS, delete_topics.DeleteTopicsRequest((TopicSelector(None, UUID(int=2)),), 1), by_id
    )
    assert (gone.name, gone.result) == (str(UUID(int=2)), FAILED)


def test_no_value_of_a_broker_setting_is_recorded() -> None:
    configs = (incremental_alter_configs.AlterableConfig("ssl.keystore.password", 0, "secret"),)
    for kind, told in ((4, "set"), (2, "set secret")):
        asked = incremental_alter_configs.IncrementalAlterConfigsRequest(
            (incremental_alter_configs.AlterConfigsResource(kind, "0", configs),)
        )
        response = incremental_alter_configs.IncrementalAlterConfigsResponse(
            (incremental_alter_configs.AlterConfigsResourceResponse(0, None, kind, "0"),)
        )
        (altered,) = described(ApiKey.INCREMENTAL_ALTER_CONFIGS, asked, response)
        assert altered.detail == {"ssl.keystore.password": told}


def test_quotas() -> None:
    entity = (
        alter_client_quotas.QuotaEntity("user", "alice"),
        alter_client_quotas.QuotaEntity("client-id", None),
    )
    operations = (
        alter_client_quotas.QuotaOperation("producer_byte_rate", 1048576.0),
        alter_client_quotas.QuotaOperation("consumer_byte_rate", remove=True),
    )
    entries = (alter_client_quotas.QuotaAlteration(entity, operations),)
    response = alter_client_quotas.AlterClientQuotasResponse(
        (alter_client_quotas.QuotaAlterationResult(entity, 31),)
    )
    asked = alter_client_quotas.AlterClientQuotasRequest(entries)
    (altered,) = described(ApiKey.ALTER_CLIENT_QUOTAS, asked, response)
    assert (altered.type, altered.name) == ("quota", "user=alice,client-id=<default>")
    assert altered.detail == {"producer_byte_rate": "1048576.0", "consumer_byte_rate": "remove"}
    assert altered.result == DENIED
    assert [each.name for each in named(asked)] == ["user=alice,client-id=<default>"]
    validated = alter_client_quotas.AlterClientQuotasRequest(entries, validate_only=True)
    assert described(ApiKey.ALTER_CLIENT_QUOTAS, validated, response) == []


def test_quotas_of_an_entity_that_is_named_twice_may_have_changed_by_the_first_alteration() -> None:
    user, client = (
        alter_client_quotas.QuotaEntity("user", "alice"),
        alter_client_quotas.QuotaEntity("client-id", "c"),
    )
    entries = tuple(
        alter_client_quotas.QuotaAlteration(
            entity, (alter_client_quotas.QuotaOperation("producer_byte_rate", value),)
        )
        for entity, value in (((user, client), 1.0), ((client, user), 2.0))
    )
    asked = alter_client_quotas.AlterClientQuotasRequest(entries)
    for code, result in ((42, UNKNOWN), (31, DENIED)):
        response = alter_client_quotas.AlterClientQuotasResponse(
            (alter_client_quotas.QuotaAlterationResult((user, client), code),)
        )
        (altered,) = described(ApiKey.ALTER_CLIENT_QUOTAS, asked, response)
        assert (altered.result, altered.detail) == (result, {"producer_byte_rate": "1.0"})


def test_nothing_of_a_credential_is_recorded() -> None:
    asked = alter_user_scram_credentials.AlterUserScramCredentialsRequest(
        (alter_user_scram_credentials.ScramCredentialDeletion("bob", 1),),
        (alter_user_scram_credentials.ScramCredentialUpsertion("alice", 2, 4096, b"salt-1", b"secret-1"),),
    )
    response = alter_user_scram_credentials.AlterUserScramCredentialsResponse(
        (
            alter_user_scram_credentials.AlterUserScramCredentialsResult("bob", 91),
            alter_user_scram_credentials.AlterUserScramCredentialsResult("alice"),
        )
    )
    deleted, made = described(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, asked, response)
    assert (deleted.type, deleted.name, deleted.result) == ("user", "bob", FAILED)
    assert deleted.detail == {"SCRAM-SHA-256": "delete"}
    assert (made.name, made.result, made.detail) == ("alice", DONE, {"SCRAM-SHA-512": "set"})
    assert [each.name for each in named(asked)] == ["bob", "alice"]


def test_acls() -> None:
    asked = create_acls.CreateAclsRequest((create_acls.AclCreation(2, "t", "User:a", "*", 3, 3),))
    (made,) = described(
        ApiKey.CREATE_ACLS, asked, create_acls.CreateAclsResponse((create_acls.AclCreationResult(),))
    )
    assert made.detail == {
        "resource_type": "topic",
        "pattern": "literal",
        "principal": "User:a",
        "host": "*",
        "operation": "read",
        "permission": "allow",
    }
    matching = delete_acls.DeleteAclsMatchingAcl(2, "t", 3, "User:a", "*", 3, 3)
    wanted = delete_acls.DeleteAclsFilter(1, None, "User:a", None, 1, 1)
    response = delete_acls.DeleteAclsResponse(
        (
            delete_acls.DeleteAclsFilterResult(matching_acls=(matching, matching)),
            delete_acls.DeleteAclsFilterResult(),
        )
    )
    gone = described(ApiKey.DELETE_ACLS, delete_acls.DeleteAclsRequest((wanted, wanted)), response)
    assert [each.name for each in gone] == ["t", "t", "any"]
    assert gone[2].detail["filter"] == "no ACL matches"


@pytest.mark.parametrize(
    ("api", "request_", "response", "expected"),
    [
        (
            ApiKey.DELETE_RECORDS,
            delete_records.DeleteRecordsRequest(
                (delete_records.DeleteRecordsTopic("t", (delete_records.DeleteRecordsPartition(1, 7),)),), 1
            ),
            delete_records.DeleteRecordsResponse(
                (
                    delete_records.DeleteRecordsTopicResult(
                        "t", (delete_records.DeleteRecordsPartitionResult(1, 7),)
                    ),
                )
            ),
            [("partition", "t-1", DONE, {"before_offset": "7", "first_offset": "7"})],
        ),
        (
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            alter_partition_reassignments.AlterPartitionReassignmentsRequest(
                (
                    alter_partition_reassignments.ReassignableTopic(
                        "t", (alter_partition_reassignments.ReassignablePartition(0, (1, 2)),)
                    ),
                )
            ),
            alter_partition_reassignments.AlterPartitionReassignmentsResponse((), 31),
            [("partition", "t-0", DENIED, {"replicas": "1,2"})],
        ),
        (
            ApiKey.ELECT_LEADERS,
            elect_leaders.ElectLeadersRequest(None, election_type=1),
            elect_leaders.ElectLeadersResponse(
                (elect_leaders.ReplicaElectionResult("t", (elect_leaders.PartitionResult(0, 84),)),)
            ),
            [("partition", "t-0", FAILED, {"election": "unclean"})],
        ),
        (
            ApiKey.DELETE_GROUPS,
            delete_groups.DeleteGroupsRequest(("g",)),
            delete_groups.DeleteGroupsResponse((delete_groups.DeletableGroupResult("g", 68),)),
            [("group", "g", FAILED, {})],
        ),
        (
            ApiKey.OFFSET_DELETE,
            offset_delete.OffsetDeleteRequest("g", ()),
            offset_delete.OffsetDeleteResponse(30),
            [("group", "g", DENIED, {})],
        ),
        (
            ApiKey.UPDATE_FEATURES,
            update_features.UpdateFeaturesRequest((update_features.FeatureUpdate("f", 2),)),
            update_features.UpdateFeaturesResponse(),
            [("feature", "f", DONE, {"level": "2"})],
        ),
    ],
)
def test_others(api: ApiKey, request_: Any, response: Any, expected: list[tuple[Any, ...]]) -> None:
    assert [
        (each.type, each.name, each.result, each.detail) for each in described(api, request_, response)
    ] == expected


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        (create_topics.CreateTopicsRequest((create_topics.CreatableTopic("a"),)), ["a"]),
        (create_topics.CreateTopicsRequest((create_topics.CreatableTopic("a"),), validate_only=True), []),
        (delete_topics.DeleteTopicsRequest((TopicSelector("a"), TopicSelector(None, UUID(int=2))), 1), None),
        (create_acls.CreateAclsRequest((create_acls.AclCreation(2, "t", "User:a", "*", 3, 3),)), ["t"]),
        (delete_groups.DeleteGroupsRequest(("g",)), ["g"]),
        (elect_leaders.ElectLeadersRequest((elect_leaders.TopicPartitions("t"),)), ["t"]),
        (elect_leaders.ElectLeadersRequest(None), []),
        (update_features.UpdateFeaturesRequest((update_features.FeatureUpdate("f", 2),)), ["f"]),
    ],
)
def test_a_request_names_what_it_would_change(request_: Any, names: list[str] | None) -> None:
    assert [each.name for each in named(request_)] == (["a", str(UUID(int=2))] if names is None else names)


def test_delegation_tokens() -> None:
    hmac = b"the password of the token"
    renewers = (create_delegation_token.CreatableRenewers("User", "bob"),)
    asked = create_delegation_token.CreateDelegationTokenRequest(renewers, 5)
    response = create_delegation_token.CreateDelegationTokenResponse(
        0, "User", "alice", "User", "carol", max_timestamp_ms=9, token_id="id", hmac=hmac
    )
    (made,) = described(ApiKey.CREATE_DELEGATION_TOKEN, asked, response)
    fingerprint = made.detail.pop("fingerprint")
    assert made == Resource(
        "delegation-token",
        "id",
        DONE,
        detail={"owner": "User:alice", "renewers": "User:bob", "until": "9"},
    )
    (renewed,) = described(
        ApiKey.RENEW_DELEGATION_TOKEN,
        renew_delegation_token.RenewDelegationTokenRequest(hmac, -1),
        renew_delegation_token.RenewDelegationTokenResponse(0, 8),
    )
    assert renewed == Resource("delegation-token", fingerprint, DONE, detail={"until": "8"})
    ended = expire_delegation_token.ExpireDelegationTokenRequest(hmac, -1)
    (failed,) = described(
        ApiKey.EXPIRE_DELEGATION_TOKEN, ended, expire_delegation_token.ExpireDelegationTokenResponse(63)
    )
    assert (failed.name, failed.result) == (fingerprint, FAILED)
    assert [each.name for each in named(ended)] == [fingerprint]
    assert [each.name for each in named(asked)] == ["bob"]


def test_offsets_that_a_tool_commits_are_recorded_and_those_of_members_are_not() -> None:
    topics = (
        offset_commit.OffsetCommitTopic("a", partitions=(offset_commit.OffsetCommitPartition(1, 42),)),
        offset_commit.OffsetCommitTopic(
            topic_id=UUID(int=5), partitions=(offset_commit.OffsetCommitPartition(0, 7),)
        ),
    )
    asked = offset_commit.OffsetCommitRequest("g", topics=topics)
    response = offset_commit.OffsetCommitResponse(
        (
            offset_commit.OffsetCommitTopicResponse(
                "a", partitions=(offset_commit.OffsetCommitPartitionResponse(1),)
            ),
            offset_commit.OffsetCommitTopicResponse(
                topic_id=UUID(int=5), partitions=(offset_commit.OffsetCommitPartitionResponse(0, 25),)
            ),
        )
    )
    done, failed = described(ApiKey.OFFSET_COMMIT, asked, response)
    assert (done.name, done.result, done.detail) == ("a-1", DONE, {"group": "g", "offset": "42"})
    assert (failed.name, failed.result) == (f"{UUID(int=5)}-0", FAILED)
    assert not is_daily_work(ApiKey.OFFSET_COMMIT, asked)
    # The coordinator takes any member id without a generation while the group is empty.
    disguised = offset_commit.OffsetCommitRequest("g", -1, "member", topics)
    assert not is_daily_work(ApiKey.OFFSET_COMMIT, disguised)
    for member in (
        offset_commit.OffsetCommitRequest("g", 3, "member", topics),
        offset_commit.OffsetCommitRequest("g", 0, "", topics),
    ):
        assert is_daily_work(ApiKey.OFFSET_COMMIT, member)
    for asked_of in (asked, disguised, member):
        for version in range(2, 10):
            frame = memoryview(encode_request(ApiKey.OFFSET_COMMIT, version, asked_of, 1, client_id="c"))
            header = parse_request_header(frame, 4, len(frame))
            is_of_nobody = is_commit_of_nobody(version, frame, header.body_position, len(frame))
            assert is_of_nobody == (asked_of is not member)
