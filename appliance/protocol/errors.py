"""Kafka's error codes, in one table, and the one mapping from our error tree to them.

Each row is `NAME = code, retriable, message`: Kafka's name, the int16 on the wire, whether a client may send
the same request again and hope, and the sentence we answer with when nothing more exact is known. Whether a
code is retriable follows `clients/.../common/protocol/Errors.java` of Apache Kafka 4.3 and its exceptions.
"""

from __future__ import annotations

from enum import IntEnum

from appliance.errors import (
    ApplianceError,
    HostFault,
    MalformedFrame,
    OperatorFault,
    RejectedRequest,
    StorageFault,
)


class ErrorCode(IntEnum):
    """A Kafka error code; an int, so it can be packed as it stands."""

    retriable: bool
    message: str

    # The defaults are for type checkers: `ErrorCode(35)` looks a member up and never comes here.
    def __new__(cls, code: int, retriable: bool = False, message: str = "") -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.message = message
        return member

    UNKNOWN_SERVER_ERROR = -1, False, "The broker failed in a way it did not expect."
    NONE = 0, False, ""
    OFFSET_OUT_OF_RANGE = 1, False, "The offset lies outside of what the partition holds."
    CORRUPT_MESSAGE = 2, True, "A record batch fails its checksum or is otherwise damaged."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "This broker knows no such topic or partition."
    INVALID_FETCH_SIZE = 4, False, "The fetch size is not valid."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = 6, True, "This broker does not lead the partition."
    REQUEST_TIMED_OUT = 7, True, "The request was not completed within its time."
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica is not available."
    MESSAGE_TOO_LARGE = 10, False, "The batch is larger than max.message.bytes allows."
    STALE_CONTROLLER_EPOCH = 11, False, "A newer controller has taken over."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata beside the offset is too long."
    NETWORK_EXCEPTION = 13, True, "The connection was lost before an answer came."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is still loading its state."
    COORDINATOR_NOT_AVAILABLE = 15, True, "The coordinator is not available."
    NOT_COORDINATOR = 16, True, "This broker is not the coordinator for that."
    INVALID_TOPIC_EXCEPTION = 17, False, "The topic name is not legal for this operation."
    RECORD_LIST_TOO_LARGE = 18, False, "The batch is larger than a whole segment may be."
    NOT_ENOUGH_REPLICAS = 19, True, "Fewer replicas are in sync than min.insync.replicas asks for."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        True,
        "The records were appended, but fewer replicas are in sync than min.insync.replicas asks for.",
    )
    INVALID_REQUIRED_ACKS = 21, False, "acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, False, "The member speaks of another generation of its group."
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "The member's protocols do not fit those of its group."
    INVALID_GROUP_ID = 24, False, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, False, "The group has no such member."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout lies outside of what the broker allows."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing; the member must join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The offset commit is too large."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "Not authorized for this topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "Not authorized for this group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "Not authorized for the cluster."
    INVALID_TIMESTAMP = 32, False, "A record's timestamp is too far from the broker's clock."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, False, "The request does not fit the state of the authentication."
    UNSUPPORTED_VERSION = 35, False, "The broker does not serve this version of the API."
    TOPIC_ALREADY_EXISTS = 36, False, "A topic of this name exists already."
    INVALID_PARTITIONS = 37, False, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = (
        38,
        False,
        "The replication factor is below 1 or above the number of broker slots.",
    )
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The replica assignment is not valid."
    INVALID_CONFIG = 40, False, "A configuration entry is not valid."
    NOT_CONTROLLER = 41, True, "This broker is not the controller."
    INVALID_REQUEST = 42, False, "The request contradicts itself or the protocol."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The message format of the batch does not allow this."
    POLICY_VIOLATION = 44, False, "A policy of the broker forbids this."
    OUT_OF_ORDER_SEQUENCE_NUMBER = (
        45,
        False,
        "The sequence number does not follow the last one of this producer.",
    )
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The producer's batch was appended before."
    INVALID_PRODUCER_EPOCH = 47, False, "A producer with a newer epoch has taken over."
    INVALID_TXN_STATE = 48, False, "The transaction's state does not allow this."
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The producer id does not belong to this transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout is above transaction.max.timeout.ms."
    CONCURRENT_TRANSACTIONS = 51, True, "The transaction is still being completed."
    TRANSACTION_COORDINATOR_FENCED = 52, False, "A newer transaction coordinator has taken over."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Not authorized for this transactional id."
    SECURITY_DISABLED = 54, False, "Security is switched off on this broker."
    OPERATION_NOT_ATTEMPTED = 55, False, "The operation was not tried, because another of the request failed."
    KAFKA_STORAGE_ERROR = 56, True, "The log directory could not be read or written."
    LOG_DIR_NOT_FOUND = 57, False, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, False, "SASL authentication failed."
    UNKNOWN_PRODUCER_ID = 59, False, "The partition remembers nothing of this producer id."
    REASSIGNMENT_IN_PROGRESS = 60, False, "The partition is being reassigned."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are switched off."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "No such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "The delegation token belongs to someone else."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        False,
        "Delegation tokens may not be asked for on this connection.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "Not authorized for this delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, False, "Principals of this type are not supported."
    NON_EMPTY_GROUP = 68, False, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, False, "No such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "The broker does not remember this fetch session."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The fetch session stands at another epoch."
    LISTENER_NOT_FOUND = 72, True, "The leader has no listener like the one of this request."
    TOPIC_DELETION_DISABLED = 73, False, "Topics may not be deleted on this broker."
    FENCED_LEADER_EPOCH = 74, True, "The leader epoch is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The leader epoch is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = (
        76,
        False,
        "This version of the API does not allow the batch's compression.",
    )
    STALE_BROKER_EPOCH = 77, False, "A newer run of the broker has taken over."
    OFFSET_NOT_AVAILABLE = 78, True, "The leader's high watermark has not caught up after its election."
    MEMBER_ID_REQUIRED = 79, False, "The member must join again with the id it was given."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group is full."
    FENCED_INSTANCE_ID = 82, False, "Another member has taken this group instance id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No replica that could lead is available."
    ELECTION_NOT_NEEDED = 84, True, "The partition has the leader it should have."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "The partition is not being reassigned."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "The group is subscribed to this topic."
    INVALID_RECORD = 87, False, "A record is not valid for this topic."
    UNSTABLE_OFFSET_COMMIT = 88, True, "A transaction has yet to decide on these offsets."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "The quota for this operation is used up."
    PRODUCER_FENCED = 90, False, "A newer producer with this transactional id has taken over."
    RESOURCE_NOT_FOUND = 91, False, "No such resource."
    DUPLICATE_RESOURCE = 92, False, "A resource is named twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential does not meet what the broker asks for."
    INCONSISTENT_VOTER_SET = 94, False, "The voters disagree about who votes."
    INVALID_UPDATE_VERSION = 95, False, "The update carries a version that is not valid."
    FEATURE_UPDATE_FAILED = 96, False, "The feature could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "A forwarded principal could not be read."
    SNAPSHOT_NOT_FOUND = 98, False, "No such snapshot."
    POSITION_OUT_OF_RANGE = 99, False, "The position lies outside of the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "This broker knows no topic of this id."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "A broker with this id is registered already."
    BROKER_ID_NOT_REGISTERED = 102, False, "No broker with this id is registered."
    INCONSISTENT_TOPIC_ID = 103, True, "The topic id is not the one the broker has for this topic."
    INCONSISTENT_CLUSTER_ID = 104, False, "The cluster id is not ours."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "No such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The fetch session mixes topic names and topic ids."
    INELIGIBLE_REPLICA = 107, False, "The replica may not join the in-sync replicas."
    NEW_LEADER_ELECTED = 108, False, "The change led to a new leader, who is not this one."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The offset lies in tiered storage."
    FENCED_MEMBER_EPOCH = 110, False, "The group coordinator has fenced the member."
    UNRELEASED_INSTANCE_ID = 111, False, "Another member still holds this group instance id."
    UNSUPPORTED_ASSIGNOR = 112, False, "The group cannot use this assignor."
    STALE_MEMBER_EPOCH = 113, False, "The member must learn its new epoch and try again."
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The request was sent to the wrong kind of endpoint."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "Endpoints of this kind are not supported."
    UNKNOWN_CONTROLLER_ID = 116, False, "No controller with this id is known."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The telemetry subscription has changed."
    TELEMETRY_TOO_LARGE = 118, False, "The pushed telemetry is too large."
    INVALID_REGISTRATION = 119, False, "The controller considers the registration not valid."
    TRANSACTION_ABORTABLE = 120, False, "The transaction must be aborted."
    INVALID_RECORD_STATE = 121, False, "The record's state does not allow this acknowledgement."
    SHARE_SESSION_NOT_FOUND = 122, True, "The broker does not remember this share session."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The share session stands at another epoch."
    FENCED_STATE_EPOCH = 124, False, "The share coordinator has a newer state epoch."
    INVALID_VOTER_KEY = 125, False, "The voter's key is not the one on record."
    DUPLICATE_VOTER = 126, False, "The voter is one already."
    VOTER_NOT_FOUND = 127, False, "No such voter."
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = 129, False, "The client must bootstrap again."
    STREAMS_INVALID_TOPOLOGY = 130, False, "The streams topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The streams topology's epoch is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, False, "The streams topology's epoch is outdated."
    SHARE_SESSION_LIMIT_REACHED = 133, True, "The broker remembers as many share sessions as it may."


# From the most particular to the most general: the first that fits decides.
_CODE_OF_FAULT: tuple[tuple[type[ApplianceError], ErrorCode], ...] = (
    (MalformedFrame, ErrorCode.INVALID_REQUEST),
    (StorageFault, ErrorCode.KAFKA_STORAGE_ERROR),
    (HostFault, ErrorCode.KAFKA_STORAGE_ERROR),
    (OperatorFault, ErrorCode.INVALID_CONFIG),
)


def code_for(error: ApplianceError) -> ErrorCode:
    """The Kafka error code that a client is told for `error`.

    A defect of ours, or a code that Kafka does not know, becomes UNKNOWN_SERVER_ERROR.
    """
    if isinstance(error, RejectedRequest):
        return ErrorCode(error.code) if error.code in _KNOWN_CODES else ErrorCode.UNKNOWN_SERVER_ERROR
    for fault, code in _CODE_OF_FAULT:
        if isinstance(error, fault):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


def message_for(error: ApplianceError) -> str:
    """The sentence that a client is told for `error`; only a `RejectedRequest` speaks in its own words."""
    if isinstance(error, RejectedRequest):
        return error.message
    return code_for(error).message


_KNOWN_CODES = frozenset(int(code) for code in ErrorCode)
