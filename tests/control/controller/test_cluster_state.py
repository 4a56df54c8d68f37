"""What is visible exists: late news of a topic that was replaced shows nothing."""

from __future__ import annotations

from uuid import UUID

import pytest

from appliance.channels.partition_table import PartitionTable, table_size_bytes
from appliance.cluster import PartitionImage, TopicImage
from appliance.control.controller.cluster_state import ClusterState
from appliance.control.controller.partition_rows import PartitionRows


def new_topic(state: ClusterState, topic_id: int, partitions: int = 1) -> TopicImage:
    rows = [state.rows.take() for _ in range(partitions)]
    return TopicImage(
        "t",
        UUID(int=topic_id),
        tuple(PartitionImage(n, row, use, 0, 0, (0,), (0,)) for n, (row, use) in enumerate(rows)),
    )


@pytest.fixture
def state() -> ClusterState:
    table = PartitionTable(memoryview(bytearray(table_size_bytes(8, 1))), slots=1)
    return ClusterState(PartitionRows(table, controller_epoch=1), (0,))


def test_topic_shows_as_many_partitions_as_are_served(state: ClusterState) -> None:
    topic = new_topic(state, 1, partitions=3)
    state.add(topic)
    state.dirty = False
    state.show(topic, topic.partitions[:2])
    assert state.visible["t"].partitions == topic.partitions[:2]
    assert state.dirty
    state.show(topic, topic.partitions[:1])
    assert len(state.visible["t"].partitions) == 2
    state.show(topic, topic.partitions)
    assert state.visible["t"] is topic
    state.check()


def test_late_news_of_a_replaced_topic_shows_nothing(state: ClusterState) -> None:
    old = new_topic(state, 1)
    state.add(old)
    state.remove("t")
    for partition in old.partitions:
        state.rows.give_back(partition.row)
    state.show(old, old.partitions)
    assert state.visible == {}
    new = new_topic(state, 2)
    state.add(new)
    state.show(old, old.partitions)
    assert state.visible == {}
    state.show(new, new.partitions)
    assert state.visible == {"t": new}
    state.check()


def test_names_that_collide_are_known_until_they_go(state: ClusterState) -> None:
    state.add(new_topic(state, 1))
    assert state.existing().names_by_metric == {"t": {"t"}}
    state.remove("t")
    assert state.existing().names_by_metric == {}
