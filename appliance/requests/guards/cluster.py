"""Guards of requests about the cluster: one operation on it allows all of the request, or nothing.

Source: `KafkaApis.scala`, `ControllerApis.scala` and `AclApis.scala`, release 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from appliance.protocol.acl import AclOperation
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    QuotaAlterationResult,
)
from appliance.protocol.apis.alter_partition_reassignments import AlterPartitionReassignmentsResponse
from appliance.protocol.apis.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from appliance.protocol.apis.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from appliance.protocol.apis.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from appliance.protocol.apis.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from appliance.protocol.apis.describe_acls import DescribeAclsResponse
from appliance.protocol.apis.describe_client_quotas import DescribeClientQuotasResponse
from appliance.protocol.apis.describe_log_dirs import DescribeLogDirsResponse
from appliance.protocol.apis.describe_quorum import DescribeQuorumResponse
from appliance.protocol.apis.describe_user_scram_credentials import (
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from appliance.protocol.apis.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from appliance.protocol.apis.list_config_resources import ListConfigResourcesResponse
from appliance.protocol.apis.list_partition_reassignments import ListPartitionReassignmentsResponse
from appliance.protocol.apis.update_features import UpdateFeaturesResponse
from appliance.protocol.coordinator_errors import coordinator_error_response
from appliance.protocol.errors import ErrorCode
from appliance.requests.guards.verdict import Caller, Guard, Refused, Verdict
from appliance.requests.steps import Steps

_ERROR: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_DENIED: Final = int(_ERROR)


def _of_cluster(*operations: AclOperation, refusal: Callable[[Any, int], Any]) -> Guard:
    """A guard that wants one of the operations. `refusal` makes the response of a request and a version."""

    def guard(request: Any, caller: Caller) -> Steps[Verdict]:
        yield None
        if any(map(caller.may_of_cluster, operations)):
            return None
        return Refused(refusal(request, caller.version))

    return guard


def _refused_log_dirs(request: AlterReplicaLogDirsRequest, _version: int) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        tuple(
            AlterReplicaLogDirTopicResult(
                topic.name,
                tuple(AlterReplicaLogDirPartitionResult(number, _DENIED) for number in topic.partitions),
            )
            for directory in request.dirs
            for topic in directory.topics
        )
    )


def _refused_elections(request: ElectLeadersRequest, _version: int) -> ElectLeadersResponse:
    results = (
        ReplicaElectionResult(
            topic.topic,
            tuple(PartitionResult(number, _DENIED, _ERROR.message) for number in topic.partitions),
        )
        for topic in request.topic_partitions or ()
    )
    return ElectLeadersResponse(tuple(results), _DENIED)


def _refused_acls(request: CreateAclsRequest, _version: int) -> CreateAclsResponse:
    return CreateAclsResponse(tuple(AclCreationResult(_DENIED, _ERROR.message) for _ in request.creations))


def _refused_deletions(request: DeleteAclsRequest, _version: int) -> DeleteAclsResponse:
    return DeleteAclsResponse(tuple(DeleteAclsFilterResult(_DENIED, _ERROR.message) for _ in request.filters))


def _refused_credentials(
    request: AlterUserScramCredentialsRequest, _version: int
) -> AlterUserScramCredentialsResponse:
    deleted, made = (each.name for each in request.deletions), (each.name for each in request.upsertions)
    users = dict.fromkeys((*deleted, *made))
    return AlterUserScramCredentialsResponse(
        tuple(AlterUserScramCredentialsResult(user, _DENIED, _ERROR.message) for user in users)
    )


def _refused_quotas(request: AlterClientQuotasRequest, _version: int) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        tuple(QuotaAlterationResult(each.entity, _DENIED, _ERROR.message) for each in request.entries)
    )


describe_quorum = _of_cluster(
    AclOperation.DESCRIBE, refusal=lambda _, __: DescribeQuorumResponse((), _DENIED, _ERROR.message)
)
update_features = _of_cluster(
    AclOperation.ALTER, refusal=lambda _, __: UpdateFeaturesResponse(_DENIED, _ERROR.message)
)
elect_leaders = _of_cluster(AclOperation.ALTER, refusal=_refused_elections)
alter_partition_reassignments = _of_cluster(
    AclOperation.ALTER,
    refusal=lambda _, __: AlterPartitionReassignmentsResponse((), _DENIED, _ERROR.message),
)
list_partition_reassignments = _of_cluster(
    AclOperation.DESCRIBE,
    refusal=lambda _, __: ListPartitionReassignmentsResponse((), _DENIED, _ERROR.message),
)
list_config_resources = _of_cluster(
    AclOperation.DESCRIBE_CONFIGS, refusal=lambda _, __: ListConfigResourcesResponse(error_code=_DENIED)
)
describe_client_quotas = _of_cluster(
    AclOperation.DESCRIBE_CONFIGS,
    refusal=lambda _, __: DescribeClientQuotasResponse(None, _DENIED, _ERROR.message),
)
alter_client_quotas = _of_cluster(AclOperation.ALTER_CONFIGS, refusal=_refused_quotas)
describe_log_dirs = _of_cluster(
    AclOperation.DESCRIBE, refusal=lambda _, __: DescribeLogDirsResponse((), _DENIED)
)
alter_replica_log_dirs = _of_cluster(AclOperation.ALTER, refusal=_refused_log_dirs)
write_txn_markers = _of_cluster(
    AclOperation.ALTER,
    AclOperation.CLUSTER_ACTION,
    refusal=lambda request, version: coordinator_error_response(
        ApiKey.WRITE_TXN_MARKERS, version, request, _DENIED
    ),
)
describe_acls = _of_cluster(
    AclOperation.DESCRIBE, refusal=lambda _, __: DescribeAclsResponse((), _DENIED, _ERROR.message)
)
create_acls = _of_cluster(AclOperation.ALTER, refusal=_refused_acls)
delete_acls = _of_cluster(AclOperation.ALTER, refusal=_refused_deletions)
describe_user_scram_credentials = _of_cluster(
    AclOperation.DESCRIBE,
    # Kafka puts a result of nobody beside the error.
    refusal=lambda _, __: DescribeUserScramCredentialsResponse(
        (DescribeUserScramCredentialsResult("", _DENIED),), _DENIED
    ),
)
alter_user_scram_credentials = _of_cluster(AclOperation.ALTER, refusal=_refused_credentials)
