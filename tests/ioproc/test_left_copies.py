"""What one half of a slot leaves to the other of a copy lies in the partition table; a file is made for none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from appliance.channels.partition_table import HANDED_BYTES_MAX, PartitionTable, table_size_bytes
from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.errors import StorageFault
from appliance.log.config import LogSettings
from appliance.log.file_names import LEADER_EPOCHS
from appliance.log.handed_over import HANDED_OVER, decode_handed_over
from appliance.log.leader_epochs import LeaderEpochs
from appliance.log.log_directory import LogDirectory
from appliance.log.partition_log import PartitionLog
from appliance.log.shares import FOLLOWERS, LEADERS, Share
from tests.log.batches import NOW_MS, batch_of

PARTITION = TopicPartition("t", 0)
TOPIC_ID = UUID(int=7)
ROW, SLOT, INCARNATION = 2, 1, 77


class Slot:
    """A slot's two halves, with a table of four rows and three slots."""

    def __init__(self, path: Path) -> None:
        self.table = PartitionTable(memoryview(bytearray(table_size_bytes(4, 3))), slots=3)
        self.followers, self.leaders = self._half(path, FOLLOWERS), self._half(path, LEADERS)
        self.directory = path / "t-0"

    def _half(self, path: Path, share: Share) -> LogDirectory:
        return LogDirectory.open(path, node_id=SLOT, cluster_id="c", clock=ManualClock(NOW_MS), share=share)

    def open(self, half: LogDirectory, *, closed: bool = True) -> PartitionLog:
        left = self.table.left(ROW, INCARNATION, SLOT)
        known = decode_handed_over(left) if left else None
        return half.open_partition(PARTITION, TOPIC_ID, LogSettings(), closed=closed, left=known)

    def hand_over(self, half: LogDirectory) -> None:
        half.hand_over(PARTITION, partial(self.table.leave, ROW, INCARNATION, SLOT))

    def files(self) -> set[str]:
        return {path.name for path in self.directory.iterdir()}


def copied(log: PartitionLog, epochs: tuple[int, ...], *, producer_ids: tuple[int, ...] = (7,)) -> None:
    """One batch of each epoch, as a follower has them from its leader."""
    for epoch in epochs:
        for producer_id in producer_ids:
            log.append_as_follower(
                batch_of(
                    base_offset=log.log_end_offset,
                    leader_epoch=epoch,
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=epoch,
                )
            )


def test_no_file_is_made_and_all_is_known_that_a_file_would_say(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    log = slot.open(slot.followers, closed=False)
    copied(log, (0, 1, 2))
    before = slot.files()
    slot.hand_over(slot.followers)
    opened = slot.open(slot.leaders)
    assert slot.files() == before
    assert not {HANDED_OVER, LEADER_EPOCHS} & before
    assert opened.leader_epochs.entries() == [(0, 0), (1, 1), (2, 2)]
    repeated = opened.append(batch_of(producer_id=7, producer_epoch=0, base_sequence=1), leader_epoch=3)
    assert (repeated.duplicate, repeated.base_offset) == (True, 1)
    opened.check()


def test_who_leads_with_epochs_that_were_left_writes_them_with_the_second_epoch_of_its_own(
    tmp_path: Path,
) -> None:
    slot = Slot(tmp_path)
    copied(slot.open(slot.followers, closed=False), (0, 1))
    slot.hand_over(slot.followers)
    opened = slot.open(slot.leaders)
    opened.assign_epoch(2, 2)
    # Others have the first two from the table, and the third from the row.
    assert LEADER_EPOCHS not in slot.files()
    opened.append(batch_of(), leader_epoch=2)
    opened.assign_epoch(3, 3)
    assert LeaderEpochs.load(slot.directory).entries() == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_before_a_flush_lets_the_recovery_point_pass_the_epochs_are_written(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    copied(slot.open(slot.followers, closed=False), (0, 1))
    slot.hand_over(slot.followers)
    opened = slot.open(slot.leaders)
    assert LEADER_EPOCHS not in slot.files()
    assert opened.recovery_point == 0
    slot.leaders.flush_task()()
    assert opened.recovery_point == 2
    assert LeaderEpochs.load(slot.directory).entries() == [(0, 0), (1, 1)]


def test_what_there_is_no_room_for_lies_in_files(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    log = slot.open(slot.followers, closed=False)
    copied(log, (0, 1, 2), producer_ids=tuple(range(40)))
    slot.hand_over(slot.followers)
    assert slot.table.left(ROW, INCARNATION, SLOT) is None
    assert {HANDED_OVER, LEADER_EPOCHS} <= slot.files()
    opened = slot.open(slot.leaders)
    assert opened.leader_epochs.entries() == [(0, 0), (1, 40), (2, 80)]
    assert opened.append(
        batch_of(producer_id=39, producer_epoch=0, base_sequence=0), leader_epoch=3
    ).duplicate


def test_what_was_left_before_is_not_taken_for_what_is_left_now(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    copied(slot.open(slot.followers, closed=False), (0,))
    slot.hand_over(slot.followers)
    copied(slot.open(slot.followers), (1,), producer_ids=tuple(range(100, 140)))
    slot.hand_over(slot.followers)
    opened = slot.open(slot.leaders)
    assert (opened.log_end_offset, opened.leader_epochs.entries()) == (41, [(0, 0), (1, 1)])
    opened.check()


def test_rows_and_slots_have_room_of_their_own() -> None:
    table = PartitionTable(memoryview(bytearray(table_size_bytes(4, 3))), slots=3)
    assert len(table) == 4
    states = {
        (row, slot): bytes([row * 3 + slot + 1]) * HANDED_BYTES_MAX for row in range(4) for slot in range(3)
    }
    for (row, slot), state in states.items():
        assert table.leave(row, 100 + row, slot, state)
    for (row, slot), state in states.items():
        assert table.left(row, 100 + row, slot) == state
        assert table.left(row, 99, slot) is None
    assert table.column(0) == [0, 0, 0, 0]
    before = table.opening(2, 102, 1)
    assert (before.closed, before.left) == (None, states[2, 1])
    table.opened(2, 102, 1, before)  # nobody had closed it: what was left does not hold
    assert table.left(2, 102, 1) is None
    assert not table.leave(2, 102, 1, bytes(HANDED_BYTES_MAX + 1))


def spoil_last_batch(slot: Slot) -> None:
    """What a clean log's opening does not look at, and a recovery cuts off."""
    (path,) = slot.directory.glob("*.log")
    content = bytearray(path.read_bytes())
    content[len(content.rstrip(b"\0")) - 1] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage", [lambda state: b"", lambda state: state[:9], lambda state: b"\xc1" + state]
)
def test_log_whose_file_cannot_be_decoded_is_recovered(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    slot = Slot(tmp_path)
    copied(slot.open(slot.followers, closed=False), (0, 1), producer_ids=tuple(range(40)))
    slot.hand_over(slot.followers)
    left = slot.directory / HANDED_OVER
    left.write_bytes(damage(left.read_bytes()))
    spoil_last_batch(slot)
    opened = slot.open(slot.leaders)
    assert opened.log_end_offset == 79
    opened.check()


def test_log_whose_file_cannot_be_read_is_not_opened(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    copied(slot.open(slot.followers, closed=False), (0, 1), producer_ids=tuple(range(40)))
    slot.hand_over(slot.followers)
    left = slot.directory / HANDED_OVER
    state = left.read_bytes()
    left.unlink()
    left.mkdir()
    with pytest.raises(StorageFault, match=HANDED_OVER):
        slot.open(slot.leaders)
    left.rmdir()
    left.write_bytes(state)
    opened = slot.open(slot.leaders)
    assert opened.log_end_offset == 80
    assert opened.append(
        batch_of(producer_id=39, producer_epoch=0, base_sequence=1), leader_epoch=2
    ).duplicate
