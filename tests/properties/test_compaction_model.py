"""Compaction against a model: any batches, any rounds, any clock; what stays is what Kafka's rules say.

The model keeps every record ever appended, and which it may lose. After each round:

    a key's last committed record is there, unless it is a tombstone that has had its time
    nothing is there that a later record, which the round saw, supersedes, nor anything aborted that it saw
    offsets, timestamps, headers and values of what is there are what was appended
    producers continue where they were, and so does a log that is opened anew from nothing but its batches
"""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from appliance.clock import ManualClock
from appliance.log.config import LogSettings
from appliance.log.dirtiness import dirtiness
from appliance.log.partition_log import PartitionLog
from appliance.log.producer_state import AppendOrigin
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.control import EndTransactionMarker, encode_marker_batch
from appliance.protocol.records.record import Record, decode_records, encode_batch
from tests.log.batches import NOW_MS, open_log
from tests.log.compaction import clean, cleaning_of

RETENTION_MS = 10_000


@dataclass
class Appended:
    record: Record
    producer: int
    committed: bool | None  # None: its transaction is open


class CompactionModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="compaction-model-"))
        self.clock = ManualClock(NOW_MS)
        self.records: dict[int, Appended] = {}
        self.sequences: dict[int, int] = {}
        self.open: dict[int, list[int]] = {}
        self.cleaned_to = 0
        self.settings = LogSettings()
        self.log: PartitionLog

    @initialize(
        segment_bytes=st.sampled_from([700, 2000, 5000]),
        interval=st.sampled_from([0, 300, 4096]),
    )
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.settings = LogSettings(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            cleanup_policy=frozenset({"compact"}),
            delete_retention_ms=RETENTION_MS,
            min_cleanable_dirty_ratio=0.0,
        )
        self.log = open_log(self.directory, settings=self.settings, clock=self.clock)

    def append(self, records: list[Record], codec: Codec, producer: int, *, transactional: bool) -> None:
        sequence = self.sequences.get(producer, 0)
        batch = encode_batch(
            records,
            codec=codec,
            attributes=b.TRANSACTIONAL if transactional else 0,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1,
        )
        if len(batch) > self.settings.segment_bytes:
            return
        result = self.log.append(memoryview(batch), leader_epoch=0, transaction_verified=True)
        if producer >= 0:
            self.sequences[producer] = sequence + len(records)
        for number, record in enumerate(records):
            offset = result.base_offset + number
            self.records[offset] = Appended(record, producer, None if transactional else True)
            if transactional:
                self.open.setdefault(producer, []).append(offset)

    @rule(
        keys=st.lists(st.sampled_from([b"a", b"b", b"c", b"key-d", b"e" * 130]), min_size=1, max_size=12),
        codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY]),
        producer=st.sampled_from([-1, 1, 2, 3]),
        transactional=st.booleans(),
        seed=st.integers(0, 1 << 30),
        uniform=st.booleans(),
    )
    def produce(  # noqa: PLR0917 - Hypothesis names them
        self, keys: list[bytes], codec: Codec, producer: int, transactional: bool, seed: int, uniform: bool
    ) -> None:
        rng = random.Random(seed)
        transactional = producer in self.open or (transactional and producer >= 0)
        records = []
        for key in keys:
            value = None if rng.random() < 0.25 else rng.randbytes(20 if uniform else rng.randrange(60))
            headers = (("h", b"x"),) if rng.random() < 0.1 else ()
            timestamp_ms = self.clock.now_ms() + rng.randrange(-500, 500)
            records.append(Record(value, key, headers, timestamp_ms))
        self.append(records, codec, producer, transactional=transactional)

    @rule(producer=st.sampled_from([1, 2, 3]), committed=st.booleans())
    def end_transaction(self, producer: int, committed: bool) -> None:
        batch = encode_marker_batch(
            EndTransactionMarker(committed, 0),
            producer_id=producer,
            producer_epoch=0,
            timestamp_ms=self.clock.now_ms(),
        )
        self.log.append(memoryview(batch), leader_epoch=0, origin=AppendOrigin.COORDINATOR)
        for offset in self.open.pop(producer, []):
            self.records[offset].committed = committed

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(duration_ms=st.sampled_from([1, 900, RETENTION_MS + 1]))
    def wait(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)

    @rule(load_factor=st.sampled_from([0.9, 0.0004]))
    def compact(self, load_factor: float) -> None:
        bounds = self.log.bounds(self.log.stable_offset(self.log.log_end_offset))
        what = dirtiness(
            self.directory, bounds, self.settings, checkpoint=self.cleaned_to, now_ms=self.clock.now_ms()
        )
        if not what.is_cleanable(self.settings):
            return
        round_ = cleaning_of(self.log, what, now_ms=self.clock.now_ms(), load_factor=load_factor)
        clean(self.log, round_)
        assert round_.end_offset > self.cleaned_to or round_.end_offset == what.first_dirty
        self.cleaned_to = round_.end_offset
        self.compare(seen_to=round_.end_offset)

    @rule(clean_stop=st.booleans(), without_snapshots=st.booleans())
    def reopen(self, clean_stop: bool, without_snapshots: bool) -> None:
        point = self.log.recovery_point
        self.log.close(clean_stop)
        if without_snapshots:
            for path in self.directory.glob("*.snapshot"):
                path.unlink()
        self.log = open_log(
            self.directory,
            settings=self.settings,
            clock=self.clock,
            clean=clean_stop and not without_snapshots,
            recovery_point=point if not without_snapshots else 0,
        )
        self.cleaned_to = min(self.cleaned_to, self.log.log_end_offset)

    def found(self) -> dict[int, Record]:
        found: dict[int, Record] = {}
        for path in sorted(self.directory.glob("*.log")):
            data = path.read_bytes()
            for position, header in b.batches(data):
                if header.is_control:
                    continue
                for record in decode_records(data, position):
                    found[record.offset] = record
        return found

    def compare(self, seen_to: int) -> None:
        """What is in the log against what may and must be, after a round that saw the keys below `seen_to`."""
        found = self.found()
        for offset, record in found.items():
            original = self.records[offset].record
            assert (record.key, record.value, record.headers, record.timestamp_ms) == (
                original.key,
                original.value,
                original.headers,
                original.timestamp_ms,
            )
        last: dict[bytes, int] = {}
        for offset, appended in sorted(self.records.items()):
            if offset < seen_to and appended.committed:
                assert appended.record.key is not None
                last[appended.record.key] = offset
        for offset, appended in self.records.items():
            if offset >= seen_to:
                # What was aborted goes from every segment that is written anew.
                assert offset in found or appended.committed is False, (
                    f"{offset} is beyond the round and gone"
                )
            elif not appended.committed:
                assert appended.committed is not None
                assert offset not in found, f"{offset} was aborted and is there"
            elif last[appended.record.key or b""] != offset:
                assert offset not in found, f"{offset} was superseded and is there"
            elif appended.record.value is not None:
                assert offset in found, f"{offset} is the last of its key and gone"
            if offset not in found and offset < seen_to:
                appended.record = Record(appended.record.value, appended.record.key)

    @invariant()
    def every_key_has_its_last_value(self) -> None:
        if not hasattr(self, "log"):
            return
        self.log.check()
        found = self.found()
        last: dict[bytes | None, int] = {}
        for offset, appended in sorted(self.records.items()):
            if appended.committed:
                last[appended.record.key] = offset
        for offset in last.values():
            value = self.records[offset].record.value
            assert value is None or found[offset].value == value
        for producer, sequence in self.sequences.items():
            entry = next(entry for entry in self.log.producers.entries() if entry.producer_id == producer)
            assert entry.last_sequence == sequence - 1
            assert (entry.transaction_first_offset >= 0) == (producer in self.open)
        expected = min((offsets[0] for offsets in self.open.values()), default=self.log.log_end_offset)
        assert self.log.last_stable_offset == expected

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)
        shutil.rmtree(self.directory)


CompactionModel.TestCase.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestCompactionModel = CompactionModel.TestCase
