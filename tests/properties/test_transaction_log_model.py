"""Transactions in a log against a list of its batches: rolls, cuts, deletions, followers and every kind of opening.

What holds after each step:

- a reader of committed records gets the records of committed transactions and of none, in order, and no others;
- the last stable offset under any high watermark is where the oldest transaction begins that is open there;
- a follower of the log has the same bytes in its segments, and the same aborted transactions;
- snapshots, transaction indexes and what one process leaves the next change nothing of it.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.clock import ManualClock
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.log.producer_state import AppendOrigin
from appliance.protocol.records.batch import TRANSACTIONAL, batches
from appliance.protocol.records.control import decode_marker
from tests.log.batches import NOW_MS, batch_of, marker, open_log

PRODUCERS = (1, 2, 3)
producers_of = st.sampled_from(PRODUCERS)


@dataclass
class Batch:
    base: int
    last: int
    producer: int
    is_transactional: bool
    commit: bool | None = None  # of a marker


class TransactionLog(RuleBasedStateMachine):
    """`batches` is the model, of all that was appended and not cut."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="transaction-log-"))
        self.copied = Path(tempfile.mkdtemp(prefix="transaction-log-copy-"))
        self.clock = ManualClock(NOW_MS)
        self.batches: list[Batch] = []
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.settings = LogSettings()
        self.log: PartitionLog
        self.copy: PartitionLog

    @initialize(segment_bytes=st.sampled_from([300, 900, 1 << 20]))
    def begin(self, segment_bytes: int) -> None:
        self.settings = LogSettings(segment_bytes=segment_bytes, index_interval_bytes=100)
        self.log = open_log(self.directory, settings=self.settings, clock=self.clock)
        self.copy = open_log(self.copied, settings=self.settings, clock=self.clock)

    # Appends

    def append(self, producer: int, records: int, *, transactional: bool) -> None:
        batch = batch_of(
            [b"v"] * records,
            attributes=TRANSACTIONAL if transactional else 0,
            producer_id=producer,
            producer_epoch=self.epochs[producer],
            base_sequence=self.sequences[producer],
        )
        result = self.log.append(batch, leader_epoch=0, transaction_verified=True, transaction_version=1)
        self.sequences[producer] += records
        self.batches.append(Batch(result.base_offset, result.last_offset, producer, transactional))

    @rule(producer=producers_of, records=st.integers(1, 3), plain=st.sampled_from((False, False, True)))
    def produce(self, producer: int, records: int, plain: bool) -> None:
        is_open = any(batch.producer == producer for batch in self.open())
        self.append(producer, records, transactional=is_open or not plain)

    @rule(producer=producers_of, commit=st.booleans(), version=st.sampled_from((1, 2)))
    def end(self, producer: int, commit: bool, version: int) -> None:
        """With or without a transaction; in version 2 the epoch rises."""
        if version == 2:
            self.epochs[producer] += 1
            self.sequences[producer] = 0
        end = marker(committed=commit, producer_id=producer, producer_epoch=self.epochs[producer])
        result = self.log.append(
            end, leader_epoch=0, origin=AppendOrigin.COORDINATOR, transaction_version=version
        )
        self.batches.append(Batch(result.base_offset, result.last_offset, producer, True, commit))

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()

    # What goes

    @rule(back=st.integers(0, 6))
    def truncate(self, back: int) -> None:
        offset = max(self.log.log_start_offset, self.log.log_end_offset - back)
        self.log.truncate_to(offset)
        self.batches = [batch for batch in self.batches if batch.last < offset]
        self.begin_new_epochs()
        self.copy.close(clean=False)
        shutil.rmtree(self.copied)
        self.copied.mkdir()
        self.copy = open_log(self.copied, settings=self.settings, clock=self.clock)
        if self.log.first_base_offset:
            self.copy.start_anew_at(self.log.first_base_offset)

    def begin_new_epochs(self) -> None:
        """A producer whose last batches are not remembered has to begin at sequence number 0."""
        for producer in PRODUCERS:
            self.epochs[producer] += 1
            self.sequences[producer] = 0

    @rule(ahead=st.integers(0, 4), retire=st.booleans())
    def delete_records(self, ahead: int, retire: bool) -> None:
        start = min(self.log.log_start_offset + ahead, self.log.log_end_offset)
        self.log.advance_start(start)
        if retire:
            found = self.log.expired(
                high_watermark=self.log.log_end_offset, now_ms=self.clock.now_ms(), by_time=False
            )
            self.log.retire_oldest(len(found.reasons))

    # Openings

    @rule(
        how=st.sampled_from(("crash", "crash of all", "clean", "handed over")),
        without_snapshots=st.booleans(),
    )
    def reopen(self, how: str, without_snapshots: bool) -> None:
        log = self.log
        start = log.log_start_offset
        if how == "handed over":
            log.hand_over()
        else:
            log.close(clean=how == "clean")
        point = 0 if how == "crash of all" else log.recovery_point
        if without_snapshots and how != "handed over":
            for path in self.directory.glob("*.snapshot"):
                path.unlink()
            self.begin_new_epochs()
        self.log = PartitionLog.open(
            self.directory,
            settings=self.settings,
            clock=self.clock,
            recovery_point=point,
            log_start=start,
            clean=how in ("clean", "handed over"),
            flushed=how == "clean",
        )

    @precondition(lambda self: self.copy.log_end_offset < self.log.log_end_offset)
    @rule(batches_max=st.integers(1, 5))
    def follow(self, batches_max: int) -> None:
        while batches_max and self.copy.log_end_offset < self.log.log_end_offset:
            if self.copy.log_end_offset < self.log.first_base_offset:
                self.copy.start_anew_at(self.log.first_base_offset)
            found = next(
                (
                    (path, data, position, header)
                    for path, data in self.segments()
                    for position, header in batches(data)
                    if header.base_offset >= self.copy.log_end_offset
                ),
                None,
            )
            if found is None:
                return
            path, data, position, header = found
            piece = memoryview(data)[position : position + header.size_bytes]
            self.copy.append_as_follower(piece, segment_base_offset=int(path.stem))
            batches_max -= 1

    # What holds

    def segments(self) -> list[tuple[Path, bytes]]:
        return [(path, path.read_bytes()) for path in sorted(self.directory.glob("*.log"))]

    def open(self, *, below: int = 1 << 60) -> list[Batch]:
        """The batches of the transactions whose end is not below an offset."""
        found: list[Batch] = []
        for batch in self.batches:
            if batch.commit is not None:
                if batch.base < below:
                    found = [each for each in found if each.producer != batch.producer]
            elif batch.is_transactional and batch.base < below:
                found.append(batch)
        return found

    def stable_offsets(self, high_watermark: int) -> set[int]:
        """Of a transaction that reaches below the log start, an opening may know what is left of it, or nothing."""
        start = self.log.log_start_offset
        undecided = self.open(below=high_watermark)
        as_known = min((batch.base for batch in undecided), default=high_watermark)
        as_left = min((batch.base for batch in undecided if batch.last >= start), default=high_watermark)
        return {min(max(each, start), high_watermark) for each in (as_known, as_left)}

    @invariant()
    def stable_offset_is_where_the_oldest_open_one_begins(self) -> None:
        end = self.log.log_end_offset
        assert self.log.last_stable_offset in self.stable_offsets(end)

    @invariant()
    def committed_records_are_read_and_no_others(self) -> None:
        log = self.log
        stable = log.last_stable_offset
        expected: list[int] = []
        decided: dict[int, bool] = {}
        for batch in reversed(self.batches):
            if batch.commit is not None:
                decided[batch.producer] = batch.commit
            elif not batch.is_transactional or decided.get(batch.producer):
                expected += range(batch.last, batch.base - 1, -1)
        wanted = [offset for offset in reversed(expected) if log.log_start_offset <= offset < stable]
        for start in {log.log_start_offset, (log.log_start_offset + stable) // 2}:
            assert self.read_committed(start, stable) == [offset for offset in wanted if offset >= start]

    def read_committed(self, start: int, stable: int) -> list[int]:
        """As a client does: with the aborted transactions of a fetch, and the abort markers in what it fetched."""
        aborted = sorted(
            self.log.aborted_transactions(start, upper_bound=stable), key=lambda each: each.first_offset
        )
        assert self.log.has_aborted(start, upper_bound=stable) == bool(aborted)
        dropped: set[int] = set()
        offsets: list[int] = []
        for _, data in self.segments():
            for position, header in batches(data):
                last = header.next_offset - 1
                if last < start or header.base_offset >= stable:
                    continue
                while aborted and aborted[0].first_offset <= last:
                    dropped.add(aborted.pop(0).producer_id)
                if header.is_control:
                    found = decode_marker(data, position)
                    assert found is not None
                    if not found.committed:
                        dropped.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in dropped):
                    offsets += [
                        each for each in range(header.base_offset, last + 1) if start <= each < stable
                    ]
        return offsets

    @invariant()
    def copy_has_the_same_aborted_transactions(self) -> None:
        """Of those with a record that may be read: a recovery need not know of the others."""
        begin = max(self.copy.first_base_offset, self.log.log_start_offset)
        copied, theirs = (
            {
                each.last_offset: each.first_offset
                for each in log.aborted_transactions(0, upper_bound=1 << 60)
                if begin <= each.last_offset < self.copy.log_end_offset
            }
            for log in (self.copy, self.log)
        )
        assert {last for last, first in theirs.items() if first >= begin} <= copied.keys()
        assert {last for last, first in copied.items() if first >= begin} <= theirs.keys()

    @invariant()
    def is_sound(self) -> None:
        self.log.check()
        self.copy.check()

    def teardown(self) -> None:
        try:
            if hasattr(self, "log"):
                self.watermarks()
                self.log.close(clean=False)
                self.copy.close(clean=False)
        finally:
            shutil.rmtree(self.directory)
            shutil.rmtree(self.copied)

    def watermarks(self) -> None:
        """Under rising high watermarks, in a process that has seen everything since the log start."""
        for high_watermark in islice(range(self.log.log_start_offset, self.log.log_end_offset + 1), 200):
            found = self.log.stable_offset(high_watermark)
            assert found >= min(self.stable_offsets(high_watermark))
        assert self.log.stable_offset(self.log.log_end_offset) in self.stable_offsets(self.log.log_end_offset)


TransactionLog.TestCase.settings = hypothesis_settings(max_examples=80, stateful_step_count=40, deadline=None)
TestTransactionLog = TransactionLog.TestCase
