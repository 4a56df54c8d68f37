"""Reading the files of a running broker on the same host: `shm:///data-dir`, and `LocalReader`."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient

from appliance.log.partition_state import PLACE_BYTES, PartitionState
from appliance.protocol.records import batch as b
from appliance_client import Admin, Consumer, Producer, TopicPartition, aio
from appliance_client.errors import (
    BrokerError,
    CorruptRecordsError,
    OffsetOutOfRangeError,
    OptionError,
    TransportError,
)
from appliance_client.local_reader import LocalReader
from appliance_client.local_state import decode_state
from tests.support.broker import Appliance
from tests.support.ready import is_readable
from tests.support.wire import free_ports

PATIENCE_S = 60.0
SMALL = "1048576"
"""As small as a segment may be."""
NOBODY = 65_534
_numbers = count(1)


def make_broker(home: Path, *, slots: int = 1, **settings: object) -> Appliance:
    quick = {"group.initial.rebalance.delay.ms": 0, "log.retention.check.interval.ms": 200}
    return Appliance(home / "data", slots=slots, settings={**quick, **settings})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    made = make_broker(tmp_path_factory.mktemp("local"), **{"log.cleaner.backoff.ms": 200})
    made.start()
    yield made
    made.stop()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Appliance]:
    """A broker that a test may kill."""
    made = make_broker(tmp_path)
    made.start()
    yield made
    made.stop()


def create(broker: Appliance, *, partitions: int = 1, replicas: int = 1, **configs: str) -> str:
    topic = f"local-{next(_numbers)}"
    with Admin(bootstrap_servers=broker.address) as admin:
        admin.create_topic(
            topic, partitions, replicas, {name.replace("_", "."): value for name, value in configs.items()}
        )
    return topic


def write(broker: Appliance, topic: str, values: range, *, size: int = 1) -> None:
    """As librdkafka does; returns when all are acknowledged."""
    failed: list[Any] = []
    producer = ConfluentProducer({"bootstrap.servers": broker.address, "acks": "all", "linger.ms": 2})
    for number in values:
        producer.produce(
            topic,
            (b"%d" % number).ljust(size),
            None,
            0,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def local(broker: Appliance, **options: Any) -> Consumer:
    return Consumer(
        bootstrap_servers=f"shm://{broker.data_dir}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **options,
    )


def values_of(consumer: Consumer, until: Callable[[list[int]], bool]) -> list[int]:
    found: list[int] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while not until(found):
        assert time.monotonic() < deadline_s, f"{len(found)} records came: {found[-3:]}"
        for records in consumer.poll(200).values():
            found += [int(bytes_of(record.value)) for record in records]
    return found


def wait_until_whole(broker: Appliance) -> None:
    """A stop that meets a process between two lives ends with an error."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not broker.is_whole():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def bytes_of(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


def read_to(reader: LocalReader, end: int) -> list[tuple[int, int]]:
    """(base offset, records) of all batches until the reader stands at `end`."""
    found: list[tuple[int, int]] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while reader.offset < end:
        assert time.monotonic() < deadline_s, f"it stands at {reader.offset}"
        records = reader.read()
        found += [(header.base_offset, header.records_count) for _, header in b.batches(records)]
        if not records:
            reader.wait(0.1)
    return found


def partition_of(broker: Appliance, topic: str, slot: int = 0) -> Path:
    return broker.data_dir / f"slot-{slot}" / f"{topic}-0"


# ── what the broker says ─────────────────────────────────────────────────────────────────────────────────


def test_the_client_reads_the_state_as_the_broker_writes_it() -> None:
    state = PartitionState(
        topic_id=UUID(int=7),
        leader_epoch=3,
        log_start=1,
        high_watermark=20,
        last_stable=19,
        log_end=21,
        durable=2,
        active_base=1,
        active_bytes=4711,
        leads=True,
        incarnation=5,
        generation=6,
        sequence=8,
    )
    older = state.encode()
    newer = replace(state, high_watermark=21, sequence=9).encode()
    content = older.ljust(PLACE_BYTES, b"\0") + newer
    found = decode_state(content)
    assert found == (9, 3, UUID(int=7), 5, 6, 1, 21, 19, 21, True)
    torn = bytearray(content)
    torn[-1] ^= 1
    found = decode_state(bytes(torn))
    assert found is not None
    assert found.high_watermark == 20
    assert decode_state(b"") is None


def test_an_address_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    for address in ("shm://relative/path", f"shm://{tmp_path}"):
        with pytest.raises(OptionError):
            Consumer(bootstrap_servers=address)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


def test_everything_that_librdkafka_wrote_is_read_over_many_segments(broker: Appliance) -> None:
    topic = create(broker, segment_bytes=SMALL)
    write(broker, topic, range(20_000), size=400)
    assert len(list(partition_of(broker, topic).glob("*.log"))) > 5
    with local(broker) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert values_of(consumer, lambda found: len(found) >= 20_000) == list(range(20_000))
        for offset in (0, 1, 7_777, 19_999):
            consumer.seek(TopicPartition(topic, 0), offset)
            assert values_of(consumer, bool)[0] == offset
        assert consumer.highwater(TopicPartition(topic, 0)) == 20_000


def test_records_are_read_while_no_process_of_the_broker_can_answer_a_fetch(broker: Appliance) -> None:
    topic = create(broker)
    write(broker, topic, range(5_000))
    with local(broker) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert values_of(consumer, lambda found: len(found) >= 5_000) == list(range(5_000))
        stopped = broker.pids("netproc")
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            consumer.seek(TopicPartition(topic, 0), 0)
            assert values_of(consumer, lambda found: len(found) >= 5_000) == list(range(5_000))
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)


def test_members_of_a_group_share_partitions_and_go_on_where_they_committed(broker: Appliance) -> None:
    topic = create(broker, partitions=4)
    with Producer(bootstrap_servers=broker.address) as producer:
        for number in range(400):
            producer.send(topic, b"%d" % number, partition=number % 4)
        producer.flush()
    with local(broker, group_id=topic) as consumer:
        consumer.subscribe([topic])
        assert sorted(values_of(consumer, lambda found: len(found) >= 400)) == list(range(400))
        assert len(consumer.assignment()) == 4
        consumer.commit()
    with Producer(bootstrap_servers=broker.address) as producer:
        producer.send(topic, b"400", partition=0).get(PATIENCE_S)
    with local(broker, group_id=topic) as consumer:
        consumer.subscribe([topic])
        assert values_of(consumer, bool) == [400]


def test_the_asyncio_face_reads_files_too(broker: Appliance) -> None:
    topic = create(broker)

    async def play() -> list[int]:
        found: list[int] = []
        async with aio.Consumer(
            bootstrap_servers=f"shm://{broker.data_dir}", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            write(broker, topic, range(300))
            while len(found) < 300:
                polled = await asyncio.wait_for(consumer.poll(1_000), PATIENCE_S)
                found += [int(bytes_of(record.value)) for records in polled.values() for record in records]
        return found

    assert asyncio.run(play()) == list(range(300))


def test_a_reader_is_woken_by_a_record_and_hears_nothing_without_one(broker: Appliance) -> None:
    topic = create(broker)
    write(broker, topic, range(10))
    with LocalReader(broker.data_dir, topic, 0) as reader:
        read_to(reader, 10)
        deadline_s = time.monotonic() + PATIENCE_S
        while reader.wait(0.2):  # what was said of the last records, or of the flush
            assert time.monotonic() < deadline_s
            assert not reader.read()
        write(broker, topic, range(10, 11))
        descriptor = reader.descriptor
        assert is_readable(descriptor, within_s=PATIENCE_S)
        assert read_to(reader, 11) == [(10, 1)]


def test_each_record_is_heard_of_at_once_while_a_reader_waits_though_the_log_is_busy(tmp_path: Path) -> None:
    """The state of a busy partition is written each five seconds here, but for readers that wait."""
    broker = make_broker(tmp_path, **{"reader.state.interval.ms": 5_000})
    broker.start()
    try:
        topic = create(broker)
        with local(broker) as consumer, Producer(bootstrap_servers=broker.address, linger_ms=0) as producer:
            consumer.assign([TopicPartition(topic, 0)])
            found: list[int] = []
            slow = 0
            for number in range(100):
                producer.send(topic, b"%d" % number, partition=0).get(PATIENCE_S)
                began_s = time.monotonic()
                found += values_of(consumer, bool)
                slow += time.monotonic() - began_s > 1.0
            assert found == list(range(100))
            assert slow <= 2, (
                "the first record is heard of after a rest, the next one finds nobody waiting yet"
            )
    finally:
        broker.stop()


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_who_waits_for_a_quiet_log_sleeps(broker: Appliance, isolation_level: str) -> None:
    topic = create(broker)
    write(broker, topic, range(5))
    with local(broker, isolation_level=isolation_level) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert values_of(consumer, lambda found: len(found) >= 5) == list(range(5))
        thread = next(
            each.native_id
            for each in threading.enumerate()
            if each.name == "appliance-consumer" and each is consumer._io._thread
        )
        time.sleep(1)  # the flush of the records is told, too
        before = sleeps_of(thread)
        time.sleep(4)
        assert sleeps_of(thread) - before <= 4
        write(broker, topic, range(5, 6))
        assert values_of(consumer, bool) == [5]


def sleeps_of(thread: int | None) -> int:
    """How often the thread has gone to sleep."""
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_a_partition_that_is_made_while_somebody_looks_for_it_is_found(broker: Appliance) -> None:
    """And its topic is deleted again, and made once more: each is heard of."""
    with local(broker, metadata_max_age_ms=300, allow_auto_create_topics=False) as consumer:
        topic = f"local-{next(_numbers)}"
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.poll(300) == {}
        with Admin(bootstrap_servers=broker.address) as admin:
            admin.create_topic(topic, 1)
        write(broker, topic, range(3))
        assert values_of(consumer, lambda found: len(found) >= 3) == [0, 1, 2]


def test_nothing_beyond_the_high_watermark_is_read(broker: Appliance) -> None:
    """The last stable offset bounds the same way: a transaction that is open holds it."""
    topic = create(broker)
    write(broker, topic, range(5))
    producer = ConfluentProducer({"bootstrap.servers": broker.address, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"5", partition=0)
    producer.flush(PATIENCE_S)
    write(broker, topic, range(6, 8))
    with (
        LocalReader(broker.data_dir, topic, 0) as everything,
        LocalReader(broker.data_dir, topic, 0, isolation_level="read_committed") as decided,
    ):
        read_to(everything, 8)
        read_to(decided, 5)
        assert not decided.read()
        assert decided.offset == 5
        producer.commit_transaction(PATIENCE_S)
        read_to(decided, 9)


@pytest.mark.parametrize("segment_bytes", ["1073741824", SMALL])
def test_records_of_aborted_transactions_are_stepped_over(broker: Appliance, segment_bytes: str) -> None:
    topic = create(broker, segment_bytes=segment_bytes)
    producer = ConfluentProducer({"bootstrap.servers": broker.address, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    committed: list[int] = []
    for turn in range(30):
        producer.begin_transaction()
        for number in range(turn * 100, turn * 100 + 100):
            producer.produce(topic, (b"%d" % number).ljust(2_000), partition=0)
        if turn % 3:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
            committed += range(turn * 100, turn * 100 + 100)
    write(broker, topic, range(3_000, 3_001))
    for isolation in ("read_committed", "read_uncommitted"):
        answers = []
        for address in (f"shm://{broker.data_dir}", broker.address):
            with Consumer(
                bootstrap_servers=address, auto_offset_reset="earliest", isolation_level=isolation
            ) as consumer:
                consumer.assign([TopicPartition(topic, 0)])
                answers.append(values_of(consumer, lambda found: 3_000 in found))
        assert answers[0] == answers[1]
        if isolation == "read_committed":
            assert answers[0] == [*committed, 3_000]


# ── what happens to files ────────────────────────────────────────────────────────────────────────────────


def test_whoever_falls_behind_the_start_of_the_log_is_told(broker: Appliance) -> None:
    topic = create(broker, segment_bytes=SMALL)
    write(broker, topic, range(3_000), size=1_000)
    with LocalReader(broker.data_dir, topic, 0) as reader, local(broker) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while not reader.read(1_000):
            reader.wait(0.1)
        assert reader.offset < 2_000
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.delete_records([ConfluentPartition(topic, 0, 2_500)])[ConfluentPartition(topic, 0)].result(30)

        def read_on() -> None:
            deadline_s = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline_s:
                reader.read(10)
                reader.wait(0.05)
                reader.offset = 100

        with pytest.raises(OffsetOutOfRangeError):
            read_on()
        consumer.seek(TopicPartition(topic, 0), 100)
        assert values_of(consumer, lambda found: 2_999 in found)[0] == 2_500


def test_retention_removes_segments_under_a_reader_and_it_goes_on_where_the_log_begins(
    broker: Appliance,
) -> None:
    topic = create(broker, segment_bytes=SMALL, retention_bytes="2000000", file_delete_delay_ms="100")
    with local(broker) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[int] = []
        for start in range(0, 20_000, 1_000):
            write(broker, topic, range(start, start + 1_000), size=500)
            for records in consumer.poll(50, max_records=100).values():
                found += [int(bytes_of(record.value)) for record in records]
        deadline_s = time.monotonic() + PATIENCE_S
        while partition_of(broker, topic).joinpath(f"{0:020d}.log").exists():
            assert time.monotonic() < deadline_s, "retention came"
            time.sleep(0.05)
        found += values_of(consumer, lambda more: 19_999 in more)
    assert found == sorted(set(found))


def test_a_compacted_log_is_read_while_compaction_swaps_its_files(broker: Appliance) -> None:
    topic = create(broker, cleanup_policy="compact", segment_bytes=SMALL, min_cleanable_dirty_ratio="0.01")
    last: dict[bytes, int] = {}
    with local(broker) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        offsets: list[int] = []

        def poll() -> None:
            for records in consumer.poll(20, max_records=200).values():
                for record in records:
                    offsets.append(record.offset)
                    assert isinstance(record.key, bytes)
                    last[record.key] = int(bytes_of(record.value))

        producer = ConfluentProducer({"bootstrap.servers": broker.address})
        for number in range(30_000):
            producer.produce(topic, (b"%d" % number).ljust(300), b"key-%d" % (number % 37), 0)
            if number % 500 == 0:
                producer.flush(PATIENCE_S)
                poll()
        producer.flush(PATIENCE_S)
        deadline_s = time.monotonic() + PATIENCE_S
        while not offsets or offsets[-1] < 29_999:
            assert time.monotonic() < deadline_s, offsets[-1:]
            poll()
        assert offsets == sorted(set(offsets))
        assert last == {b"key-%d" % (number % 37): number for number in range(29_963, 30_000)}
        # And once more, over what compaction has left.
        with LocalReader(broker.data_dir, topic, 0) as probe:
            while sum(records for _, records in read_to(probe, 30_000)) >= 30_000:
                assert time.monotonic() < deadline_s, "compaction came"
                probe.offset = 0
        last.clear()
        consumer.seek(TopicPartition(topic, 0), 0)
        offsets.clear()
        while not offsets or offsets[-1] < 29_999:
            assert time.monotonic() < deadline_s, offsets[-1:]
            poll()
        assert last == {b"key-%d" % (number % 37): number for number in range(29_963, 30_000)}


def test_a_topic_that_was_deleted_and_made_again_is_read_from_its_new_files(broker: Appliance) -> None:
    topic = create(broker)
    write(broker, topic, range(10))
    # The consumer asks for the topic while there is none: that must not make it.
    with local(broker, metadata_max_age_ms=500, allow_auto_create_topics=False) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert values_of(consumer, lambda found: len(found) >= 10) == list(range(10))
        with Admin(bootstrap_servers=broker.address) as admin:
            admin.delete_topic(topic)
            deadline_s = time.monotonic() + PATIENCE_S
            while True:
                try:
                    admin.create_topic(topic, 1)
                    break
                except BrokerError:
                    if time.monotonic() > deadline_s:
                        raise
                    time.sleep(0.05)
        write(broker, topic, range(100, 105))
        assert values_of(consumer, lambda found: 104 in found) == [100, 101, 102, 103, 104]


def test_bytes_that_fail_their_checksum_are_not_handed_out(broker: Appliance) -> None:
    topic = create(broker)
    write(broker, topic, range(10))
    with LocalReader(broker.data_dir, topic, 0) as reader:
        read_to(reader, 10)
        log = partition_of(broker, topic) / f"{0:020d}.log"
        with log.open("r+b") as file:
            file.seek(b.HEADER_BYTES + 2)
            byte = file.read(1)
            file.seek(b.HEADER_BYTES + 2)
            file.write(bytes([byte[0] ^ 0xFF]))
        reader.offset = 0
        with pytest.raises(CorruptRecordsError):
            read_to(reader, 10)
        with local(broker) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            with pytest.raises(CorruptRecordsError):
                values_of(consumer, lambda found: len(found) >= 10)


# ── who dies, who may ────────────────────────────────────────────────────────────────────────────────────


def test_a_reader_reads_on_while_a_broker_lies_killed_and_gets_the_rest_when_it_is_back(
    own: Appliance,
) -> None:
    topic = create(own)
    write(own, topic, range(5_000))
    with LocalReader(own.data_dir, topic, 0) as reader:
        deadline_s = time.monotonic() + PATIENCE_S
        while reader.high_watermark < 5_000:  # what is acknowledged is said a little later
            assert time.monotonic() < deadline_s
            reader.wait(0.1)
            reader.offset = 0
            reader.read(100)
        own.kill()
        reader.offset = 0  # one batch may have had all of them
        found = read_to(reader, 5_000)
        assert found
        assert not reader.read()
        own.start()
        write(own, topic, range(5_000, 6_000))
        own.kill()  # perhaps before the state file tells of them
        own.start()
        read_to(reader, 6_000)
        assert reader.offset == 6_000


def test_a_consumer_reads_on_when_each_process_of_a_worker_was_killed(own: Appliance) -> None:
    topic = create(own)
    with local(own) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[int] = []
        for turn, role in enumerate(("ioproc", "netproc", "ioproc")):
            write(own, topic, range(turn * 500, turn * 500 + 500))
            own.kill_role(role)
            found += values_of(consumer, lambda more, at=turn * 500 + 499: at in more)  # type: ignore[misc]
        assert found == list(range(1_500))
    wait_until_whole(own)


def test_a_reader_follows_the_leader_from_slot_to_slot(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, slots=3)
    broker.start()
    try:
        topic = create(broker, replicas=3, min_insync_replicas="2")
        with local(broker) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            found: list[int] = []
            for turn in range(6):
                write(broker, topic, range(turn * 300, turn * 300 + 300))
                broker.kill_role("ioproc", turn % 3)
                found += values_of(consumer, lambda more, at=turn * 300 + 299: at in more)  # type: ignore[misc]
            assert found == list(range(1_800))
        wait_until_whole(broker)
    finally:
        broker.stop()


def test_a_broker_that_was_restarted_on_another_port_is_found_again(own: Appliance) -> None:
    """What is asked of it goes over TCP: leaders, commits, the group."""
    topic = create(own, partitions=2)
    write(own, topic, range(10))
    with local(own, group_id=topic, metadata_max_age_ms=1_000) as consumer:
        consumer.subscribe([topic])
        assert values_of(consumer, lambda found: len(found) >= 10) == list(range(10))
        own.stop()
        own.port = free_ports(1)
        own.start()
        write(own, topic, range(10, 20))
        assert values_of(consumer, lambda found: len(found) >= 10) == list(range(10, 20))
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                consumer.commit()
                break
            except (BrokerError, TransportError):
                assert time.monotonic() < deadline_s
                consumer.poll(100)
        committed = consumer.committed(TopicPartition(topic, 0))[TopicPartition(topic, 0)]
        assert committed is not None
        assert committed.offset == 20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_member_of_the_readers_group_reads_and_is_woken() -> None:
    home = Path(tempfile.mkdtemp())
    home.chmod(0o755)
    settings: dict[str, Any] = {"data.directory.group": "4243", "reader.state.interval.ms": 5_000}
    broker = make_broker(home, **settings)
    broker.start()
    try:
        topic = create(broker)
        write(broker, topic, range(3))
        child = os.fork()
        if child == 0:
            code = 9
            try:
                os.setgroups([4243])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                with LocalReader(broker.data_dir, topic, 0, offset=0) as reader:
                    read_to(reader, 100)
                    code = 0
            finally:
                os._exit(code)
        for number in range(3, 100):
            write(broker, topic, range(number, number + 1))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        broker.stop()
        shutil.rmtree(home)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused() -> None:
    home = Path(tempfile.mkdtemp())
    home.chmod(0o755)
    broker = make_broker(home)
    broker.start()
    try:
        topic = create(broker)
        write(broker, topic, range(3))
        data_dir = broker.data_dir
        child = os.fork()
        if child == 0:
            code = 9
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                code = refusals(data_dir, topic)
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 2, "consumer and reader are both refused"
    finally:
        broker.stop()
        shutil.rmtree(home)


def refusals(data_dir: Path, topic: str) -> int:
    refused = 0
    try:
        Consumer(bootstrap_servers=f"shm://{data_dir}")
    except OptionError:
        refused += 1
    try:
        LocalReader(data_dir, topic, 0)
    except BrokerError:
        refused += 1
    return refused
