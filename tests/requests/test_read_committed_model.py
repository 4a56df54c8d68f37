"""Readers of committed records get each committed record once, in order, and no other, whatever becomes of the log.

A real log and its owner's real answers, the real Fetch handler with its cursors, and a client that does what Kafka's
does with the aborted transactions that it is told of. Meanwhile transactions of several producers begin and end,
segments roll, records are deleted, and the log is cut as after a change of leaders.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop
from pathlib import Path
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

import pytest

from appliance.channels.control_channel import AssignedPartition
from appliance.channels.request_channel import OFFSET
from appliance.cluster import TopicPartition
from appliance.ioproc.handlers.fetch import fetch
from appliance.ioproc.partition import Partition
from appliance.log.config import LogSettings
from appliance.log.file_names import partition_directory_name
from appliance.log.partition_log import PartitionLog
from appliance.log.producer_state import AppendOrigin
from appliance.protocol.records.batch import TRANSACTIONAL, batches
from appliance.protocol.records.control import decode_marker
from appliance.protocol.records.record import decode_records
from tests.log.batches import batch_of, marker, open_log
from tests.requests.fetching_process import (
    INCARNATION,
    LEADER_EPOCH,
    NetworkProcess,
    Wanted,
    network_process,
)

PRODUCERS: Final = 5
SMALL: Final = LogSettings(segment_bytes=6_000, index_interval_bytes=512)


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int


class Model:
    """What the bytes of the log say, read from its beginning: no index, no state of producers."""

    def __init__(self, log: PartitionLog) -> None:
        self.committed: list[int] = []
        self.aborted: list[Aborted] = []
        open_ones: dict[int, list[int]] = {}
        for path in sorted(log.directory.glob("*.log")):
            content = path.read_bytes()
            for position, header in batches(content):
                ended = decode_marker(content, position) if header.is_control else None
                if ended is not None:
                    records = open_ones.pop(header.producer_id, [])
                    if ended.committed:
                        self.committed += records
                    elif records:
                        self.aborted.append(Aborted(header.producer_id, records[0], header.base_offset))
                    continue
                offsets = list(range(header.base_offset, header.next_offset))
                if header.is_transactional:
                    open_ones.setdefault(header.producer_id, []).extend(offsets)
                else:
                    self.committed += offsets
        self.committed.sort()


class Scene:
    """Partition 0 of topic `t`, its owner, and the network process of its readers."""

    def __init__(self, process: NetworkProcess, seed: int) -> None:
        self.process = process
        self.dice = Random(seed)
        directory = process.directory / partition_directory_name(TopicPartition("t", 0))
        process.segment(0).unlink()
        self.log = open_log(directory, settings=SMALL)
        row = process.route(0).row
        assigned = AssignedPartition(
            "t", UUID(int=5), 0, row, INCARNATION, 0, LEADER_EPOCH, (0,), (0,), {}, LEADER_EPOCH
        )
        self.owner = Partition(
            assigned, self.log, table=process.table, slot=0, min_insync_replicas=1, clock=process.clock
        )
        self.owner.serve()
        self.sequences: dict[int, int] = {}
        self.told = self.asked = 0

    # The log

    def append(self) -> None:
        dice = self.dice
        producer_id = dice.randrange(PRODUCERS)
        count = dice.randrange(1, 6)
        in_transaction = self.log.producers.in_transaction(producer_id, 0)
        if in_transaction and dice.random() < 0.35:
            ended = marker(committed=dice.random() < 0.5, producer_id=producer_id)
            self.log.append(ended, leader_epoch=LEADER_EPOCH, origin=AppendOrigin.COORDINATOR)
        elif dice.random() < 0.1:
            self.log.append(batch_of([b"plain" * 10] * count), leader_epoch=LEADER_EPOCH)
        else:
            # As of a coordinator, without sequence numbers: what is cut need not be known here.
            batch = batch_of(
                [b"x" * dice.randrange(80)] * count,
                attributes=TRANSACTIONAL,
                producer_id=producer_id,
                producer_epoch=0,
            )
            self.log.append(
                batch, leader_epoch=LEADER_EPOCH, origin=AppendOrigin.COORDINATOR, transaction_verified=True
            )
        self.owner.publish()

    def cut(self) -> int:
        """As after a change of leaders; how far a reader may have read now."""
        log = self.log
        log.truncate_to(self.dice.randrange(log.log_start_offset, log.log_end_offset + 1))
        self.owner.serve()
        return self.owner.last_stable_offset

    def delete(self) -> None:
        """DeleteRecords, and the segments that go with them."""
        log = self.log
        start = self.dice.randrange(log.log_start_offset, self.owner.last_stable_offset + 1)
        if log.advance_start(start):
            self.owner.publish()
            bases = sorted(int(path.stem) for path in log.directory.glob("*.log"))
            log.retire_oldest(sum(base <= start for base in bases) - 1)

    # A reader

    def read(self, offset: int, model: Model) -> tuple[list[int], int]:
        """One Fetch of a read_committed client: the offsets of the records that it gets, and its next offset."""
        process, stable = self.process, self.owner.last_stable_offset
        max_bytes = self.dice.choice((200, 1_000, 3_000, 9_000))
        process.fetch(Wanted("t", 0, offset, max_bytes), max_wait_ms=0, read_committed=True)
        for operation in process.asked():
            assert operation[OFFSET] == offset
            self.asked += 1
            worker = process.route(0).worker
            assert worker is not None
            ring = process.told[worker]
            assert ring.put(*fetch(self.owner, operation))
            ring.publish()
            process.lines.take_answers()
        (told,) = process.told_partitions().values()
        assert told.error_code == 0
        aborted = [(each.first_offset, each.producer_id) for each in told.aborted_transactions or ()]
        self.told += len(aborted)
        data = told.records or b""
        whole = [(position, header) for position, header in batches(data) if header.last_offset >= offset]
        end = whole[-1][1].next_offset if whole else offset
        assert end <= stable
        if not self.log.log_start_offset:
            # Else a log that was cut afterwards knows its transactions from its start on, and no earlier records.
            overlapping = [each for each in model.aborted if each.last_offset >= offset]
            may_be = {
                (each.first_offset, each.producer_id) for each in overlapping if each.first_offset < stable
            }
            assert set(aborted) <= may_be
            assert {each for each in may_be if each[0] < end and whole} <= set(aborted)
        heapify(aborted)
        dropped: set[int] = set()
        found: list[int] = []
        for position, header in whole:
            while aborted and aborted[0][0] <= header.last_offset:
                dropped.add(heappop(aborted)[1])
            if header.is_control:
                dropped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in dropped):
                found += [one.offset for one in decode_records(data, position) if one.offset >= offset]
        return found, end


@pytest.fixture
def process(tmp_path: Path) -> Iterator[NetworkProcess]:
    with network_process(tmp_path) as made:
        yield made


@pytest.mark.parametrize("seed", range(12))
def test_readers_get_every_committed_record_once_and_no_aborted_one(
    process: NetworkProcess, seed: int
) -> None:
    scene = Scene(process, seed)
    dice, log = scene.dice, scene.log
    positions = [0, 0, 0]
    for _ in range(40):
        for _ in range(dice.randrange(25)):
            scene.append()
        if dice.random() < 0.15:
            stable = scene.cut()
            positions = [min(position, stable) for position in positions]
        if dice.random() < 0.1:
            scene.delete()
        model = Model(log)
        for reader, position in enumerate(positions):
            at = max(position, log.log_start_offset)
            for _ in range(dice.randrange(12)):
                found, end = scene.read(at, model)
                assert found == [offset for offset in model.committed if at <= offset < end]
                at = end
            positions[reader] = at
    at = log.log_start_offset
    model = Model(log)
    while at < scene.owner.last_stable_offset:
        found, end = scene.read(at, model)
        assert found == [offset for offset in model.committed if at <= offset < end]
        assert end > at
        at = end
    assert scene.told, "something was aborted"
    log.close(clean=False)


def test_a_reader_of_a_backlog_asks_its_owner_seldom_and_is_told_of_what_it_reads_alone(
    process: NetworkProcess,
) -> None:
    scene = Scene(process, 1)
    log = scene.log
    for number in range(1_000):
        batch = batch_of([b"x" * 60], attributes=TRANSACTIONAL, producer_id=number % 7, producer_epoch=0)
        log.append(
            batch, leader_epoch=LEADER_EPOCH, origin=AppendOrigin.COORDINATOR, transaction_verified=True
        )
        ended = marker(committed=number % 2 == 0, producer_id=number % 7)
        log.append(ended, leader_epoch=LEADER_EPOCH, origin=AppendOrigin.COORDINATOR)
    scene.owner.publish()
    model, at, fetches = Model(log), 0, 0
    scene.dice.choice = lambda _: 1_000  # type: ignore[method-assign, assignment, return-value]
    while at < log.log_end_offset:
        found, end = scene.read(at, model)
        assert found == [offset for offset in model.committed if at <= offset < end]
        at = end
        fetches += 1
    assert fetches > 100
    assert scene.told < 2 * len(model.aborted), "each of them once, or twice where it lies over two answers"
    segments = len(list(log.directory.glob("*.log")))
    assert scene.asked < fetches - segments, "most answers come from cursors"
    log.close(clean=False)
