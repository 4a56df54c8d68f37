"""Apache Kafka goes on with our data directory: transactions that ended, and one that is open.

The directories of the topics are copied over Kafka's empty ones, with `__transaction_state` and `__consumer_offsets`,
as docs/adopting.md says.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.log.partition_metadata import read_topic_id, write_topic_id
from tests.cli.command import appliance
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.client import Received
from tests.clients.play import within
from tests.clients.transactional.confluent import ConfluentTransactions
from tests.spark.consumers import consumed_to_the_end
from tests.support.apache_kafka import ApacheKafka, tool
from tests.support.broker import Appliance
from tests.support.log_edits import headers
from tests.system.raw import wait_until

pytestmark = pytest.mark.slow

TOPIC: Final = "t"
PARTITIONS: Final = 2
GROUP: Final = "g"
SETTINGS: Final = {"transaction.state.log.num.partitions": 4, "offsets.topic.num.partitions": 4}
OPEN_FOR_MS: Final = 60_000
ISOLATIONS: Final = ("read_uncommitted", "read_committed")


@dataclass(frozen=True, slots=True)
class Given:
    """A stopped Kafka with our files, and what our consumers read of them before."""

    kafka: ApacheKafka
    contents: dict[str, list[Received]]


def transact(
    library: ConfluentTransactions, name: str, turn: int, *, commit: bool, timeout_ms: int = 60_000
) -> None:
    producer = library.producer(name, timeout_ms=timeout_ms)
    producer.init()
    producer.begin()
    for partition in range(PARTITIONS):
        producer.send(TOPIC, [f"{name} {turn} {number}".encode() for number in range(3)], partition)
    if commit:
        producer.send_offsets(GROUP, {(TOPIC, 0): 10 + turn})
    (producer.commit if commit else producer.abort)()


def contents(address: str) -> dict[str, list[Received]]:
    return {each: consumed_to_the_end(address, TOPIC, PARTITIONS, isolation=each) for each in ISOLATIONS}


def states(address: str) -> dict[str, str]:
    """Of all transactional ids, by our command line: it is asked often, and starts sooner than a virtual machine."""
    listed = appliance("transactions", "list", "--json", "-b", address).succeeded()
    return {each["transactional_id"]: each["state"] for each in json.loads(listed.output)}


def ours(data_dir: Path) -> dict[str, list[Received]]:
    """What our consumers read before the stop; by then a transaction is open."""
    broker = Appliance(data_dir, settings=SETTINGS)
    broker.start()
    try:
        ConfluentClient(broker.address).create_topic(TOPIC, PARTITIONS)
        library = ConfluentTransactions(broker.address)
        for turn in range(3):
            transact(library, "done", turn, commit=True)
            transact(library, "aborted", turn, commit=False)
            # It has markers, too: Kafka compares their coordinator's epoch with its own.
            transact(library, "open", turn, commit=turn != 1)
        broker.stop()
        broker.start()
        library = ConfluentTransactions(broker.address)
        producer = library.producer("open", timeout_ms=OPEN_FOR_MS)
        producer.init()
        producer.begin()
        for partition in range(PARTITIONS):
            producer.send(TOPIC, [b"never decided"], partition)
            library.send(TOPIC, [b"behind it"], partition)
        found = contents(broker.address)
        broker.stop()
        producer.close()
    finally:
        broker.stop()
    return found


def partitions_of(directory: Path) -> list[Path]:
    names = (TOPIC, "__transaction_state", "__consumer_offsets")
    return sorted(each for each in directory.iterdir() if each.name.rpartition("-")[0] in names)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Given]:
    root = tmp_path_factory.mktemp("back")
    found = ours(root / "data")
    slot = root / "data" / "slot-0"
    kafka = ApacheKafka(
        root / "kafka",
        settings={**SETTINGS, "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500},
    )
    kafka.start()
    try:
        ConfluentClient(kafka.address).create_topic(TOPIC, PARTITIONS)
        # The first transaction of all makes `__transaction_state`, and the first offsets `__consumer_offsets`.
        before = ConfluentTransactions(kafka.address).producer("before")
        before.init()
        before.begin()
        before.send_offsets("before", {(TOPIC, 0): 0})
        before.commit()
        log = kafka.data_dir / "log"
        names = [each.name for each in partitions_of(slot)]
        wait_until(lambda: all((log / name).is_dir() for name in names), "Kafka made them", timeout_s=30)
        kafka.stop()
        for name in names:
            topic_id = read_topic_id(log / name)
            assert topic_id is not None
            shutil.rmtree(log / name)
            shutil.copytree(slot / name, log / name)
            write_topic_id(log / name, topic_id)
        yield Given(kafka, found)
    finally:
        kafka.stop()


def test_kafkas_formatter_reads_every_record_of_our_transaction_log(given: Given) -> None:
    segments = sorted((given.kafka.data_dir / "log").glob("__transaction_state-*/*.log"))
    count = sum(header.records_count for each in segments for _, header in headers(each))
    printed = tool(
        *("org.apache.kafka.tools.DumpLogSegments", "--transaction-log-decoder", "--print-data-log"),
        *("--files", ",".join(str(each) for each in segments if headers(each))),
    )
    told = re.findall(r"key: (\{.*?\}\}) payload: (\{.*\})", printed)
    assert len(told) == count > 0
    last: dict[str, Any] = defaultdict(dict)
    for key, value in told:
        last[json.loads(key)["data"]["transactionalId"]] = json.loads(value)["data"]
    assert {name: each["transactionStatus"] for name, each in last.items()} == {
        "done": 4,
        "aborted": 5,
        "open": 1,
    }


def test_kafka_reads_what_we_read_aborts_what_is_open_and_goes_on(given: Given) -> None:
    kafka = given.kafka
    kafka.start()
    address = kafka.address
    known = states(address)
    assert (known["done"], known["aborted"]) == ("CompleteCommit", "CompleteAbort")
    assert known["open"] in ("Ongoing", "PrepareAbort", "CompleteAbort")
    library = ConfluentTransactions(address)
    assert library.committed(GROUP, TOPIC) == 12
    # Nobody ends the open one: its time is over here, as it would have been with us.
    ended = {"done": "CompleteCommit", "aborted": "CompleteAbort", "open": "CompleteAbort"}
    assert within(OPEN_FOR_MS / 1000 + 60, lambda: ended.items() <= states(address).items()), states(address)
    now = contents(address)
    assert now["read_uncommitted"] == given.contents["read_uncommitted"]
    behind = [each for each in now["read_uncommitted"] if each.value == b"behind it"]
    assert len(behind) == PARTITIONS
    assert now["read_committed"] == sorted(
        [*given.contents["read_committed"], *behind], key=lambda each: (each.partition, each.offset)
    )
    # Each id goes on with its producer id, and its markers are taken.
    for name in ("done", "aborted", "open", "new"):
        transact(library, name, 9, commit=True)
        for partition in range(PARTITIONS):
            until = f"{name} 9 2".encode()
            assert library.read(TOPIC, partition, until=until)[-1] == until
    assert library.committed(GROUP, TOPIC) == 19
