"""Which APIs exist, in which versions, and which of them this broker serves: one table.

A row is `NAME = key, min, max, first flexible version, state`. The ranges are those of Apache Kafka 4.3
(`clients/src/main/resources/common/message/*Request.json`); clients infer what kind of broker they talk to
from the set of maxima, so a range is served whole or not at all. To serve one more API, give its row
`SERVED` and write its shapes (see the room's README); what is not built is not advertised.

Four rows need a reason:
  Produce          advertised from 0 though 0-2 are refused: librdkafka before 2.11.1 asks for v0 before it
                   compresses, and would silently send everything plain (KAFKA-18659).
  ApiVersions      a version above ours is answered in the body of v0 with error 35 and our range (KIP-511).
  …Telemetry       advertised only with the option metrics.client.telemetry, as Kafka does only with a plugin that
                   receives client metrics: every client that sees them begins to push.
  InitProducerId   v6 is marked unstable in Kafka 4.3 and therefore not advertised.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

NEVER = 1 << 15
"""First flexible version of an API that has none."""

SERVED = True
LATER = False


class ApiKey(IntEnum):
    """An API by its key on the wire, with the versions that Kafka 4.3 serves to clients."""

    min_version: int
    max_version: int
    first_flexible: int
    served: bool

    # The defaults are for type checkers: `ApiKey(3)` looks a member up and never comes here.
    def __new__(
        cls, key: int, low: int = 0, high: int = 0, flexible: int = NEVER, served: bool = LATER
    ) -> ApiKey:
        member = int.__new__(cls, key)
        member._value_ = key
        member.min_version = low
        member.max_version = high
        member.first_flexible = flexible
        member.served = served
        return member

    PRODUCE = 0, 3, 13, 9, SERVED
    FETCH = 1, 4, 18, 12, SERVED
    LIST_OFFSETS = 2, 1, 11, 6, SERVED
    METADATA = 3, 0, 13, 9, SERVED
    OFFSET_COMMIT = 8, 2, 10, 8, SERVED
    OFFSET_FETCH = 9, 1, 10, 6, SERVED
    FIND_COORDINATOR = 10, 0, 6, 3, SERVED
    JOIN_GROUP = 11, 0, 9, 6, SERVED
    HEARTBEAT = 12, 0, 4, 4, SERVED
    LEAVE_GROUP = 13, 0, 5, 4, SERVED
    SYNC_GROUP = 14, 0, 5, 4, SERVED
    DESCRIBE_GROUPS = 15, 0, 6, 5, SERVED
    LIST_GROUPS = 16, 0, 5, 3, SERVED
    SASL_HANDSHAKE = 17, 0, 1, NEVER, SERVED
    API_VERSIONS = 18, 0, 4, 3, SERVED
    CREATE_TOPICS = 19, 2, 7, 5, SERVED
    DELETE_TOPICS = 20, 1, 6, 4, SERVED
    DELETE_RECORDS = 21, 0, 2, 2, SERVED
    INIT_PRODUCER_ID = 22, 0, 5, 2, SERVED
    OFFSET_FOR_LEADER_EPOCH = 23, 2, 4, 4, SERVED
    ADD_PARTITIONS_TO_TXN = 24, 0, 5, 3, SERVED
    ADD_OFFSETS_TO_TXN = 25, 0, 4, 3, SERVED
    END_TXN = 26, 0, 5, 3, SERVED
    WRITE_TXN_MARKERS = 27, 1, 2, 1, SERVED
    TXN_OFFSET_COMMIT = 28, 0, 5, 3, SERVED
    DESCRIBE_ACLS = 29, 1, 3, 2, SERVED
    CREATE_ACLS = 30, 1, 3, 2, SERVED
    DELETE_ACLS = 31, 1, 3, 2, SERVED
    DESCRIBE_CONFIGS = 32, 1, 4, 4, SERVED
    ALTER_CONFIGS = 33, 0, 2, 2, SERVED
    ALTER_REPLICA_LOG_DIRS = 34, 1, 2, 2, SERVED
    DESCRIBE_LOG_DIRS = 35, 1, 5, 2, SERVED
    SASL_AUTHENTICATE = 36, 0, 2, 2, SERVED
    CREATE_PARTITIONS = 37, 0, 3, 2, SERVED
    CREATE_DELEGATION_TOKEN = 38, 1, 3, 2, SERVED
    RENEW_DELEGATION_TOKEN = 39, 1, 2, 2, SERVED
    EXPIRE_DELEGATION_TOKEN = 40, 1, 2, 2, SERVED
    DESCRIBE_DELEGATION_TOKEN = 41, 1, 3, 2, SERVED
    DELETE_GROUPS = 42, 0, 2, 2, SERVED
    ELECT_LEADERS = 43, 0, 2, 2, SERVED
    INCREMENTAL_ALTER_CONFIGS = 44, 0, 1, 1, SERVED
    ALTER_PARTITION_REASSIGNMENTS = 45, 0, 1, 0, SERVED
    LIST_PARTITION_REASSIGNMENTS = 46, 0, 0, 0, SERVED
    OFFSET_DELETE = 47, 0, 0, NEVER, SERVED
    DESCRIBE_CLIENT_QUOTAS = 48, 0, 1, 1, SERVED
    ALTER_CLIENT_QUOTAS = 49, 0, 1, 1, SERVED
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, 0, 0, 0, SERVED
    ALTER_USER_SCRAM_CREDENTIALS = 51, 0, 0, 0, SERVED
    DESCRIBE_QUORUM = 55, 0, 2, 0, SERVED
    UPDATE_FEATURES = 57, 0, 2, 0, SERVED
    DESCRIBE_CLUSTER = 60, 0, 2, 0, SERVED
    DESCRIBE_PRODUCERS = 61, 0, 0, 0, SERVED
    UNREGISTER_BROKER = 64, 0, 0, 0, LATER
    DESCRIBE_TRANSACTIONS = 65, 0, 0, 0, SERVED
    LIST_TRANSACTIONS = 66, 0, 2, 0, SERVED
    CONSUMER_GROUP_HEARTBEAT = 68, 0, 1, 0, SERVED
    CONSUMER_GROUP_DESCRIBE = 69, 0, 1, 0, SERVED
    GET_TELEMETRY_SUBSCRIPTIONS = 71, 0, 0, 0, SERVED
    PUSH_TELEMETRY = 72, 0, 0, 0, SERVED
    LIST_CONFIG_RESOURCES = 74, 0, 1, 0, SERVED
    DESCRIBE_TOPIC_PARTITIONS = 75, 0, 0, 0, SERVED
    SHARE_GROUP_HEARTBEAT = 76, 1, 1, 0, LATER
    SHARE_GROUP_DESCRIBE = 77, 1, 1, 0, LATER
    SHARE_FETCH = 78, 1, 2, 0, LATER
    SHARE_ACKNOWLEDGE = 79, 1, 2, 0, LATER
    ADD_RAFT_VOTER = 80, 0, 1, 0, LATER
    REMOVE_RAFT_VOTER = 81, 0, 0, 0, LATER
    STREAMS_GROUP_HEARTBEAT = 88, 0, 0, 0, LATER
    STREAMS_GROUP_DESCRIBE = 89, 0, 0, 0, LATER
    DESCRIBE_SHARE_GROUP_OFFSETS = 90, 0, 1, 0, LATER
    ALTER_SHARE_GROUP_OFFSETS = 91, 0, 0, 0, LATER
    DELETE_SHARE_GROUP_OFFSETS = 92, 0, 0, 0, LATER

    @property
    def title(self) -> str:
        """The name as Kafka writes it: `ListOffsets`."""
        return self.name.title().replace("_", "")

    def request_header_version(self, version: int) -> int:
        """1, or 2 for flexible versions."""
        return 2 if version >= self.first_flexible else 1

    def response_header_version(self, version: int) -> int:
        """0, or 1 for flexible versions; ApiVersions always 0, so that any client can read the answer."""
        if self is ApiKey.API_VERSIONS:
            return 0
        return 1 if version >= self.first_flexible else 0


class AdvertisedVersions(NamedTuple):
    """One row of an ApiVersions response: versions `min_version` to `max_version`, both included."""

    api_key: int
    min_version: int
    max_version: int


PRODUCE_ADVERTISED_MIN = 0

SERVED_VERSIONS: dict[int, tuple[int, int, int]] = {
    int(api): (api.min_version, api.max_version, api.first_flexible) for api in ApiKey if api.served
}
"""Key to (lowest, highest, first flexible) version, of served APIs only: what a request header is held
against."""

ADVERTISED: tuple[AdvertisedVersions, ...] = tuple(
    AdvertisedVersions(
        int(api),
        PRODUCE_ADVERTISED_MIN if api is ApiKey.PRODUCE else api.min_version,
        api.max_version,
    )
    for api in ApiKey
    if api.served
)
"""What an ApiVersions response lists, by ascending key, where clients may push their metrics."""

TELEMETRY = frozenset({int(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS), int(ApiKey.PUSH_TELEMETRY)})
ADVERTISED_WITHOUT_TELEMETRY: tuple[AdvertisedVersions, ...] = tuple(
    row for row in ADVERTISED if row.api_key not in TELEMETRY
)
"""What it lists elsewhere."""


def is_served(api_key: int, version: int) -> bool:
    """Whether a request of this key and version can be parsed and answered."""
    row = SERVED_VERSIONS.get(api_key)
    return row is not None and row[0] <= version <= row[1]


def api_name(api_key: int) -> str:
    """A name for log lines: `Metadata`, or `API 12345` for a key that Kafka does not know."""
    return _TITLES.get(api_key) or f"API {api_key}"


_TITLES = {int(api): api.title for api in ApiKey}
