"""Rounds of questions about groups: what is noted of an answer, and which lag follows from it later."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from appliance.channels.metadata_image import ImagePublisher
from appliance.channels.partition_table import (
    HIGH_WATERMARK,
    INCARNATION,
    LAST_STABLE_OFFSET,
    SERVING_INCARNATION,
    PartitionTable,
)
from appliance.channels.roles import RoleKind
from appliance.channels.wiring import Attachment
from appliance.cluster import BrokerSlot, ClusterImage, PartitionImage, TopicImage
from appliance.ipc.shared_memory import Region
from appliance.metrics.group_lag import lags
from appliance.metrics.groups import CLIENT_ID, GROUPS_AT_ONCE, Group, ends_of, questions_about
from appliance.metrics.proc_files import ProcFiles
from appliance.metrics.snapshot import Memory
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from appliance.protocol.apis.describe_groups import DescribeGroupsRequest
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest
from appliance.protocol.messages import encode_request
from tests.process.started import Shared

SHARE_BYTES: Final = 100_000
TOPIC: Final = "orders"


def image() -> ClusterImage:
    partitions = tuple(PartitionImage(row, row, row + 1, 0, 1, (0,), (0,)) for row in range(2))
    topics = {TOPIC: TopicImage(TOPIC, UUID(int=1), partitions)}
    return ClusterImage(1, "c", 0, 1, (BrokerSlot(0, "127.0.0.1", 9092),), topics)


class Host:
    """The metrics process's shared memory, and the words that a worker writes."""

    def __init__(self, shared: Shared) -> None:
        wiring = shared.wiring
        ImagePublisher(wiring.runtime_dir, Region.open(wiring.image_name).view).publish(image())
        self.table = PartitionTable(Region.open(wiring.partitions_name).view, slots=2)
        kept = [memoryview(bytearray(4096)).cast("q")]
        attachment = Attachment(wiring, shared.role, 1, shared.peers)
        self.memory = Memory(attachment, ProcFiles(kept, parent=os.getpid()))

    def serve(self, row: int, *, high_watermark: int, last_stable_offset: int, incarnation: int = 0) -> None:
        at, cells = self.table.at(row), self.table.cells
        cells[at + INCARNATION] = cells[at + SERVING_INCARNATION] = incarnation or row + 1
        cells[at + HIGH_WATERMARK] = high_watermark
        cells[at + LAST_STABLE_OFFSET] = last_stable_offset


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    shared = Shared(RoleKind.METRICS, tmp_path)
    yield Host(shared)
    shared.remove()


def test_a_lag_compares_with_the_end_of_the_same_round(host: Host) -> None:
    host.serve(0, high_watermark=10, last_stable_offset=9)
    group = Group("readers", {(TOPIC, 0): 8})
    group.ends = ends_of(image(), host.table, group.committed)
    # A minute later: 100 records more, which the group has read, and no round has seen that.
    host.serve(0, high_watermark=110, last_stable_offset=110)
    (lag,) = lags(host.memory.look(), [group], {}, now_ms=0)
    assert lag.records == {0: 2}
    assert lag.stable_records == {0: 1}


def test_a_partition_that_nobody_served_in_the_round_has_no_lag(host: Host) -> None:
    group = Group("readers", {(TOPIC, 0): 8, (TOPIC, 1): 3, (TOPIC, 2): 5, ("gone", 0): 1})
    host.serve(0, high_watermark=10, last_stable_offset=10)
    group.ends = ends_of(image(), host.table, group.committed)
    host.serve(1, high_watermark=10, last_stable_offset=10)
    (lag,) = lags(host.memory.look(), [group], {}, now_ms=0)
    assert lag.records == {0: 2}


def test_an_end_of_an_earlier_incarnation_makes_no_lag(host: Host) -> None:
    host.serve(0, high_watermark=10, last_stable_offset=10)
    group = Group("readers", {(TOPIC, 0): 8})
    group.ends = ends_of(image(), host.table, group.committed)
    host.serve(0, high_watermark=1, last_stable_offset=1, incarnation=9)
    (lag,) = lags(host.memory.look(), [group], {}, now_ms=0)
    assert lag.records == {}


def test_a_question_has_no_more_groups_and_no_more_bytes_than_it_may() -> None:
    short = [f"group-{number:03}" for number in range(2 * GROUPS_AT_ONCE + 1)]
    long = [f"{number:03}" + "ä" * 16_000 for number in range(7)]
    too_long = "x" * SHARE_BYTES
    questions = list(questions_about([*long, too_long, *short], bytes_max=SHARE_BYTES))
    assert [name for some in questions for name in some] == [*long, *short]
    for some in questions:
        assert 0 < len(some) <= GROUPS_AT_ONCE
        for key, version, request in (
            (
                ApiKey.OFFSET_FETCH,
                8,
                OffsetFetchRequest(groups=tuple(map(OffsetFetchGroup, some)), with_commit_times=True),
            ),
            (ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(tuple(some))),
            (ApiKey.CONSUMER_GROUP_DESCRIBE, 0, ConsumerGroupDescribeRequest(tuple(some))),
        ):
            assert len(encode_request(key, version, request, 1, client_id=CLIENT_ID)) <= SHARE_BYTES
