"""Transactions of a directory that Apache Kafka wrote go on where they stood."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from appliance.control.coordinator.transaction.transaction_record import read_transaction_record
from appliance.control.coordinator.transaction.transaction_state import TransactionState
from appliance.protocol.group_partition import group_partition
from tests.cli.command import appliance as command_line
from tests.clients.play import within
from tests.clients.transactional.confluent import ConfluentTransactions
from tests.support.apache_kafka import ApacheKafka, tool
from tests.support.broker import Appliance, Broker
from tests.support.log_edits import cut_off_the_last_batch, headers, last_segment, records_of_the_last_batch
from tests.support.raw_fetch import is_served
from tests.system.test_adoption import ADOPTED, adopt

pytestmark = pytest.mark.slow

COMMAND: Final = "org.apache.kafka.tools.TransactionsCommand"
LOG_PARTITIONS: Final = 4
TIMEOUTS_MS: Final = {"done": 60_000, "resumed": 600_000, "left": 20_000}
"""Transactional ids and their timeouts: one is over, one's producer comes again, one's does not."""


def states(broker: Broker) -> dict[str, str]:
    """Of all transactional ids, as Kafka's tool lists them."""
    listed = tool(COMMAND, "--bootstrap-server", broker.address, "list")
    rows = [line.split() for line in listed.splitlines()[1:]]
    return {row[0]: row[3] for row in rows}


def begun(address: str, name: str) -> Producer:
    settings = {"transactional.id": name, "transaction.timeout.ms": TIMEOUTS_MS[name], "log_level": 0}
    producer = Producer({"bootstrap.servers": address, **settings})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(name, b"of Kafka's time", partition=0)
    producer.flush(60)
    return producer


@pytest.fixture(scope="module", params=["stopped", "killed"])
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log directory of Kafka, with a committed transaction and two open ones."""
    kafka = ApacheKafka(
        tmp_path_factory.mktemp("kafka") / "broker",
        settings={"transaction.state.log.num.partitions": LOG_PARTITIONS},
    )
    kafka.start()
    admin = AdminClient({"bootstrap.servers": kafka.address})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in TIMEOUTS_MS]).values():
        future.result(60)
    assert within(30, lambda: all(is_served(kafka.address, name, 1) for name in TIMEOUTS_MS))
    producers = {name: begun(kafka.address, name) for name in TIMEOUTS_MS}
    producers["done"].commit_transaction(60)
    if request.param == "stopped":
        kafka.stop()
    else:
        kafka.kill()
    return kafka.data_dir / "log"


def test_transactions_of_kafkas_directory_go_on_where_they_stood(left: Path, tmp_path: Path) -> None:
    adopt(left, "--data-dir", tmp_path / "data")
    appliance = Appliance(tmp_path / "data", settings=ADOPTED)
    appliance.start()
    try:
        reader = ConfluentTransactions(appliance.address)
        known = states(appliance)
        assert known["done"] == "CompleteCommit"
        assert known["resumed"] == "Ongoing"
        assert known["left"] in ("Ongoing", "PrepareAbort", "CompleteAbort")
        for name in TIMEOUTS_MS:
            reader.send(name, [b"last"])
        assert reader.read("done", until=b"last") == [b"of Kafka's time", b"last"]
        assert reader.read("resumed", until=b"last", timeout_s=1) == []
        producer = reader.producer("resumed")
        producer.init()
        producer.begin()
        producer.send("resumed", [b"of our time"])
        producer.commit()
        assert reader.read("resumed", until=b"of our time") == [b"last", b"of our time"]
        # Nobody comes for this one: its time is over.
        assert reader.read("left", until=b"last") == [b"last"]
        ended = {"done": "CompleteCommit", "resumed": "CompleteCommit", "left": "CompleteAbort"}
        assert within(30, lambda: states(appliance) == ended), states(appliance)
        # Who was done goes on with its producer id.
        again = reader.producer("done")
        again.init()
        again.begin()
        again.send("done", [b"of our time"])
        again.abort()
        reader.send("done", [b"end"])
        assert reader.read("done", until=b"end") == [b"of Kafka's time", b"last", b"end"]
    finally:
        appliance.stop()


DECIDED: Final = {
    "committed": (TransactionState.PREPARE_COMMIT, "CompleteCommit"),
    "aborted": (TransactionState.PREPARE_ABORT, "CompleteAbort"),
}
"""Transactional ids, the decision that Kafka wrote down for each, and the state in which it ends."""


def cut_off_what_followed_the_decision(log: Path, name: str, decision: TransactionState) -> None:
    """The files are as Kafka would have left them if it had died after the first of two markers."""
    decisions = last_segment(log / f"__transaction_state-{group_partition(name, LOG_PARTITIONS)}")
    assert state_in_the_last_batch(decisions) == (name, decision + 2)
    cut_off_the_last_batch(decisions)
    assert state_in_the_last_batch(decisions) == (name, decision)
    assert cut_off_the_last_batch(last_segment(log / f"{name}-1")).is_control
    assert headers(last_segment(log / f"{name}-0"))[-1][1].is_control
    assert not headers(last_segment(log / f"{name}-1"))[-1][1].is_control


def state_in_the_last_batch(log: Path) -> tuple[str, int]:
    (record,) = records_of_the_last_batch(log)
    assert record.key is not None
    read = read_transaction_record(record.key, record.value)
    assert read is not None
    name, transaction = read
    assert transaction is not None
    return name, transaction.state


def ends(broker: Broker) -> dict[str, str]:
    """The states of all ids, by our command line: it is asked often, and starts sooner than a virtual machine."""
    listed = command_line("transactions", "list", "--json", "-b", broker.address).succeeded()
    return {each["transactional_id"]: each["state"] for each in json.loads(listed.output)}


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> ApacheKafka:
    """A Kafka that died after it had decided, and before all markers were written. The decisions are `DECIDED`."""
    kafka = ApacheKafka(
        tmp_path_factory.mktemp("decided") / "broker",
        settings={"transaction.state.log.num.partitions": LOG_PARTITIONS},
    )
    kafka.start()
    admin = AdminClient({"bootstrap.servers": kafka.address})
    for future in admin.create_topics([NewTopic(name, 2, 1) for name in DECIDED]).values():
        future.result(60)
    assert within(30, lambda: all(is_served(kafka.address, name, 2) for name in DECIDED))
    for name in DECIDED:
        producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": name, "log_level": 0})
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(name, b"of Kafka's time", partition=partition)
        producer.flush(60)
        (producer.commit_transaction if name == "committed" else producer.abort_transaction)(60)
    ended = {name: state for name, (_, state) in DECIDED.items()}
    assert within(30, lambda: ends(kafka) == ended), ends(kafka)
    kafka.kill()
    for name, (decision, _) in DECIDED.items():
        cut_off_what_followed_the_decision(kafka.data_dir / "log", name, decision)
    return kafka


@pytest.mark.parametrize("by", ["appliance", "kafka"])
def test_a_decision_of_kafkas_is_carried_out_after_the_adoption(
    decided: ApacheKafka, tmp_path: Path, by: str
) -> None:
    """`kafka`: it goes on itself, on a copy of the files, and comes to the same end."""
    broker: Appliance | ApacheKafka
    if by == "appliance":
        adopt(decided.data_dir / "log", "--data-dir", tmp_path / "data")
        broker = Appliance(tmp_path / "data", settings=ADOPTED)
    else:
        shutil.copytree(decided.data_dir, tmp_path / "data")
        broker = ApacheKafka(
            tmp_path / "data", settings={"transaction.state.log.num.partitions": LOG_PARTITIONS}
        )
    broker.start()
    try:
        ended = {name: state for name, (_, state) in DECIDED.items()}
        assert within(60, lambda: ends(broker) == ended), ends(broker)
        reader = ConfluentTransactions(broker.address)
        for name, visible in (("committed", [b"of Kafka's time"]), ("aborted", [])):
            for partition in range(2):
                reader.send(name, [b"last"], partition)
                assert reader.read(name, partition, until=b"last") == [*visible, b"last"]
        # The producer of each id goes on.
        for name in DECIDED:
            producer = reader.producer(name)
            producer.init()
            producer.begin()
            producer.send(name, [b"of our time"], 1)
            producer.commit()
            assert reader.read(name, 1, until=b"of our time")[-1] == b"of our time"
    finally:
        broker.stop()
