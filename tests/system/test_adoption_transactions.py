"""Transactions of a directory that Apache Kafka wrote go on where they stood."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.clients.play import within
from tests.clients.transactional.confluent import ConfluentTransactions
from tests.support.apache_kafka import ApacheKafka, tool
from tests.support.broker import Appliance
from tests.support.raw_fetch import is_served
from tests.system.test_adoption import ADOPTED, adopt

pytestmark = pytest.mark.slow

COMMAND: Final = "org.apache.kafka.tools.TransactionsCommand"
TIMEOUTS_MS: Final = {"done": 60_000, "resumed": 600_000, "left": 20_000}
"""Transactional ids and their timeouts: one is over, one's producer comes again, one's does not."""


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
        tmp_path_factory.mktemp("kafka") / "broker", settings={"transaction.state.log.num.partitions": 4}
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

        def states() -> dict[str, str]:
            listed = tool(COMMAND, "--bootstrap-server", appliance.address, "list")
            rows = [line.split() for line in listed.splitlines()[1:]]
            return {row[0]: row[3] for row in rows}

        known = states()
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
        assert within(30, lambda: states() == ended), states()
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
