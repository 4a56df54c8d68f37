"""The log against a dictionary: any order of appending, rolling, cutting, retiring, crashing, reopening and reading."""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.clock import ManualClock
from appliance.errors import RejectedRequest
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.log.removal import Removal
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.record import Record, decode_records, encode_batch
from tests.log.batches import NOW_MS, open_log, read_all

PRODUCER = 5


@dataclass
class Segment:
    """What the model thinks a segment is: the batches between two names of files."""

    base_offset: int
    end_offset: int
    size_bytes: int
    largest_timestamp_ms: int


class LogModel(RuleBasedStateMachine):
    """`batches` is the model: base offset → the values of a batch, of all that is in the files."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="log-model-"))
        self.clock = ManualClock(NOW_MS)
        self.batches: dict[int, list[bytes]] = {}
        self.end = 0
        self.start = 0
        self.checkpoint = 0
        self.sizes: dict[int, int] = {}
        self.timestamps: dict[int, list[int]] = {}
        self.next_sequences: dict[int, int] = {}
        self.removals: deque[Removal] = deque()
        self.epoch = 0
        self.sequence = 0
        self.last_produced: tuple[memoryview, int] | None = None
        self.settings = LogSettings()
        self.log: PartitionLog

    @initialize(
        segment_bytes=st.sampled_from([600, 3000, 1 << 20]),
        interval=st.sampled_from([0, 200, 4096]),
        retention_ms=st.sampled_from([-1, 0, 4000, 15_000]),
        retention_bytes=st.sampled_from([-1, -1, 0, 500, 5000]),
        policy=st.sampled_from(["delete", "delete", "delete", "compact"]),
    )
    def begin(
        self, segment_bytes: int, interval: int, retention_ms: int, retention_bytes: int, policy: str
    ) -> None:
        self.settings = LogSettings(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            segment_ms=10_000,
            max_message_bytes=1 << 20,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            cleanup_policy=frozenset({policy}),
        )
        self.log = open_log(self.directory, settings=self.settings, clock=self.clock, removals=self.removals)

    def encode(self, values: list[bytes], codec: Codec, skew_ms: int = 0, **producer: int) -> memoryview:
        now_ms = self.clock.now_ms() + skew_ms
        records = [Record(value, b"key", timestamp_ms=now_ms + i % 3) for i, value in enumerate(values)]
        return memoryview(encode_batch(records, codec=codec, **producer))

    def appended(self, values: list[bytes], batch: memoryview) -> None:
        if len(batch) > self.settings.segment_bytes:
            try:
                self.log.append(batch, leader_epoch=self.epoch)
            except RejectedRequest:
                return
            raise AssertionError("a batch larger than a segment was taken")
        result = self.log.append(batch, leader_epoch=self.epoch)
        assert (result.base_offset, result.last_offset) == (self.end, self.end + len(values) - 1)
        self.batches[self.end] = values
        self.sizes[self.end] = len(batch)
        self.timestamps[self.end] = [record.timestamp_ms for record in decode_records(batch)]
        self.end += len(values)

    @rule(
        values=st.lists(st.binary(max_size=120), min_size=1, max_size=8),
        codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]),
        skew_ms=st.sampled_from([0, 0, 0, 9000, -9000]),
    )
    def append(self, values: list[bytes], codec: Codec, skew_ms: int) -> None:
        self.appended(values, self.encode(values, codec, skew_ms))

    @rule(size=st.sampled_from([3000, 20_000]))
    def append_large(self, size: int) -> None:
        self.appended([bytes(size)], self.encode([bytes(size)], Codec.NONE))

    @rule(count=st.integers(1, 3))
    def produce(self, count: int) -> None:
        values = [b"p%d" % (self.sequence + i) for i in range(count)]
        batch = self.encode(
            values, Codec.NONE, producer_id=PRODUCER, producer_epoch=0, base_sequence=self.sequence
        )
        base = self.end
        self.appended(values, batch)
        self.sequence += count
        self.next_sequences[base] = self.sequence
        self.last_produced = (batch, base)

    @precondition(lambda self: self.last_produced is not None)
    @rule()
    def send_again(self) -> None:
        assert self.last_produced is not None
        batch, base = self.last_produced
        result = self.log.append(batch, leader_epoch=self.epoch)
        assert result.duplicate
        assert result.base_offset == base

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(duration_ms=st.integers(0, 6000))
    def wait(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.log.maybe_roll_by_time(self.clock.now_ms())

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.end

    @rule()
    def release(self) -> None:
        self.log.release()
        assert self.log.statistics().open_segments == 0

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = int(self.end * share)
        assert self.log.advance_start(offset) == (offset > self.start)
        self.start = max(self.start, offset)

    @rule(share=st.sampled_from([0.0, 0.5, 1.0, 1.0]), limit=st.sampled_from([1, 100]))
    def retire(self, share: float, limit: int) -> None:
        high_watermark = self.start + int((self.end - self.start) * share)
        count, start = self.expected_retirement(high_watermark)
        now_ms = self.clock.now_ms()
        found = self.log.expired(high_watermark=high_watermark, now_ms=now_ms)
        assert (len(found.reasons), found.log_start_offset) == (count, start)
        self.log.advance_start(found.log_start_offset)
        self.log.retire_oldest(min(count, limit))
        self.start = start
        self.forget_before(self.log.first_base_offset)

    def expected_retirement(self, high_watermark: int) -> tuple[int, int]:
        """(segments, log start) by Kafka's three passes over what is left, one after the other."""
        segments, start = self.segments(), self.start
        deletes = "delete" in self.settings.cleanup_policy
        left = deque(segments)

        def may_go() -> bool:
            is_empty_and_last = len(left) == 1 and left[0].size_bytes == 0
            return bool(left) and left[0].end_offset <= high_watermark and not is_empty_and_last

        while len(left) > 1 and may_go() and left[1].base_offset <= self.start:
            left.popleft()
        if deletes and self.settings.retention_bytes >= 0:
            surplus = sum(segment.size_bytes for segment in left) - self.settings.retention_bytes
            while may_go() and surplus >= left[0].size_bytes:
                surplus -= left[0].size_bytes
                start = max(start, left.popleft().end_offset)
        if deletes and self.settings.retention_ms >= 0:
            now_ms = self.clock.now_ms()
            while may_go() and now_ms - left[0].largest_timestamp_ms > self.settings.retention_ms:
                start = max(start, left.popleft().end_offset)
        return len(segments) - len(left), start

    def segments(self) -> list[Segment]:
        """By the names of the files and the batches of the model; a log that never had a batch has no file."""
        bases = sorted(int(path.stem) for path in self.directory.glob("*.log")) or [0]
        return [
            Segment(
                base,
                end,
                sum(size for at, size in self.sizes.items() if base <= at < end),
                max((max(times) for at, times in self.timestamps.items() if base <= at < end), default=-1),
            )
            for base, end in zip(bases, [*bases[1:], self.end], strict=True)
        ]

    def forget_before(self, offset: int) -> None:
        self.batches = {base: values for base, values in self.batches.items() if base >= offset}
        self.sizes = {base: self.sizes[base] for base in self.batches}
        self.timestamps = {base: self.timestamps[base] for base in self.batches}

    @rule()
    def remove_files(self) -> None:
        while self.removals:
            self.removals.popleft().run()
        assert not list(self.directory.glob("*.deleted"))

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = int(self.end * share)
        first = self.log.first_base_offset
        self.log.truncate_to(offset)
        if offset < self.end:
            self.batches = {
                base: values for base, values in self.batches.items() if base + len(values) <= offset
            }
            self.sizes = {base: self.sizes[base] for base in self.batches}
            self.timestamps = {base: self.timestamps[base] for base in self.batches}
            default = min(first, offset)
            self.end = max((base + len(values) for base, values in self.batches.items()), default=default)
        self.start = min(self.start, self.end)
        # Which sequences are left is the producer's affair; it begins anew with another epoch in life.
        self.last_produced = None
        self.next_sequences = {base: each for base, each in self.next_sequences.items() if base < self.end}
        self.sequence = next(reversed(self.next_sequences.values()), 0)

    @rule()
    def write_checkpoint(self) -> None:
        self.checkpoint = self.start

    @rule(clean=st.booleans(), keep_point=st.booleans())
    def reopen(self, clean: bool, keep_point: bool) -> None:
        """A crash finds the checkpoint of the log start as it was last written, older than the files or newer."""
        point = self.log.recovery_point
        self.log.close(clean)
        point = self.log.recovery_point if clean else point if keep_point else 0
        if clean or self.checkpoint > self.end:
            self.checkpoint = self.start
        first = self.log.first_base_offset
        self.log = open_log(
            self.directory,
            settings=self.settings,
            clock=self.clock,
            clean=clean,
            recovery_point=point,
            log_start=self.checkpoint,
            removals=self.removals,
        )
        self.start = max(self.checkpoint, first)
        if self.last_produced is not None and self.last_produced[1] < self.start:
            self.last_produced = None  # what is not in the log any more is not known of its producer either
        assert not list(self.directory.glob("*.deleted"))

    @rule(share=st.floats(0, 1), max_bytes=st.sampled_from([1, 500, 1 << 20]))
    def read(self, share: float, max_bytes: int) -> None:
        start = self.start + int((self.end - self.start) * share)
        found = {
            record.offset: record.value for record in read_all(self.log, start=start, max_bytes=max_bytes)
        }
        expected = {
            base + i: value
            for base, values in self.batches.items()
            for i, value in enumerate(values)
            if base + i >= start
        }
        assert found == expected

    @rule(after_ms=st.integers(-20_000, 40_000))
    def find_by_time(self, after_ms: int) -> None:
        times = [
            (ms, base + i)
            for base, batch in self.timestamps.items()
            for i, ms in enumerate(batch)
            if base + i >= self.start
        ]
        wanted_ms = NOW_MS + after_ms
        expected = next(((ms, offset) for ms, offset in times if ms >= wanted_ms), None)
        found = self.log.offset_for_timestamp(wanted_ms, upper_bound=self.end)
        assert (found and found[:2]) == expected

    @rule()
    def find_latest(self) -> None:
        found = self.log.offset_of_max_timestamp()
        times = [
            (base + i, ms)
            for base, batch in self.timestamps.items()
            for i, ms in enumerate(batch)
            if base + i >= self.start
        ]
        expected = max(times, key=lambda record: record[1], default=None)
        assert (found and (found[1], found[0])) == expected

    @precondition(lambda self: self.start > 0)
    @rule()
    def read_before_the_start(self) -> None:
        with pytest.raises(RejectedRequest) as refused:
            self.log.read(self.start - 1, max_bytes=1, upper_bound=self.end)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE

    @invariant()
    def agrees(self) -> None:
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        self.log.check()

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)
        shutil.rmtree(self.directory)


LogModel.TestCase.settings = hypothesis_settings(max_examples=80, stateful_step_count=40, deadline=None)
TestLogModel = LogModel.TestCase
