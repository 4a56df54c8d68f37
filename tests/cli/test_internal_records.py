"""log dump on the internal topics: what their records say, by names."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from appliance.cli.log_dump import dump_file
from appliance.cluster import TopicPartition
from appliance.control.coordinator.group.consumer_records import GroupEpochChange, record_of
from appliance.control.coordinator.group.group_metadata_record import GroupMetadata
from appliance.control.coordinator.group.group_metadata_record import record as group_record
from appliance.control.coordinator.runtime.effects import Record
from appliance.control.coordinator.transaction.transaction import Transaction
from appliance.control.coordinator.transaction.transaction_record import tombstone, transaction_record
from appliance.control.coordinator.transaction.transaction_state import TransactionState
from appliance.protocol.records.offset_records import CommittedOffset, encode_value, offset_key
from appliance.protocol.records.record import Record as LogRecord
from appliance.protocol.records.record import encode_batch
from tests.cli.command import appliance

TOPIC_ID = UUID(int=7)
TRANSACTION = Transaction(
    producer_id=7,
    producer_epoch=3,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=frozenset({TopicPartition("a", 1), TopicPartition("a", 0)}),
    started_ms=5,
    updated_ms=9,
)


def segment(directory: Path, topic: str, records: list[Record]) -> Path:
    path = directory / f"{topic}-0" / f"{0:020d}.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_batch([LogRecord(one.value, key=one.key) for one in records]))
    return path


def decoded(path: Path) -> list[Any]:
    return [fact.get("decoded") for fact in dump_file(path, with_records=True) if fact["kind"] == "record"]


def test_committed_offsets_and_groups_are_decoded(tmp_path: Path) -> None:
    committed = CommittedOffset(17, 2, "note", commit_ms=1_000, topic_id=TOPIC_ID)
    offset = Record(offset_key("g", "orders", 3), encode_value(committed))
    classic = group_record("g", GroupMetadata("consumer", 4, "range", None, 1_000))
    path = segment(
        tmp_path,
        "__consumer_offsets",
        [offset, Record(offset.key, None), classic, record_of("h", GroupEpochChange(5))],
    )
    first, second, third, fourth = decoded(path)
    assert (first["record"], first["group"], first["topic"], first["partition"]) == (
        "offset",
        "g",
        "orders",
        3,
    )
    assert (first["offset"], first["metadata"], first["topic_id"]) == (17, "note", str(TOPIC_ID))
    assert second == {"record": "offset", "group": "g", "topic": "orders", "partition": 3, "deleted": True}
    assert (third["record"], third["group"], third["generation_id"]) == ("group", "g", 4)
    assert (fourth["record"], fourth["group"], fourth["epoch"]) == ("consumer group: GroupEpoch", "h", 5)


def test_transactional_ids_are_decoded(tmp_path: Path) -> None:
    records = [transaction_record("tx", TRANSACTION, server_version=2), tombstone("tx")]
    path = segment(tmp_path, "__transaction_state", records)
    first, second = decoded(path)
    assert (first["transactional_id"], first["state"], first["partitions"]) == (
        "tx",
        "Ongoing",
        ["a-0", "a-1"],
    )
    assert (first["producer_id"], first["producer_epoch"], first["deleted"]) == (7, 3, False)
    assert second == {"record": "transaction", "transactional_id": "tx", "deleted": True}
    shown = appliance("log", "dump", "--records", str(path)).succeeded().text
    assert 'transaction  transactional_id "tx"  producer_id 7' in shown
    assert 'transaction deleted  transactional_id "tx"' in shown


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_what_does_not_decode_is_shown_as_it_is(tmp_path: Path, topic: str) -> None:
    path = segment(tmp_path, topic, [Record(b"", b"x"), Record(b"\0\0\0", b"x"), Record(b"\0\7??", b"x")])
    assert decoded(path) == [None, None, None]
    assert "key" in appliance("log", "dump", "--records", str(path)).succeeded().text


def test_records_of_other_topics_are_left_alone(tmp_path: Path) -> None:
    path = segment(tmp_path, "orders", [transaction_record("tx", TRANSACTION, server_version=2)])
    assert decoded(path) == [None]
