"""Last stable offsets where the owner does not say them, as Apache Kafka: looked for once, and not from the begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from appliance.log.partition_log import PartitionLog
from appliance.log.producer_state import AppendOrigin
from spark_connector import bounds
from spark_connector.batch_query import plan_batch
from spark_connector.bounds import end_offset
from spark_connector.directory import Directories, Isolation
from spark_connector.options import read_options
from tests.log.batches import batch_of, marker
from tests.spark.logs import make_log

COMMITTED = Isolation.READ_COMMITTED


class Transactions:
    """A log of Kafka's making: without a state file; its high watermark stands in the checkpoint."""

    def __init__(self, home: Path) -> None:
        self.log: PartitionLog = make_log(home)[0]
        self._home = home
        self._sequences: dict[int, int] = {}

    def write(self, producer: int, count: int = 1) -> None:
        for _ in range(count):
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + 1
            batch = batch_of(
                [b"value" * 20],
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                attributes=0x10,
            )
            self.log.append(batch, leader_epoch=0, transaction_verified=True)

    def end(self, producer: int, *, committed: bool = True) -> None:
        self.log.append(
            marker(committed=committed, producer_id=producer), leader_epoch=0, origin=AppendOrigin.COORDINATOR
        )

    def tell(self) -> None:
        """Its high watermark."""
        text = f"0\n1\norders 0 {self.log.log_end_offset}\n"
        (self._home / "replication-offset-checkpoint").write_text(text)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first offset of every batch whose header was looked at for its transaction."""
    found: list[int] = []
    follow = bounds._follow

    def noting(batches: Any, open_since: dict[int, int]) -> None:
        found.extend(batches["base_offset"].tolist())
        follow(batches, open_since)

    monkeypatch.setattr(bounds, "_follow", noting)
    return found


def test_a_query_looks_at_no_header_twice(tmp_path: Path, looked_at: list[int]) -> None:
    log = Transactions(tmp_path)
    for producer in (1, 2):
        log.write(producer, 3)
    log.end(1)
    log.tell()
    options = {"path": str(tmp_path), "subscribe": "orders", "isolationLevel": "read_committed"}
    assert plan_batch(read_options(options, streaming=False)).ranges[0].end == 3
    assert looked_at == [0, 1, 2, 3, 4, 5, 6]


def test_only_what_has_come_since_is_looked_at(tmp_path: Path, looked_at: list[int]) -> None:
    log = Transactions(tmp_path)
    log.write(1, 3)
    log.write(2, 3)
    log.tell()
    directories = Directories([tmp_path])
    assert end_offset(directories.partition("orders", 0), COMMITTED) == 0
    looked_at.clear()
    log.end(1)
    log.write(1)
    log.tell()
    assert end_offset(directories.partition("orders", 0), COMMITTED) == 3
    assert looked_at == [6, 7]
    log.end(2, committed=False)
    log.tell()
    assert end_offset(directories.partition("orders", 0), COMMITTED) == 7
    assert looked_at == [6, 7, 8]


def test_a_snapshot_of_the_producers_spares_what_lies_before_it(tmp_path: Path, looked_at: list[int]) -> None:
    log = Transactions(tmp_path)
    log.write(7)
    for _ in range(20):
        log.write(1, 3)
        log.end(1)
    log.tell()
    last = max(int(path.stem) for path in tmp_path.glob("orders-0/*.snapshot"))
    assert last > 20
    assert end_offset(Directories([tmp_path]).partition("orders", 0), COMMITTED) == 0
    assert min(looked_at) == last
    log.end(7)
    log.tell()
    assert end_offset(Directories([tmp_path]).partition("orders", 0), COMMITTED) == log.log.log_end_offset


def test_a_damaged_snapshot_is_passed_over(tmp_path: Path) -> None:
    log = Transactions(tmp_path)
    log.write(7)
    for _ in range(20):
        log.write(1, 3)
        log.end(1)
    log.tell()
    for path in tmp_path.glob("orders-0/*.snapshot"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert end_offset(Directories([tmp_path]).partition("orders", 0), COMMITTED) == 0


def test_a_log_that_has_become_shorter_is_looked_through_anew(tmp_path: Path) -> None:
    log = Transactions(tmp_path)
    log.write(1, 5)
    log.end(1)
    log.tell()
    directories = Directories([tmp_path])
    assert end_offset(directories.partition("orders", 0), COMMITTED) == 6
    log.log.truncate_to(3)
    log.tell()
    assert end_offset(directories.partition("orders", 0), COMMITTED) == 0
