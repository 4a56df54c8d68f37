"""The first service of the runtime: what a partition's machine does between its loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from appliance.cluster import CONSUMER_OFFSETS
from appliance.control.coordinator.group_machines import GroupMachine, GroupMachines
from appliance.control.coordinator.offsets.offset_book import OffsetBook
from appliance.control.coordinator.runtime.effects import Append, Effects, Producer, Record
from appliance.control.coordinator.runtime.runtime import Share
from appliance.control.coordinator.transaction.effects import Marker
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.offset_records import (
    CommittedOffset,
    encode_value,
    offset_key,
    parse_key,
)
from tests.control.coordinator.runtime.host import Host


class Book(OffsetBook):
    """Says that it was packed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_packed = False

    def packing(self) -> Iterator[int]:
        self.is_packed = True
        yield 1


class Shards:
    """Keeps what is to be done later."""

    def __init__(self) -> None:
        self.actions: list[Any] = []

    def later(self, _delay_ms: int, action: Any) -> None:
        self.actions.append(action)

    def run_in_steps(self, steps: Iterator[Any], **_arguments: Any) -> None:
        list(steps)


class Owner(GroupMachines):
    """The service without its groups, which packing does not need."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards  # type: ignore[assignment] # two of its methods are enough


def test_only_the_book_of_the_finished_load_is_packed() -> None:
    """A load that is under way when the time comes has given places in its book away: they must stay valid."""
    shards = Shards()
    owner = Owner(shards)
    machine = GroupMachine(owner, 0)
    loaded, loading = Book(), Book()
    machine.book = loaded
    owner.pack_later(machine)
    machine.book = loading
    for action in shards.actions:
        action()
    assert (loaded.is_packed, loading.is_packed) == (True, False)


def test_a_book_is_packed_after_its_load() -> None:
    shards = Shards()
    owner = Owner(shards)
    machine = GroupMachine(owner, 0)
    machine.book = book = Book()
    owner.pack_later(machine)
    (action,) = shards.actions
    action()
    assert book.is_packed


OLD_ID, NEW_ID = UUID(int=1), UUID(int=2)
PRODUCER = Producer(7, 0)
COMMIT, ABORT = (Marker(PRODUCER.producer_id, PRODUCER.epoch, commit, 0, 1) for commit in (True, False))


def value_of(topic_id: UUID) -> bytes:
    return encode_value(CommittedOffset(1, 0, "", 1, topic_id=topic_id))


@pytest.mark.parametrize("ids", [{}, {"t": NEW_ID}], ids=["deleted", "made anew"])
def test_pending_offsets_of_a_deleted_topic_go_with_it_and_those_of_a_new_one_stay(
    ids: dict[str, UUID],
) -> None:
    owner = Owner(Shards())
    owner.gone, owner.ids = frozenset({"t"}), ids
    machine = GroupMachine(owner, 3)
    machine.book.put_pending(7, "g", "t", 0, value_of(OLD_ID))
    machine.book.put_pending(7, "g", "u", 0, value_of(OLD_ID))
    machine.book.put_pending(7, "h", "t", 1, value_of(NEW_ID))
    effects = machine.image_changed()
    deleted = [
        parse_key(record.key) for each in effects if isinstance(each, Append) for record in each.records
    ]
    wanted = [("g", "t", 0)] if ids else [("g", "t", 0), ("h", "t", 1)]
    assert deleted == wanted
    assert all(
        record.value is None for each in effects if isinstance(each, Append) for record in each.records
    )


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path, CONSUMER_OFFSETS, groups_of, partitions=1)
    made.settle()
    yield made
    made.close()


def groups_of(host: Host) -> GroupMachines:
    return GroupMachines(host.settings, host.image, host.clock)


def service(host: Host) -> GroupMachines:
    assert isinstance(host.service, GroupMachines)
    return host.service


def write_in_transaction(host: Host, group: str) -> None:
    host.led[0].log.permit_transaction(PRODUCER.producer_id, PRODUCER.epoch)
    records = (Record(offset_key(group, "t", 0), value_of(OLD_ID)),)

    def ended(error: int) -> Effects:
        assert not error
        return []

    host.shards.carry_out([Append(0, records, ended, PRODUCER)])
    host.settle()


def marked(host: Host, marker: Marker, partition: int = 0) -> list[int]:
    outcomes: list[int] = []
    service(host).write_marker(partition, marker, outcomes.append)
    return outcomes


def pass_an_expiry(host: Host) -> None:
    host.clock.advance(host.settings.offsets.retention_check_interval_ms + 1)
    host.turn()
    host.settle()


def test_a_group_with_nothing_but_an_open_transaction_is_there_until_its_marker(host: Host) -> None:
    write_in_transaction(host, "g")
    pass_an_expiry(host)
    assert len(service(host).groups) == 1
    aborted = marked(host, ABORT)
    host.settle()
    assert aborted == [0]
    assert len(service(host).groups) == 1, "until the next look at the groups"
    pass_an_expiry(host)
    assert len(service(host).groups) == 0


def test_a_group_of_an_open_transaction_is_known_again_after_a_load(host: Host) -> None:
    write_in_transaction(host, "g")
    host.kill_coordinator()
    host.settle()
    assert len(service(host).groups) == 1
    assert service(host).statistics() == {"groups": 0, "offsets": 0, "pending": 1}
    assert service(host).pending_bytes > 0
    committed = marked(host, COMMIT)
    host.settle()
    assert committed == [0]
    assert service(host).statistics() == {"groups": 1, "offsets": 1, "pending": 0}
    assert service(host).pending_bytes == 0


def test_a_marker_for_a_partition_that_is_not_served_is_to_be_sent_again(host: Host) -> None:
    assert marked(host, COMMIT, partition=9) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    host.kill_worker()
    assert marked(host, COMMIT) == [ErrorCode.NOT_COORDINATOR]
    host.lead_again()
    assert host.is_active(0) or marked(host, COMMIT) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    host.settle()
    outcome = marked(host, COMMIT)
    host.settle()
    assert outcome == [0]


def test_a_marker_for_a_partition_of_another_process_goes_there_and_nowhere_else(tmp_path: Path) -> None:
    asked: list[tuple[int, Marker]] = []

    def elsewhere(partition: int, marker: Marker, done: Callable[[int], None]) -> None:
        asked.append((partition, marker))
        done(ErrorCode.NOT_COORDINATOR)

    share = Share(0, processes=2)
    host = Host(
        tmp_path,
        CONSUMER_OFFSETS,
        lambda host: GroupMachines(host.settings, host.image, host.clock, share=share, elsewhere=elsewhere),
        share=share,
    )
    try:
        host.settle()
        assert marked(host, COMMIT, partition=1) == [ErrorCode.NOT_COORDINATOR]
        assert asked == [(1, COMMIT)]
        own = marked(host, COMMIT, partition=0)
        host.settle()
        assert own == [0]
        assert len(asked) == 1
    finally:
        host.close()
