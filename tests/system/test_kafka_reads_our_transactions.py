"""Apache Kafka's own dump tool reads the records of transactional ids, field by field."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from appliance.cluster import TopicPartition
from appliance.control.coordinator.transaction.transaction import Transaction
from appliance.control.coordinator.transaction.transaction_record import tombstone, transaction_record
from appliance.control.coordinator.transaction.transaction_state import TransactionState
from appliance.protocol.records.record import Record as LogRecord
from appliance.protocol.records.record import encode_batch
from tests.support.apache_kafka import tool

OPEN = Transaction(
    producer_id=7,
    producer_epoch=32_766,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=frozenset({TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("b", 2)}),
    started_ms=5,
    updated_ms=9,
    previous_producer_id=6,
    next_producer_id=8,
    client_version=2,
)


@pytest.mark.parametrize("version", [0, 2])
def test_kafka_reads_every_state(tmp_path: Path, version: int) -> None:
    states = [replace(OPEN, state=state, partitions=_partitions(state)) for state in TransactionState]
    records = [transaction_record("tx", each, server_version=version) for each in states]
    records.append(tombstone("tx"))
    segment = tmp_path / "__transaction_state-0" / f"{0:020d}.log"
    segment.parent.mkdir()
    segment.write_bytes(encode_batch([LogRecord(one.value, key=one.key) for one in records]))
    printed = tool(
        "org.apache.kafka.tools.DumpLogSegments",
        "--transaction-log-decoder",
        "--files",
        str(segment),
        "--print-data-log",
    )
    lines = re.findall(r"key: (\{.*?\}\}) payload: (\{.*\}|<DELETE>)", printed)
    assert len(lines) == len(records), printed
    assert all(json.loads(key) == {"type": "0", "data": {"transactionalId": "tx"}} for key, _ in lines)
    assert lines[-1][1] == "<DELETE>"
    for transaction, (_, text) in zip(states, lines, strict=False):
        value = json.loads(text)
        assert int(value["version"]) == min(version, 1)
        data = value["data"]
        assert (data["producerId"], data["producerEpoch"], data["transactionTimeoutMs"]) == (
            7,
            32_766,
            60_000,
        )
        assert data["transactionStatus"] == transaction.state
        told = {
            TopicPartition(each["topic"], number)
            for each in data["transactionPartitions"] or ()
            for number in each["partitionIds"]
        }
        assert told == transaction.partitions
        assert (data["transactionLastUpdateTimestampMs"], data["transactionStartTimestampMs"]) == (9, 5)
        if version:
            ids = (data["previousProducerId"], data["nextProducerId"], data["clientTransactionVersion"])
            assert ids == (6, 8, 2)


def _partitions(state: TransactionState) -> frozenset[TopicPartition]:
    return frozenset() if state is TransactionState.EMPTY else OPEN.partitions
