"""Records of `__transaction_state`, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.cluster import TopicPartition
from appliance.control.coordinator.transaction.transaction import Transaction
from appliance.control.coordinator.transaction.transaction_record import (
    read_transaction_record,
    tombstone,
    transaction_record,
)
from appliance.control.coordinator.transaction.transaction_state import TransactionState, table_text
from appliance.errors import MalformedFrame

README = Path(__file__).resolve().parents[4] / "appliance/control/coordinator/transaction/README.md"

ids = st.integers(-1, 2**63 - 1)
partitions_of = st.frozensets(
    st.builds(TopicPartition, st.sampled_from(("a", "b", "topic")), st.integers(0, 9)), max_size=8
)


@st.composite
def transactions(draw: st.DrawFn) -> Transaction:
    state = draw(st.sampled_from(TransactionState))
    return Transaction(
        producer_id=draw(ids),
        producer_epoch=draw(st.integers(-1, 32_767)),
        timeout_ms=draw(st.integers(0, 2**31 - 1)),
        state=state,
        partitions=frozenset() if state is TransactionState.EMPTY else draw(partitions_of),
        started_ms=draw(ids),
        updated_ms=draw(ids),
        previous_producer_id=draw(ids),
        next_producer_id=draw(ids),
        client_version=draw(st.sampled_from((0, 1, 2))),
    )


@given(transactions(), st.text(max_size=20))
def test_what_is_written_in_version_1_is_read_again(transaction: Transaction, name: str) -> None:
    record = transaction_record(name, transaction, server_version=2)
    assert read_transaction_record(record.key, record.value) == (name, transaction)


@given(transactions())
def test_version_0_loses_the_tagged_fields_and_nothing_else(transaction: Transaction) -> None:
    record = transaction_record("t", transaction, server_version=0)
    read = read_transaction_record(record.key, record.value)
    assert read is not None
    assert read[1] is not None
    again = transaction_record("t", read[1], server_version=0)
    assert again == record
    assert (read[1].previous_producer_id, read[1].next_producer_id, read[1].client_version) == (-1, -1, 0)


def test_bytes_are_those_of_kafka() -> None:
    """As `TransactionLog.valueToBytes` writes them: id 7, epoch 0, 60 s, Ongoing on a-0 and a-1."""
    transaction = Transaction(
        producer_id=7,
        producer_epoch=0,
        timeout_ms=60_000,
        state=TransactionState.ONGOING,
        partitions=frozenset({TopicPartition("a", 0), TopicPartition("a", 1)}),
        started_ms=9,
        updated_ms=9,
        previous_producer_id=7,
        client_version=2,
    )
    record = transaction_record("tx", transaction, server_version=2)
    assert record.key.hex() == "0000" + "0002" + b"tx".hex()
    assert record.value is not None
    assert record.value.hex() == (
        "0001" "0000000000000007" "0000" "0000ea60" "01"
        "02" "0261" "03" "00000000" "00000001" "00"
        "0000000000000009" "0000000000000009"
        "02" "00" "08" "0000000000000007" "02" "02" "0002"
    )  # fmt: skip


def test_unknown_tags_are_passed_over() -> None:
    record = transaction_record("t", Transaction(1, 0, 5), server_version=2)
    assert record.value is not None
    assert record.value.endswith(b"\x00")
    with_tag_3 = record.value[:-1] + b"\x01\x03\x02\x00\x09"
    assert read_transaction_record(record.key, with_tag_3) == ("t", Transaction(1, 0, 5))


def test_a_key_of_another_type_says_nothing() -> None:
    assert read_transaction_record(b"\x00\x01\x00\x01t", b"x") is None
    assert read_transaction_record(*_pair(tombstone("t"))) == ("t", None)


@given(st.data())
def test_damaged_records_are_refused_and_nothing_else_is_raised(data: st.DataObject) -> None:
    record = transaction_record(
        "t", data.draw(transactions()), server_version=data.draw(st.sampled_from((0, 2)))
    )
    assert record.value is not None
    value = bytearray(record.value)
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(value[: data.draw(st.integers(0, len(value)))])
    try:
        read_transaction_record(record.key, cut)
    except MalformedFrame:
        return


@pytest.mark.parametrize("status", [6, 7, 100])
def test_states_that_kafka_never_writes_are_refused(status: int) -> None:
    record = transaction_record("t", Transaction(1, 0, 5), server_version=0)
    assert record.value is not None
    value = bytearray(record.value)
    value[16] = status
    with pytest.raises(MalformedFrame):
        read_transaction_record(record.key, bytes(value))


def test_the_readme_shows_the_table_of_states() -> None:
    assert table_text() in README.read_text()


def _pair(record: object) -> tuple[bytes, bytes | None]:
    return record.key, record.value  # type: ignore[attr-defined]
