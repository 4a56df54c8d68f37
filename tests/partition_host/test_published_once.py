"""A row is written once for each append and once for each flush, whatever else waits for the partition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.channels.request_channel import ERROR
from appliance.ioproc.partition import Partition
from tests.log.batches import batch_of
from tests.partition_host.slots import IOPROC, Slot


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    made = Slot(tmp_path, IOPROC)
    yield made
    made.close()


def watch(partition: Partition) -> list[int]:
    """The high watermark at each time that the partition's row is written: readers off the disk are told likewise."""
    seen: list[int] = []
    partition.is_marked = False
    partition.mark = lambda: seen.append(partition.high_watermark)
    return seen


@pytest.mark.parametrize("acks", [1, -1])
def test_a_replicated_fsync_partition_is_published_once_per_append_and_once_per_flush(
    slot: Slot, acks: int
) -> None:
    slot.hold(configs={"durability": "fsync"})
    partition = slot.worker.host.held_at(0)
    assert partition is not None
    assert partition.replication is not None
    seen = watch(partition)
    slot.produce(bytes(batch_of()), acks=acks)
    answers = slot.answers()
    assert [answer[ERROR] for answer in answers] == [0]
    assert seen == [0, 1]


def test_a_replicated_partition_is_published_once_per_append(slot: Slot) -> None:
    slot.hold()
    partition = slot.worker.host.held_at(0)
    assert partition is not None
    seen = watch(partition)
    slot.produce(bytes(batch_of()), acks=1)
    assert [answer[ERROR] for answer in slot.answers()] == [0]
    assert seen == [1]
