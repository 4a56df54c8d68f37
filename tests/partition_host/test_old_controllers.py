"""A controller that another one has superseded commands nothing, whatever of it arrives late (KIP-631's fencing)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn
from uuid import UUID

import pytest

from appliance.channels.control_channel import Assign, AssignedPartition
from appliance.channels.partition_table import PartitionTable, table_size_bytes
from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.errors import StorageFault
from appliance.ioproc.group_commit import GroupCommit
from appliance.ioproc.partition import Partition
from appliance.ioproc.partitions import Partitions
from appliance.ioproc.pokes import Pokes
from appliance.log.flusher import Flusher
from appliance.log.log_directories import LogDirectories
from appliance.log.state_publisher import StatePublisher
from appliance.partition_host.copy_holder import CopyHolder, HeldCopy
from appliance.partition_host.listener import PartitionListener
from appliance.replicas.followers import Followers
from tests.log.batches import NOW_MS

TOPIC_ID = UUID(int=7)
KEPT, LATE = TopicPartition("t", 0), TopicPartition("t", 1)
Holder = CopyHolder[HeldCopy]
Make = Callable[[LogDirectories, PartitionTable, StatePublisher, list[str]], Holder]


def unexpected(*_: object) -> NoReturn:
    raise AssertionError("nothing here waits for a flush")


class NoFlushes(Flusher):
    """Threads that nobody gives work to."""

    def __init__(self) -> None:
        super().__init__("none", eventfd=-1)

    def submit(self, work: Callable[[], None], ended: Callable[[StorageFault | None], None]) -> None:
        raise AssertionError("nothing here waits for a flush")


def worker(
    directories: LogDirectories,
    table: PartitionTable,
    publisher: StatePublisher,
    said: list[str],
    *,
    directories_of: Callable[[int], list[Path]] = lambda _slot: [],
    listener: PartitionListener[Partition] | None = None,
) -> Partitions:
    listener = listener or PartitionListener()
    return Partitions(
        directories,
        table,
        slot=0,
        log_defaults={},
        warn=said.append,
        commits=GroupCommit(Pokes(table), reply=unexpected, flusher=NoFlushes(), listener=listener),
        clock=ManualClock(NOW_MS),
        publisher=publisher,
        directories_of=directories_of,
        listener=listener,
    )


def replica(
    directories: LogDirectories, table: PartitionTable, publisher: StatePublisher, said: list[str]
) -> Followers:
    return Followers(
        directories,
        table,
        slot=0,
        log_defaults={},
        directories_of=lambda _slot: [],
        publisher=publisher,
        listener=PartitionListener(),
        warn=said.append,
    )


@pytest.fixture(params=[worker, replica])
def holder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holder]:
    make: Make = request.param
    clock = ManualClock(NOW_MS)
    said: list[str] = []
    directories = LogDirectories.open([tmp_path], node_id=0, cluster_id="c", clock=clock)
    table = PartitionTable(memoryview(bytearray(table_size_bytes(4, 2))), slots=2)
    publisher = StatePublisher(lambda _ms, _action: None, clock, interval_ms=20, warn=said.append)
    yield make(directories, table, publisher, said)
    directories.abandon()


def assigned(holder: Holder, name: TopicPartition, *, epoch: int) -> AssignedPartition:
    leader = 0 if isinstance(holder, Partitions) else 1
    return AssignedPartition(
        "t", TOPIC_ID, name.partition, name.partition, 9, leader, epoch, (0, 1), (0, 1), {}
    )


def test_a_command_of_an_old_controller_epoch_changes_nothing(holder: Holder, tmp_path: Path) -> None:
    kept = assigned(holder, KEPT, epoch=5)
    assert holder.obey(Assign(3, "c", True, (kept,))) is not None
    place = ("t", TOPIC_ID, 0)
    before = dict(holder.by_name), sorted(os.listdir(tmp_path))
    for late in (
        Assign(2, "c", True),
        Assign(2, "c", False, (assigned(holder, LATE, epoch=0),)),
        Assign(2, "c", False, (assigned(holder, KEPT, epoch=4),)),
        Assign(2, "c", False, released=(place,)),
        Assign(2, "c", False, removed=(place,)),
        Assign(2, "c", False, log_defaults={"retention.ms": "1"}),
    ):
        assert holder.obey(late) is None, late
        assert (dict(holder.by_name), sorted(os.listdir(tmp_path))) == before
        assert holder.controller_epoch == 3
    # The same one again, and the next, are heard.
    for epoch in (3, 4):
        assert holder.obey(Assign(epoch, "c", False, (kept,))) is not None
    assert holder.obey(Assign(4, "c", False, removed=(place,))) is not None
    assert not holder.by_name
