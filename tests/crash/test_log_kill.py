"""A process appends and says so; it is killed without warning, at any instant: what it said is there.

It also gives up its oldest records, by size and on request: what is left has no gap.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from appliance.clock import SystemClock
from appliance.cluster import TopicPartition
from appliance.log.config import LogSettings
from appliance.log.log_directory import LogDirectory
from appliance.log.partition_log import PartitionLog
from tests.log.batches import read_all

PARTITION = TopicPartition("killed", 0)

# Values say their offset, so that a reader can tell a lost record from a wrong one.
APPENDER = """
import os, random, sys
from pathlib import Path
from appliance.clock import SystemClock
from appliance.log.config import LogSettings
from appliance.log.log_directory import LogDirectory
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.record import Record, encode_batch
from tests.crash.test_log_kill import PARTITION, SETTINGS, TOPIC_ID
clock = SystemClock()
directory = LogDirectory.open(Path(sys.argv[1]), node_id=0, cluster_id="c", clock=clock)
log = directory.open_partition(PARTITION, TOPIC_ID, SETTINGS)
rng = random.Random(int(sys.argv[2]))
while True:
    count = rng.choice((1, 1, 1, 5, 9))
    base = log.log_end_offset
    records = [
        Record(b"%d:" % (base + i) + bytes(rng.choice((0, 10, 900, 5000))), timestamp_ms=clock.now_ms())
        for i in range(count)
    ]
    codec = rng.choice((Codec.NONE, Codec.NONE, Codec.ZSTD))
    batch = encode_batch(records, codec=codec, producer_id=1, producer_epoch=0, base_sequence=base)
    result = log.append(memoryview(batch), leader_epoch=int(sys.argv[2]))
    os.write(1, b"%d\\n" % result.last_offset)
    if rng.random() < 0.05:
        directory.flush_task({PARTITION: result.last_offset})()
    if rng.random() < 0.02:
        log.release()
    if rng.random() < 0.02:
        log.advance_start(log.log_end_offset - rng.randrange(50))
    if rng.random() < 0.1:
        found = log.expired(high_watermark=log.log_end_offset, now_ms=clock.now_ms())
        log.advance_start(found.log_start_offset)
        log.retire_oldest(len(found.reasons))
"""
SETTINGS = LogSettings(segment_bytes=60_000, index_interval_bytes=1000, retention_bytes=150_000)
TOPIC_ID = UUID(int=77)


def opened(path: Path) -> tuple[LogDirectory, PartitionLog]:
    directory = LogDirectory.open(path, node_id=0, cluster_id="c", clock=SystemClock())
    return directory, directory.open_partition(PARTITION, TOPIC_ID, SETTINGS)


def killed_after(path: Path, *, seed: int, acknowledgements: int) -> int:
    """The last offset that the appender had acknowledged when it was killed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", APPENDER, str(path), str(seed)], stdout=subprocess.PIPE, env=environment
    ) as appender:
        assert appender.stdout is not None
        for _ in range(acknowledgements):
            last = appender.stdout.readline()
            assert last, "the appender died on its own"
        appender.send_signal(signal.SIGKILL)
        # What it wrote before it died counts as acknowledged as well.
        late = appender.stdout.read().splitlines()
    return int(late[-1] if late else last)


def assert_dense_and_own(log: PartitionLog, last_acknowledged: int) -> None:
    log.check()
    records = read_all(log)
    assert [record.offset for record in records] == list(range(log.log_start_offset, log.log_end_offset))
    assert not list(log.directory.glob("*.deleted"))
    for record in records:
        assert record.value is not None
        assert int(record.value.split(b":")[0]) == record.offset
    assert log.log_end_offset > last_acknowledged


@pytest.mark.parametrize("round_number", range(6))
def test_acked_record_survives_kill_of_its_worker(tmp_path: Path, round_number: int) -> None:
    rng = random.Random(round_number)
    last_acknowledged = -1
    # Killed again and again over one log: each recovery is the next one's past.
    for life in range(3):
        last_acknowledged = max(
            last_acknowledged,
            killed_after(tmp_path, seed=round_number * 10 + life, acknowledgements=rng.randrange(1, 400)),
        )
    directory, log = opened(tmp_path)
    assert_dense_and_own(log, last_acknowledged)
    directory.close()
    directory, log = opened(tmp_path)
    assert directory.was_clean
    assert_dense_and_own(log, last_acknowledged)
    directory.close()
