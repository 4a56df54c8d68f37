"""Logs with later leader epochs than the store, which is that of a backup: the store is raised above them for good."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from uuid import UUID

import pytest

from appliance.channels.control_channel import Assigned, Envelope, LogAhead, LogsAhead, NewTopic
from appliance.channels.partition_table import LEADER_EPOCH
from appliance.cluster import PartitionImage
from appliance.control.controller.controller import Controller
from appliance.control.store.znode_tree import (
    PartitionStateRecord,
    decode,
    encode,
    partition_state_path,
    topic_path,
    topic_record,
)
from tests.control.controller.conftest import NewInstance
from tests.control.controller.instance import Instance

SLOTS = 3


@pytest.fixture
def three(new_instance: NewInstance) -> Instance:
    instance = new_instance(slots=SLOTS)
    instance.start()
    instance.start_slots()
    assert instance.create(NewTopic("t", assignments={0: (0, 1, 2)}))[0].error == 0
    return instance


def report(
    instance: Instance, partition: PartitionImage, *, log_epoch: int, longest_slot: int, by: int | None = None
) -> None:
    """The worker of the leader, or of another slot, says what it has found."""
    topic_id = next(iter(instance.disks[partition.replicas[0]].values()))
    slot = partition.leader if by is None else by
    ahead = LogAhead(
        "t",
        topic_id,
        partition.partition,
        partition.incarnation,
        partition.leader_epoch,
        log_epoch,
        longest_slot,
    )
    assert instance.workers[slot].link.ask(LogsAhead(slot, (ahead,))) is not None


def stored(instance: Instance) -> PartitionStateRecord:
    path = partition_state_path("t", 0)
    return decode(PartitionStateRecord, instance.read_store(path), path=path)


@pytest.mark.parametrize("longest_slot", [0, 2])
def test_the_leader_epoch_is_raised_and_the_longest_log_leads(three: Instance, longest_slot: int) -> None:
    before = three.partition("t")
    report(three, before, log_epoch=7, longest_slot=longest_slot)
    three.until(lambda: three.partition("t").leader_epoch == 8)
    after = three.partition("t")
    assert (after.leader, after.isr, after.replicas) == (longest_slot, (longest_slot,), (0, 1, 2))
    assert three.table.cells[three.table.at(after.row) + LEADER_EPOCH] == 8
    assert three.workers[longest_slot].led["t", 0].leader_epoch == 8
    three.kill()
    assert stored(three).leader_epoch == 8, "whoever begins next does not go back"


def test_a_report_counts_before_the_failure_that_follows_it() -> None:
    """Both arrive in one turn. By the failure alone another slot would be elected, in an epoch that the logs have."""
    report = LogsAhead(0, (LogAhead("t", UUID(int=7), 0, 1, 3, 4, 0),))
    failure = (b"worker", Envelope(1, Assigned(1, {"t-0": (56, "its log is ahead")})))
    of_a_stranger = (b"stranger", Envelope(3, report))
    raised: list[LogsAhead] = []
    controller = SimpleNamespace(
        leadership=SimpleNamespace(raise_epochs=raised.append),
        _is_of=lambda _slot, sender, *_kinds: sender == b"worker",
    )
    left = Controller._without_reports(
        controller,  # type: ignore[arg-type] # the two parts that it asks
        [failure, (b"worker", Envelope(2, report)), of_a_stranger],
    )
    assert raised == [report]
    assert left == [failure, of_a_stranger]


def test_a_kill_between_the_report_and_the_answer_loses_neither_copy_nor_epoch(three: Instance) -> None:
    before = three.partition("t")
    three.kill()
    report(three, before, log_epoch=7, longest_slot=2)  # the next controller has not heard of this worker yet
    three.start()
    assert stored(three).leader_epoch == before.leader_epoch
    for each in three.processes():
        each.hello()
    three.until(lambda: len(three.workers[0].commands) >= 2)
    report(three, before, log_epoch=7, longest_slot=2)
    three.until(lambda: three.partition("t").leader_epoch == 8)
    assert three.partition("t").leader == 2


def test_a_report_of_another_time_changes_nothing(three: Instance) -> None:
    before = three.partition("t")
    report(three, before, log_epoch=7, longest_slot=0)
    report(three, before, log_epoch=9, longest_slot=2)
    report(three, before, log_epoch=9, longest_slot=2, by=1)
    three.until(lambda: three.partition("t").leader_epoch == 8)
    assert three.create("another")[0].error == 0
    after = three.partition("t")
    assert (after.leader, after.leader_epoch) == (0, 8)


def with_a_copy_to_go(new_instance: NewInstance) -> tuple[Instance, UUID]:
    """A controller of two slots begins: slot 1 leads t-0, and slot 0 has a copy that is to be deleted."""
    instance = new_instance(slots=2)
    instance.start()
    instance.start_slots()
    (created,) = instance.create(NewTopic("t", assignments={0: (1,)}))
    topic_id = created.topic_id
    assert topic_id is not None
    instance.stop()
    instance.change_store(topic_path("t"), encode(topic_record(topic_id, {0: (1,)}, leaving={0: (0,)})))
    instance.disks[0]["t", 0] = topic_id
    instance.new_memory()
    instance.launch()
    instance.hear_child()
    return instance, topic_id


def removed(instance: Instance) -> Iterable[tuple[str, UUID, int]]:
    return (place for each in instance.processes() for command in each.commands for place in command.removed)


def test_the_only_copy_with_records_is_not_deleted_where_the_backup_has_it_as_one_to_go(
    new_instance: NewInstance,
) -> None:
    """At the time of the backup the partition had just been moved to slot 1; since then it was moved back."""
    instance, topic_id = with_a_copy_to_go(new_instance)
    for slot in (0, 1):
        instance.start_worker(slot).mute = slot == 1
        instance.start_replica(slot)
    leader = instance.workers[1]
    instance.until(lambda: bool(leader.led) and all(each.commands for each in instance.processes()))
    assigned = leader.led["t", 0]
    ahead = LogAhead("t", topic_id, 0, assigned.incarnation, assigned.leader_epoch, 7, 0)
    leader.link.ask(LogsAhead(1, (ahead,)))
    leader.failures["t-0"] = (56, "its log is behind")
    leader.mute = False
    instance.until(lambda: instance.images.version > 0 and instance.partition("t").leader == 0)
    after = instance.partition("t")
    assert (after.leader_epoch, after.isr, after.replicas, after.leaving) == (8, (0,), (1, 0), ())
    assert instance.disks[0]["t", 0] == topic_id
    assert not list(removed(instance))


def test_a_copy_that_is_to_go_is_deleted_once_the_leader_leads(new_instance: NewInstance) -> None:
    instance, _ = with_a_copy_to_go(new_instance)
    instance.start_slots()
    instance.until(lambda: ("t", 0) not in instance.disks[0])
    assert instance.partition("t").leader == 1
