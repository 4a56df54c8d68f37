"""Apache Kafka's own code over logs with transactions: ours are as Kafka would have left them, and Kafka's as ours."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from appliance.clock import SystemClock
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.log.producer_state import AppendOrigin
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.control import EndTransactionMarker, encode_marker_batch
from tests.log.batches import batch_of
from tests.support.apache_kafka import ApacheKafka, compiled, java
from tests.system.test_kafka_reads_our_files import dump, dump_complaints

SOURCE: Final = Path(__file__).with_name("java") / "OpenTransactions.java"
NOW_MS: Final = int(time.time() * 1000)
FIRST_V1, FIRST_V2, ABORTER, OPEN, PLAIN = range(1, 6)


def opened(directory: Path, *, clean: bool = False) -> PartitionLog:
    return PartitionLog.open(
        directory, settings=LogSettings(segment_bytes=4096), clock=SystemClock(), clean=clean
    )


def written(directory: Path) -> PartitionLog:
    """Transactions of both versions, committed, aborted over segments, one in another, ended twice, and open."""
    log = opened(directory)
    sequences: dict[tuple[int, int], int] = {}

    def send(producer: int, epoch: int = 0, *, transactional: bool = True) -> None:
        sequence = sequences.get((producer, epoch), 0)
        batch = batch_of(
            [b"v" * 100] * 3,
            timestamp_ms=NOW_MS,
            attributes=TRANSACTIONAL if transactional else 0,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        log.append(batch, leader_epoch=0, transaction_verified=True)
        sequences[producer, epoch] = sequence + 3

    def end(producer: int, epoch: int, *, commit: bool, version: int, coordinator: int = 2) -> None:
        batch = encode_marker_batch(
            EndTransactionMarker(commit, coordinator),
            producer_id=producer,
            producer_epoch=epoch,
            timestamp_ms=NOW_MS,
        )
        log.append(
            memoryview(batch),
            leader_epoch=0,
            origin=AppendOrigin.COORDINATOR,
            transaction_version=version,
        )

    for epoch in range(3):
        send(FIRST_V1)
        send(FIRST_V2, epoch)
        send(PLAIN, transactional=False)
        send(ABORTER, epoch)
        end(FIRST_V1, 0, commit=epoch != 1, version=1)
        send(FIRST_V2, epoch)
        end(FIRST_V2, epoch + 1, commit=epoch == 1, version=2)
        end(FIRST_V2, epoch + 1, commit=epoch == 1, version=2)  # sent again
        for _ in range(8):
            send(PLAIN, transactional=False)
        end(ABORTER, epoch + 1, commit=False, version=2, coordinator=3)
    send(OPEN)
    send(PLAIN, transactional=False)
    send(FIRST_V1)
    end(FIRST_V1, 0, commit=False, version=1)
    return log


def as_we_see(log: PartitionLog) -> list[str]:
    first = log.producers.first_open_offset
    lines = [str(-1 if first is None else first)]
    lines += [
        f"producer {each.producer_id} {each.epoch} {each.last_sequence} {each.coordinator_epoch}"
        f" {each.transaction_first_offset}"
        for each in sorted(log.producers.entries(), key=lambda each: each.producer_id)
    ]
    lines += [
        f"aborted {each.producer_id} {each.first_offset} {each.last_offset} {each.last_stable_offset}"
        for each in log.aborted_transactions(log.log_start_offset, upper_bound=log.log_end_offset)
    ]
    return lines


def as_kafka_sees(how: str, directory: Path) -> list[str]:
    command = [*java("-Xmx256m", "-XX:TieredStopAtLevel=1", classes=compiled(SOURCE)), "OpenTransactions"]
    done = subprocess.run(
        [*command, how, str(directory)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.splitlines()
    return [first.split()[2], *others]


@pytest.mark.parametrize("how", ["clean", "killed"])
def test_kafka_finds_the_transactions_in_our_log(tmp_path: Path, how: str) -> None:
    directory = tmp_path / "t-0"
    log = written(directory)
    ours = as_we_see(log)
    assert sum(line.startswith("aborted") for line in ours) >= 6
    assert any(line.startswith(f"producer {OPEN} 0 2 -1 ") for line in ours)
    log.close(clean=how == "clean")
    assert len(list(directory.glob("*.log"))) > 2, "there were rolls"
    if how == "killed":
        for path in directory.glob("*.txnindex"):
            path.unlink()  # a recovery makes them anew
    shutil.copytree(directory, tmp_path / "kafkas" / "t-0")
    assert as_kafka_sees(how, tmp_path / "kafkas" / "t-0") == ours
    again = opened(directory, clean=how == "clean")
    assert as_we_see(again) == ours, "and so do we"
    again.close(clean=False)


def test_the_dump_tool_reads_markers_indexes_and_snapshots(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    log = written(directory)
    open_from = log.producers.first_open_offset
    aborted = log.aborted_transactions(0, upper_bound=log.log_end_offset)
    log.close(clean=True)
    assert dump_complaints([directory]) == []
    names = ",".join(str(path) for path in sorted(directory.glob("*.log")) if path.stat().st_size)
    told = dump("--print-data-log", "--files", names)
    assert told.count("endTxnMarker: COMMIT coordinatorEpoch: 2") == 2 + 2
    assert told.count("endTxnMarker: ABORT coordinatorEpoch: 3") == 3
    indexes = dump("--files", ",".join(str(path) for path in sorted(directory.glob("*.txnindex"))))
    for each in aborted:
        assert (
            f"version: 0 producerId: {each.producer_id} firstOffset: {each.first_offset}"
            f" lastOffset: {each.last_offset} lastStableOffset: {each.last_stable_offset}"
        ) in indexes
    newest = max(directory.glob("*.snapshot"))
    assert f"currentTxnFirstOffset: {open_from}" in dump("--files", str(newest)).replace(
        f"OptionalLong[{open_from}]", str(open_from)
    )


def test_we_find_the_transactions_in_kafkas_log(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path / "kafka", settings={"transaction.state.log.num.partitions": 1})
    kafka.start()
    try:
        admin = AdminClient({"bootstrap.servers": kafka.address})
        topic = NewTopic("t", 1, 1, config={"segment.bytes": "1048576"})
        for future in admin.create_topics([topic]).values():
            future.result(30)
        producers = [
            Producer({"bootstrap.servers": kafka.address, "transactional.id": f"id-{number}"})
            for number in range(3)
        ]
        for producer in producers:
            producer.init_transactions(30)
        for round_ in range(4):
            for number, producer in enumerate(producers):
                producer.begin_transaction()
                for _ in range(40):
                    producer.produce("t", b"v" * 3000)
                producer.flush(30)
                if round_ == 3 and number == 1:
                    continue  # stays open
                if (round_ + number) % 2:
                    producer.commit_transaction(30)
                else:
                    producer.abort_transaction(30)
        kafka.kill()
    finally:
        kafka.kill()
    directory = kafka.data_dir / "log" / "t-0"
    shutil.copytree(directory, tmp_path / "ours" / "t-0")
    theirs = as_kafka_sees("killed", directory)
    assert sum(line.startswith("aborted") for line in theirs) >= 5
    assert theirs[0] != "-1"
    log = opened(tmp_path / "ours" / "t-0")
    assert as_we_see(log) == theirs
    log.close(clean=False)
