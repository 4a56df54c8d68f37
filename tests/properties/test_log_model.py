"""The log against a dictionary: any order of appending, rolling, cutting, crashing, reopening and reading."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.clock import ManualClock
from appliance.errors import RejectedRequest
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.record import Record, encode_batch
from tests.log.batches import NOW_MS, open_log, read_all

PRODUCER = 5


class LogModel(RuleBasedStateMachine):
    """`batches` is the model: base offset → the values of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="log-model-"))
        self.clock = ManualClock(NOW_MS)
        self.batches: dict[int, list[bytes]] = {}
        self.end = 0
        self.start = 0
        self.epoch = 0
        self.sequence = 0
        self.last_produced: tuple[memoryview, int] | None = None
        self.settings = LogSettings()
        self.log: PartitionLog

    @initialize(segment_bytes=st.sampled_from([600, 3000, 1 << 20]), interval=st.sampled_from([0, 200, 4096]))
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.settings = LogSettings(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            segment_ms=10_000,
            max_message_bytes=1 << 20,
        )
        self.log = open_log(self.directory, settings=self.settings, clock=self.clock)

    def encode(self, values: list[bytes], codec: Codec, **producer: int) -> memoryview:
        records = [Record(value, timestamp_ms=self.clock.now_ms() + i % 3) for i, value in enumerate(values)]
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
        self.end += len(values)

    @rule(
        values=st.lists(st.binary(max_size=120), min_size=1, max_size=8),
        codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]),
    )
    def append(self, values: list[bytes], codec: Codec) -> None:
        self.appended(values, self.encode(values, codec))

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
    def truncate(self, share: float) -> None:
        offset = int(self.end * share)
        self.log.truncate_to(offset)
        self.batches = (
            {base: values for base, values in self.batches.items() if base + len(values) <= offset}
            if offset < self.end
            else self.batches
        )
        self.end = max((base + len(values) for base, values in self.batches.items()), default=0)
        # Which sequences are left is the producer's affair; it begins anew with another epoch in life.
        self.last_produced = None
        self.sequence = next(
            (
                int(values[-1][1:]) + 1
                for _, values in sorted(self.batches.items(), reverse=True)
                if values[-1][:1] == b"p" and values[-1][1:].isdigit()
            ),
            0,
        )

    @rule(clean=st.booleans(), keep_point=st.booleans())
    def reopen(self, clean: bool, keep_point: bool) -> None:
        point = self.log.recovery_point
        self.log.close(clean)
        point = self.log.recovery_point if clean else point if keep_point else 0
        self.log = open_log(
            self.directory, settings=self.settings, clock=self.clock, clean=clean, recovery_point=point
        )

    @rule(share=st.floats(0, 1), max_bytes=st.sampled_from([1, 500, 1 << 20]))
    def read(self, share: float, max_bytes: int) -> None:
        start = int(self.end * share)
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

    @invariant()
    def agrees(self) -> None:
        assert self.log.log_end_offset == self.end
        self.log.check()

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)
        shutil.rmtree(self.directory)


LogModel.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLogModel = LogModel.TestCase
