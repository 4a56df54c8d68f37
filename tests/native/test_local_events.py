"""What happens to a log while a consumer reads its files: it gets what a client over TCP gets after the same event.

Each consumer has read a part when the event comes. librdkafka, which then begins at the same offset, is the judge. A
consumer may also hand out records that it had read ahead before the event; those must be what was there before.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaException
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]

from appliance_client import Admin, Consumer, TopicPartition
from appliance_client.errors import BrokerError, OffsetOutOfRangeError
from appliance_client.local_reader import LocalReader
from tests.native.test_local_reader import bytes_of, local, make_broker, read_to, write
from tests.support.broker import Appliance
from tests.system.acked_load import bootstrap, create, in_sync, leaders
from tests.system.raw import wait_until

PATIENCE_S = 60.0
TRANSACTIONS, RECORDS = 60, 50
SIZE = 1_000
END = b"the end"
KEYS = 41
Found = dict[int, bytes]
_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    made = make_broker(tmp_path_factory.mktemp("events"), slots=2, **{"log.cleaner.backoff.ms": 200})
    made.start()
    yield made
    made.stop()


def fill(broker: Appliance, topic: str, first: int) -> None:
    """Transactions, of which each third is aborted."""
    producer = ConfluentProducer({"bootstrap.servers": bootstrap(broker), "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    for turn in range(TRANSACTIONS):
        producer.begin_transaction()
        for number in range(turn * RECORDS, (turn + 1) * RECORDS):
            producer.produce(topic, (b"%d" % (first + number)).ljust(SIZE), b"%d" % (number % KEYS), 0)
        producer.flush(PATIENCE_S)  # an abort would drop what was not sent
        if turn % 3 == 1:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)


def finish(broker: Appliance, topic: str) -> None:
    producer = ConfluentProducer({"bootstrap.servers": bootstrap(broker), "acks": "all"})
    producer.produce(topic, END, b"end", 0)
    assert producer.flush(PATIENCE_S) == 0


def by_librdkafka(broker: Appliance, topic: str, isolation: str, start: int, *, end: bool = True) -> Found:
    """What it reads from `start` to the last record, or to the end of the partition."""
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": bootstrap(broker),
            "group.id": "unused",
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    consumer.assign([ConfluentPartition(topic, 0, start)])
    found: Found = {}
    deadline_s = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline_s:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.name() == "_PARTITION_EOF" and not end:
                    return found
                assert error.retriable() or error.name() == "_PARTITION_EOF", error
                continue
            value, offset = message.value(), message.offset()
            assert isinstance(value, bytes)
            assert offset is not None
            found[offset] = value
            if value == END:
                return found
    finally:
        consumer.close()
    raise AssertionError(f"librdkafka read {len(found)} records")


def by_files(consumer: Consumer, until: Callable[[Found], bool], most: int | None = None) -> Found:
    found: Found = {}
    deadline_s = time.monotonic() + PATIENCE_S
    while not until(found):
        assert time.monotonic() < deadline_s, f"{len(found)} records came"
        for records in consumer.poll(200, most).values():
            for record in records:
                assert record.offset not in found
                found[record.offset] = bytes_of(record.value)
    return found


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────


def set_configs(broker: Appliance, topic: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap(broker)})
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def directory_of(broker: Appliance, topic: str) -> Path:
    (leader,) = leaders(broker, topic).values()
    return broker.data_dir / f"slot-{leader}" / f"{topic}-0"


def log_start(broker: Appliance, topic: str) -> int:
    with Consumer(bootstrap_servers=bootstrap(broker)) as consumer:
        place = TopicPartition(topic, 0)
        return consumer.beginning_offsets([place])[place]


def delete_records(broker: Appliance, topic: str) -> None:
    """The log start moves into the middle of a segment, and of a batch perhaps."""
    admin = AdminClient({"bootstrap.servers": bootstrap(broker)})
    place = ConfluentPartition(topic, 0, 2_222)
    admin.delete_records([place])[place].result(30)


def retain_little(broker: Appliance, topic: str) -> None:
    set_configs(broker, topic, retention_bytes="1100000")
    wait_until(lambda: log_start(broker, topic) > 1_000, "retention came", timeout_s=PATIENCE_S)


def retain_little_under_a_lease(broker: Appliance, topic: str) -> None:
    """Another reader's lease keeps the files, and does not make their records readable."""
    readers = directory_of(broker, topic) / ".readers"
    readers.mkdir(exist_ok=True)
    lease = {
        "version": 1,
        "owner": "a test",
        "host": "here",
        "kind": "batch",
        "ttl_ms": 600_000,
        "from_offset": 0,
    }
    unnamed = readers / "unnamed"
    unnamed.write_text(json.dumps(lease))
    os.rename(unnamed, readers / "kept.lease")
    retain_little(broker, topic)
    time.sleep(0.5)  # five times file.delete.delay.ms
    assert (directory_of(broker, topic) / f"{0:020d}.log.deleted").exists()


def compact(broker: Appliance, topic: str) -> None:
    before = {each.name: each.stat().st_ino for each in directory_of(broker, topic).glob("*.log")}
    set_configs(broker, topic, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")

    def is_swapped() -> bool:
        now = {each.name: each.stat().st_ino for each in directory_of(broker, topic).glob("*.log")}
        return any(now.get(name) != inode for name, inode in before.items())

    wait_until(is_swapped, "compaction came", timeout_s=PATIENCE_S)


def change_leaders(broker: Appliance, topic: str) -> None:
    (leader,) = leaders(broker, topic).values()
    for _ in range(2):
        (leader,) = leaders(broker, topic).values()
        wait_until(lambda: len(in_sync(broker, topic)[0]) == 2, "both are in sync", timeout_s=PATIENCE_S)
        broker.kill_role(f"ioproc {leader}.0")
        wait_until(
            lambda led=leader: leaders(broker, topic)[0] == 1 - led,  # type: ignore[misc]
            "the other leads",
            timeout_s=PATIENCE_S,
        )


EVENTS = [delete_records, retain_little, retain_little_under_a_lease, compact, change_leaders]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_a_reader_of_files_gets_what_a_client_over_tcp_gets(
    broker: Appliance, event: Callable[[Appliance, str], None], isolation: str
) -> None:
    topic = f"events-{next(_numbers)}"
    create(broker, topic, 1, replicas=2, segment_bytes="1048576", file_delete_delay_ms="100")
    fill(broker, topic, 0)
    before = by_librdkafka(broker, topic, isolation, 0, end=False)
    # 2 MiB are read ahead at the most, of 3.
    with local(broker, isolation_level=isolation, metadata_max_age_ms=1_000) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        first = by_files(consumer, lambda found: len(found) >= 100, 50)
        assert first == dict(list(before.items())[: len(first)])
        event(broker, topic)
        finish(broker, topic)
        found = by_files(consumer, lambda found: END in found.values())
    judged = by_librdkafka(broker, topic, isolation, max(first) + 1)
    assert list(found) == sorted(found)
    assert {offset: found.get(offset) for offset in judged} == judged, "nothing is missing"
    for offset in found.keys() - judged.keys():
        assert found[offset] == before[offset], "it was read ahead"
    assert len(before) < TRANSACTIONS * RECORDS or isolation == "read_uncommitted"
    assert judged, event
    # And from the start once more, with nothing read ahead.
    with local(broker, isolation_level=isolation) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        again = by_files(consumer, lambda found: END in found.values())
    assert again == by_librdkafka(broker, topic, isolation, 0)


def test_a_reader_of_files_follows_a_log_while_everything_happens_to_it(broker: Appliance) -> None:
    """Writes, changes of the leader and moves of the log start, for some seconds: nothing is read twice or altered."""
    topic = f"events-{next(_numbers)}"
    create(broker, topic, 1, replicas=2, segment_bytes="1048576", min_insync_replicas="1")
    ended = threading.Event()
    found: Found = {}
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            with local(broker, metadata_max_age_ms=1_000) as consumer:
                consumer.assign([TopicPartition(topic, 0)])
                deadline_s = time.monotonic() + 2 * PATIENCE_S
                while END not in found.values() and time.monotonic() < deadline_s:
                    for records in consumer.poll(100).values():
                        for record in records:
                            assert not found or record.offset > max(found)
                            found[record.offset] = bytes_of(record.value)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        for turn in range(3):
            fill(broker, topic, turn * TRANSACTIONS * RECORDS)
            change_leaders(broker, topic)
            admin = AdminClient({"bootstrap.servers": bootstrap(broker)})
            place = ConfluentPartition(topic, 0, 500 + turn * 3_000)
            admin.delete_records([place])[place].result(30)
        finish(broker, topic)
    finally:
        ended.set()
        thread.join(3 * PATIENCE_S)
    assert not failures
    judged = by_librdkafka(broker, topic, "read_uncommitted", 0)
    assert {offset: found.get(offset) for offset in judged} == judged
    assert set(found.values()) - {END} <= {
        (b"%d" % number).ljust(SIZE) for number in range(3 * TRANSACTIONS * RECORDS)
    }


# ── topics that go ───────────────────────────────────────────────────────────────────────────────────────


def test_a_deleted_topic_ends_a_reader_without_a_broker_and_a_new_one_of_its_name_is_another_log(
    broker: Appliance,
) -> None:
    topic = f"events-{next(_numbers)}"
    create(broker, topic, 1, replicas=2)
    write(broker, topic, range(10))
    with LocalReader(broker.data_dir, topic, 0) as reader:
        read_to(reader, 10)
        with Admin(bootstrap_servers=bootstrap(broker)) as admin:
            admin.delete_topic(topic)

        def raises() -> bool:
            try:
                return len(reader.read()) > 0
            except BrokerError:
                return True

        wait_until(raises, "the topic is unknown", timeout_s=PATIENCE_S)

        def is_made() -> bool:
            try:
                create(broker, topic, 1, replicas=2)
            except KafkaException:
                return False
            return True

        wait_until(is_made, "it is made again", timeout_s=PATIENCE_S)
        write(broker, topic, range(100, 150))
        # Ten records of another topic have the offsets that were read: that must not be gone over.
        with pytest.raises(OffsetOutOfRangeError, match="another topic"):
            read_to(reader, 50)
        reader.offset = 0
        assert read_to(reader, 50)[0][0] == 0


def test_an_offset_that_the_state_file_does_not_know_yet_is_asked_of_the_broker(tmp_path: Path) -> None:
    """The state of a busy partition is written each minute here: an old one is no reason to begin again."""
    broker = make_broker(tmp_path, **{"reader.state.interval.ms": 60_000})
    broker.start()
    try:
        topic = f"events-{next(_numbers)}"
        create(broker, topic, 1, replicas=1)
        written = 0
        with LocalReader(broker.data_dir, topic, 0, offset=0) as reader:

            def is_old() -> bool:
                nonlocal written
                write(broker, topic, range(written, written + 100))
                written += 100
                # After a rest the state is written twice, the second time up to a tenth of a second later.
                time.sleep(0.5)
                reader.read()
                return reader.high_watermark < written

            wait_until(is_old, "the state file is old", timeout_s=PATIENCE_S)
        place = TopicPartition(topic, 0)
        with local(broker) as consumer:
            consumer.assign([place])
            consumer.seek(place, written)
            assert consumer.poll(5_000) == {}
            assert consumer.position(place) == written
            write(broker, topic, range(written, written + 1))
            found = by_files(consumer, bool)
            assert found == {written: b"%d" % written}
            consumer.seek(place, written + 100)
            assert min(by_files(consumer, bool)) == 0, "the broker has no such offset: auto.offset.reset"
    finally:
        broker.stop()


def test_a_damaged_copy_is_no_error_while_another_copy_is_whole(tmp_path: Path) -> None:
    """A machine that lost its power: until the broker has repaired the file, its records are not handed out."""
    broker = make_broker(tmp_path, slots=2)
    broker.start()
    try:
        topic = f"events-{next(_numbers)}"
        create(broker, topic, 1, replicas=2)
        for number in range(30):
            write(broker, topic, range(number, number + 1))
        place = TopicPartition(topic, 0)
        with local(broker) as consumer:
            consumer.assign([place])
            wanted = {number: b"%d" % number for number in range(30)}
            assert by_files(consumer, lambda found: len(found) >= 30) == wanted
            log = directory_of(broker, topic) / f"{0:020d}.log"
            broker.kill()
            content = bytearray(log.read_bytes())
            at = content.index(b"\x0420", 0) + 1  # the value of record 20, behind its length
            content[at : at + 2] = b"XX"
            log.write_bytes(content)
            consumer.seek(place, 0)
            assert by_files(consumer, lambda found: len(found) >= 20) == {n: wanted[n] for n in range(20)}
            assert consumer.poll(1_000) == {}
            broker.start()
            assert by_files(consumer, lambda found: 29 in found) == {n: wanted[n] for n in range(20, 30)}
    finally:
        broker.stop()
