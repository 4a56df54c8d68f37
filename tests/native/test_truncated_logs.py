"""A log that an unclean election has cut: what readers of it get, over TCP and out of the files (KIP-320).

Apache Kafka's consumer goes on at the offset from which on the logs differ, where auto.offset.reset is set, and raises
where it is `none`. Each reader here has read records that the election takes back.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer

from appliance_client import Admin, Consumer, OffsetAndMetadata, Producer, TopicPartition
from appliance_client.errors import OffsetOutOfRangeError
from appliance_client.local_reader import LocalReader
from tests.cli.command import appliance
from tests.native.test_local_reader import bytes_of, make_broker, read_to
from tests.support.apache_kafka import ApacheKafka, java
from tests.support.broker import Appliance
from tests.system.acked_load import bootstrap, create, in_sync, leaders
from tests.system.raw import wait_until

PATIENCE_S = 60.0
SHARED, LOST = 100, 100
"""Records that both copies have, and records that the election takes back."""
NEW = 1_000
"""The first value of the records that come after it."""
_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    made = make_broker(tmp_path_factory.mktemp("cut"), slots=3)
    made.start()
    yield made
    made.stop()


class Cut:
    """A topic whose leader has records that the other slot lacks, until `happen` elects that one."""

    def __init__(self, broker: Appliance) -> None:
        self.broker = broker
        self.topic = f"cut-{next(_numbers)}"
        create(broker, self.topic, 1, replicas=2, min_insync_replicas="1", segment_bytes="1048576")
        (self.leader,) = leaders(broker, self.topic).values()
        (self.other,) = in_sync(broker, self.topic)[0] - {self.leader}
        (third,) = {0, 1, 2} - {self.leader, self.other}
        self._command = {"APPLIANCE_BOOTSTRAP": f"127.0.0.1:{broker.port + third}"}
        self.write(range(SHARED))
        self._slots("stop", self.other)
        wait_until(lambda: in_sync(broker, self.topic)[0] == {self.leader}, "it is alone")
        self.write(range(SHARED, SHARED + LOST))

    def happen(self) -> None:
        """The slot that lacks them leads, and the one that had them cuts its copy."""
        self._slots("stop", self.leader)
        self._slots("start", self.other)
        elect = ("partitions", "elect", self.topic, "--unclean")
        wait_until(lambda: appliance(*elect, more=self._command).code == 0, "it is elected", timeout_s=30)
        wait_until(lambda: leaders(self.broker, self.topic) == {0: self.other}, "it leads", timeout_s=30)
        self._slots("start", self.leader)

    def _slots(self, what: str, slot: int) -> None:
        force = ("--force",) if what == "stop" else ()
        appliance("slots", what, slot, *force, more=self._command).succeeded()

    def write(self, values: range, *, transactional: bool = False, commits: bool = True) -> None:
        options: dict[str, Any] = {"bootstrap.servers": bootstrap(self.broker), "linger.ms": 0}
        if transactional:
            options["transactional.id"] = self.topic
        producer = ConfluentProducer(options)
        if transactional:
            producer.init_transactions(PATIENCE_S)
            producer.begin_transaction()
        for number in values:
            producer.produce(self.topic, b"%d" % number, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        if transactional and commits:
            producer.commit_transaction(PATIENCE_S)
        elif transactional:
            producer.abort_transaction(PATIENCE_S)


@pytest.fixture
def cut(broker: Appliance) -> Iterator[Cut]:
    made = Cut(broker)
    yield made
    both = {made.leader, made.other}
    wait_until(lambda: in_sync(broker, made.topic)[0] == both, "both copies are alike", timeout_s=30)


def places(broker: Appliance) -> dict[str, Any]:
    return {
        "tcp": [f"127.0.0.1:{broker.port + slot}" for slot in range(3)],
        "shm": f"shm://{broker.data_dir}",
    }


def values_until(consumer: Consumer, until: Callable[[list[int]], bool]) -> list[int]:
    found: list[int] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while not until(found):
        assert time.monotonic() < deadline_s, f"{len(found)} records came: {found[-3:]}"
        for records in consumer.poll(200).values():
            found += [int(bytes_of(record.value)) for record in records]
    return found


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("new", [LOST // 2, 2 * LOST], ids=["shorter", "longer"])
def test_readers_go_on_where_the_logs_part_though_offsets_went_back(
    cut: Cut, new: int, isolation: str
) -> None:
    """The new log may be shorter than what was read, or longer: then only leader epochs tell."""
    wanted = list(range(NEW, NEW + new))
    with ExitStack() as stack:
        consumers = {
            name: stack.enter_context(
                Consumer(
                    bootstrap_servers=place,
                    auto_offset_reset="earliest",
                    isolation_level=isolation,
                    metadata_max_age_ms=1_000,
                )
            )
            for name, place in places(cut.broker).items()
        }
        for consumer in consumers.values():
            consumer.assign([TopicPartition(cut.topic, 0)])
            assert values_until(consumer, lambda found: len(found) >= SHARED + LOST) == list(
                range(SHARED + LOST)
            )
        cut.happen()
        cut.write(range(NEW, NEW + new))
        assert {
            name: values_until(consumer, lambda found: NEW + new - 1 in found)
            for name, consumer in consumers.items()
        } == {"tcp": wanted, "shm": wanted}


def test_without_a_reset_the_reader_is_refused_until_it_seeks(cut: Cut) -> None:
    place = TopicPartition(cut.topic, 0)
    with ExitStack() as stack:
        consumers = [
            stack.enter_context(
                Consumer(bootstrap_servers=servers, auto_offset_reset="none", metadata_max_age_ms=1_000)
            )
            for servers in places(cut.broker).values()
        ]
        for consumer in consumers:
            consumer.assign([place])
            consumer.seek(place, 0)
            values_until(consumer, lambda found: len(found) >= SHARED + LOST)
        cut.happen()
        cut.write(range(NEW, NEW + 2 * LOST))
        for consumer in consumers:
            for _ in range(2):
                with pytest.raises(OffsetOutOfRangeError, match=f"differs from offset {SHARED} on"):
                    values_until(consumer, bool)
                assert consumer.position(place) == SHARED + LOST
            consumer.seek(place, SHARED)
            found = values_until(consumer, lambda found: NEW + 2 * LOST - 1 in found)
            assert found == list(range(NEW, NEW + 2 * LOST))


def test_records_that_were_fetched_and_not_handed_out_are_dropped_with_the_cut(cut: Cut) -> None:
    """The application has 50 records of 200 that are read ahead."""
    wanted = [*range(50, SHARED), *range(NEW, NEW + 2 * LOST)]
    with ExitStack() as stack:
        consumers = [
            stack.enter_context(
                Consumer(
                    bootstrap_servers=servers,
                    auto_offset_reset="earliest",
                    max_poll_records=50,
                    metadata_max_age_ms=1_000,
                )
            )
            for servers in places(cut.broker).values()
        ]
        for consumer in consumers:
            consumer.assign([TopicPartition(cut.topic, 0)])
            assert values_until(consumer, bool) == list(range(50))
        cut.happen()
        cut.write(range(NEW, NEW + 2 * LOST))
        # A poll may still give what was read ahead before the consumer has learned of the election.
        for consumer in consumers:
            deadline_s = time.monotonic() + PATIENCE_S
            reading = consumer._consumer.fetching.readings[TopicPartition(cut.topic, 0)]
            while reading.position_epoch >= 0 and reading.fetch_offset != SHARED + 2 * LOST:
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
            assert values_until(consumer, lambda found: NEW + 2 * LOST - 1 in found) == wanted


def test_a_reader_without_a_broker_raises_instead_of_reading_on(cut: Cut) -> None:
    with LocalReader(cut.broker.data_dir, cut.topic, 0) as reader:
        read_to(reader, SHARED + LOST)
        cut.happen()
        cut.write(range(NEW, NEW + 2 * LOST))
        with pytest.raises(OffsetOutOfRangeError, match="lost records that were read"):
            read_to(reader, SHARED + 2 * LOST)
        assert reader.offset == SHARED + LOST
        reader.offset = SHARED
        read_to(reader, SHARED + 2 * LOST)


def test_aborted_transactions_of_the_new_leader_are_stepped_over(cut: Cut) -> None:
    """read_committed out of the files, over the cut: the index of aborted transactions is the new leader's."""
    place = TopicPartition(cut.topic, 0)
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with Consumer(
        bootstrap_servers=f"shm://{cut.broker.data_dir}", metadata_max_age_ms=1_000, **options
    ) as consumer:
        consumer.assign([place])
        values_until(consumer, lambda found: len(found) >= SHARED + LOST)
        cut.happen()
        cut.write(range(NEW, NEW + 80), transactional=True, commits=False)
        cut.write(range(NEW + 80, NEW + 200), transactional=True)
        assert values_until(consumer, lambda found: NEW + 199 in found) == list(range(NEW + 80, NEW + 200))


def test_apache_kafkas_consumer_goes_on_at_the_same_offset(cut: Cut, tmp_path: Path) -> None:
    """The judge: what Kafka's own client prints is what both readers give."""
    settings = tmp_path / "consumer.properties"
    settings.write_text("auto.offset.reset=earliest\nmetadata.max.age.ms=1000\n")
    printed = tmp_path / "printed"
    with printed.open("wb") as sink:
        process = subprocess.Popen(
            [
                *java("-Xmx256m", "-XX:TieredStopAtLevel=1"),
                "org.apache.kafka.tools.consumer.ConsoleConsumer",
                "--bootstrap-server",
                bootstrap(cut.broker),
                "--topic",
                cut.topic,
                "--command-config",
                str(settings),
                "--partition",
                "0",
                "--offset",
                "earliest",
            ],
            stdout=sink,
        )
        try:

            def lines() -> list[int]:
                return [int(line) for line in printed.read_bytes().splitlines()]

            wait_until(lambda: len(lines()) >= SHARED + LOST, "all is read", timeout_s=60)
            cut.happen()
            cut.write(range(NEW, NEW + 2 * LOST))
            wait_until(lambda: NEW + 2 * LOST - 1 in lines(), "the rest", timeout_s=60)
        finally:
            process.terminate()
            process.wait(30)
        assert lines() == [*range(SHARED + LOST), *range(NEW, NEW + 2 * LOST)]


def begin_another_epoch(broker: Appliance | ApacheKafka) -> None:
    """Another leader, or the same one after a restart of Apache Kafka."""
    if isinstance(broker, ApacheKafka):
        broker.stop()
        broker.start()
        return
    (leader,) = leaders(broker, "t").values()
    wait_until(lambda: in_sync(broker, "t")[0] == {0, 1}, "both are in sync", timeout_s=PATIENCE_S)
    broker.kill_role(f"ioproc {leader}.0")
    wait_until(lambda: leaders(broker, "t") == {0: 1 - leader}, "the other leads", timeout_s=PATIENCE_S)


@pytest.mark.parametrize("kind", [Appliance, ApacheKafka], ids=lambda kind: kind.__name__)
def test_a_position_with_an_epoch_that_ended_before_it_goes_back_to_its_end(
    kind: type[Appliance] | type[ApacheKafka], tmp_path: Path
) -> None:
    """As a commit of records that an election has removed since. Kafka answers last_fetched_epoch to any client."""
    broker = ApacheKafka(tmp_path / "data") if kind is ApacheKafka else Appliance(tmp_path / "data", slots=2)
    broker.start()
    try:
        with Admin(bootstrap_servers=broker.address) as admin:
            admin.create_topic("t", 1, 1 if kind is ApacheKafka else 2)
        place = TopicPartition("t", 0)
        first, second = range(5), range(5, 10)
        for values in (first, second):
            with Producer(bootstrap_servers=broker.address) as producer:
                for number in values:
                    producer.send("t", b"%d" % number, partition=0).get(PATIENCE_S)
            if values is first:
                begin_another_epoch(broker)
        with Consumer(bootstrap_servers=broker.address, auto_offset_reset="latest") as consumer:
            consumer.assign([place])
            consumer.seek(place, OffsetAndMetadata(3, "", 0))
            assert values_until(consumer, lambda found: 9 in found) == list(range(3, 10))
            consumer.seek(place, OffsetAndMetadata(8, "", 0))
            assert values_until(consumer, lambda found: 9 in found) == list(range(5, 10))
            begin_another_epoch(broker)
            with Producer(bootstrap_servers=broker.address) as producer:
                producer.send("t", b"10", partition=0).get(PATIENCE_S)
            assert values_until(consumer, bool) == [10], "nothing was removed"
    finally:
        broker.stop()
