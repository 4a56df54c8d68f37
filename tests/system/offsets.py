"""Committing offsets and asking for them, off a bare socket, until no answer says "come again"."""

from __future__ import annotations

import time
from typing import Any

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.find_coordinator import FindCoordinatorRequest
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.errors import ErrorCode
from tests.support.wire import WireSocket
from tests.system.raw import ask

RETRIED = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
}
SETTINGS = {
    "offsets.retention.check.interval.ms": 100,
    "offsets.topic.num.partitions": 8,
    "group.initial.rebalance.delay.ms": 20_000,
    "process.restart.backoff.max.ms": 100,  # one coordinator after the other is killed here
}


def topic_id(port: int, topic: str) -> Any:
    with WireSocket(port) as connection:
        response = ask(connection, ApiKey.METADATA, MetadataRequest((TopicSelector(name=topic),)))
    return response.topics[0].topic_id


def commit_request(
    group: str, topic: str, offset: int, *, partitions: int = 1, **fields: Any
) -> OffsetCommitRequest:
    each = tuple(OffsetCommitPartition(index, offset, f"note {offset}") for index in range(partitions))
    return OffsetCommitRequest(group, topics=(OffsetCommitTopic(topic, partitions=each),), **fields)


def commit(connection: WireSocket, request: OffsetCommitRequest, *, version: int = 9) -> list[int]:
    """The errors by partition, once no answer says "come again"."""
    deadline = time.monotonic() + 30
    while True:
        response = ask(connection, ApiKey.OFFSET_COMMIT, request, version=version)
        errors = [p.error_code for topic in response.topics for p in topic.partitions]
        if not RETRIED.intersection(errors):
            return errors
        assert time.monotonic() < deadline, errors
        if ErrorCode.COORDINATOR_NOT_AVAILABLE in errors:
            find(connection, request.group_id)
        time.sleep(0.01)


def find(connection: WireSocket, group: str) -> Any:
    request = FindCoordinatorRequest(coordinator_keys=(group,))
    return ask(connection, ApiKey.FIND_COORDINATOR, request).coordinators[0]


def committed(connection: WireSocket, group: str, topic: str, partition: int = 0) -> int:
    """The committed offset, -1 for none, once no answer says "come again"."""
    wanted = (OffsetFetchTopic(topic, partition_indexes=(partition,)),)
    deadline = time.monotonic() + 30
    while True:
        request = OffsetFetchRequest(groups=(OffsetFetchGroup(group, wanted),))
        (answer,) = ask(connection, ApiKey.OFFSET_FETCH, request, version=9).groups
        if answer.error_code not in RETRIED:
            assert not answer.error_code
            offset: int = answer.topics[0].partitions[0].committed_offset
            return offset
        assert time.monotonic() < deadline, answer
        time.sleep(0.01)
