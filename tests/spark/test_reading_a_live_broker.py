"""Readers off the disk beside a broker that serves: no word between the two but files."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from appliance.log.reader_leases import LEASE, LEASES_MAX, READERS, TTL_MS_MIN, Lease
from appliance.protocol.records.record import decode_records
from spark_connector.bounds import end_offset
from spark_connector.directory import Directories, Isolation, PartitionView
from spark_connector.lease import take_lease
from spark_connector.planning import OffsetRange, ScanRange, plan
from spark_connector.scan import scan
from tests.support.broker import Appliance

WAIT_S = 30.0
SEGMENT_BYTES = 1 << 20  # the smallest that a topic may have
PADDING = bytes(1000)


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Returns as soon as it holds, within 30 s."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(
        tmp_path_factory.mktemp("live") / "data",
        settings={"log.retention.check.interval.ms": 100, "log.flush.offset.checkpoint.interval.ms": 500},
    )
    appliance.start()
    try:
        yield appliance
    finally:
        appliance.stop()


def make_topic(broker: Appliance, name: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.address})
    config = {
        "segment.bytes": str(SEGMENT_BYTES),
        "index.interval.bytes": "4096",
        "file.delete.delay.ms": "0",
    }
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(20)
    return admin


def produce(broker: Appliance, topic: str, first: int, count: int) -> None:
    """Values `first` and on; returns when all are acknowledged."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 1, "batch.size": 8000})
    failed: list[object] = []
    for number in range(first, first + count):
        producer.produce(
            topic,
            b"%08d" % number + PADDING,
            partition=0,
            on_delivery=lambda e, _: failed.append(e) if e else None,
        )
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    assert failed == []


def view_of(broker: Appliance, topic: str) -> PartitionView:
    return Directories([broker.data_dir]).partition(topic, 0)


def tasks_of(view: PartitionView, start: int | None = None) -> list[ScanRange]:
    begin = view.log_start_offset if start is None else start
    end = end_offset(view, Isolation.READ_UNCOMMITTED)
    return plan([view], [OffsetRange(view.topic, 0, begin, end)])


def values(tasks: list[ScanRange]) -> list[int]:
    found = []
    for task in tasks:
        for chunk in scan(task):
            for batch in chunk.batches:
                at, length_bytes = int(batch["position"]), int(batch["length_bytes"])
                for record in decode_records(chunk.data.data[at : at + length_bytes]):
                    if chunk.start <= record.offset < chunk.end:
                        assert record.value is not None
                        found.append(int(record.value[:8]))
    return found


def test_a_reader_beside_a_busy_broker_sees_every_record_once_and_in_order(broker: Appliance) -> None:
    make_topic(broker, "busy")
    written = threading.Thread(target=produce, args=(broker, "busy", 0, 8000))
    written.start()
    seen: list[int] = []

    def follow() -> bool:
        view = view_of(broker, "busy")
        seen.extend(values(tasks_of(view, len(seen))))
        return len(seen) >= 8000

    try:
        eventually((broker.data_dir / "slot-0" / "busy-0" / ".state").exists, "no state")
        eventually(follow, "the reader does not get all records")
    finally:
        written.join()
    assert seen == list(range(8000))
    assert len(list((broker.data_dir / "slot-0" / "busy-0").glob("*.log"))) > 3, "it was rolled meanwhile"


def test_what_was_acknowledged_is_read_after_a_kill_and_without_a_broker(broker: Appliance) -> None:
    make_topic(broker, "killed")
    produce(broker, "killed", 0, 1000)
    eventually(lambda: view_of(broker, "killed").high_watermark == 1000, "the state is late")
    planned = tasks_of(view_of(broker, "killed"))
    broker.kill()
    assert values(planned) == list(range(1000))
    assert values(tasks_of(view_of(broker, "killed"))) == list(range(1000))
    broker.start()
    produce(broker, "killed", 1000, 500)
    eventually(lambda: view_of(broker, "killed").high_watermark == 1500, "the state is late")
    before = view_of(broker, "killed")
    assert before.incarnation == planned[0].incarnation
    broker.stop()
    stopped = view_of(broker, "killed")
    assert not stopped.is_live
    assert stopped.durable_offset == 1500
    assert values(tasks_of(stopped)) == list(range(1500))
    broker.start()


def test_a_lease_keeps_what_is_deleted_until_it_is_released(broker: Appliance) -> None:
    admin = make_topic(broker, "leased")
    produce(broker, "leased", 0, 4000)
    eventually(lambda: view_of(broker, "leased").high_watermark == 4000, "the state is late")
    view = view_of(broker, "leased")
    lease = take_lease([(view, 0)], owner="tests")
    assert lease.unprotected == ()
    planned = plan([view_of(broker, "leased")], [OffsetRange("leased", 0, 0, 4000)], lease=lease.ref)
    directory = Path(view.directory)
    before = len(list(directory.glob("*.log")))
    admin.delete_records([TopicPartition("leased", 0, 3000)])
    eventually(lambda: len(list(directory.glob("*.log.deleted"))) > 1, "nothing was deleted")
    eventually(lambda: view_of(broker, "leased").log_start_offset >= 3000, "the state is late")
    assert len(list(directory.glob("*.log"))) < before
    assert values(planned) == list(range(4000))
    assert lease.renew() == []
    lease.release()
    eventually(lambda: not list(directory.glob("*.deleted")), "what was held is not removed")
    assert values(tasks_of(view_of(broker, "leased"))) == list(range(3000, 4000))


def test_a_running_reader_keeps_its_segments_among_thousands_of_ended_queries(broker: Appliance) -> None:
    admin = make_topic(broker, "crowded")
    produce(broker, "crowded", 0, 4000)
    eventually(lambda: view_of(broker, "crowded").high_watermark == 4000, "the state is late")
    view = view_of(broker, "crowded")
    lease = take_lease([(view, 0)], owner="tests", id="f" * 32)
    planned = plan([view_of(broker, "crowded")], [OffsetRange("crowded", 0, 0, 4000)], lease=lease.ref)
    readers = Path(view.directory) / READERS
    dead = Lease("", "an ended query", "here", "batch", TTL_MS_MIN, 0).encode()
    for number in range(3 * LEASES_MAX):
        (readers / f"{number:032x}{LEASE}").write_bytes(dead)
    admin.delete_records([TopicPartition("crowded", 0, 3000)])
    eventually(lambda: view_of(broker, "crowded").log_start_offset >= 3000, "the state is late")
    eventually(lambda: len(list(readers.iterdir())) == 1, "the owner keeps what has expired")
    assert [path.stem for path in readers.iterdir()] == [lease.ref.id]
    time.sleep(3)  # several looks at what is held
    assert values(planned) == list(range(4000))
    lease.release()
    eventually(lambda: not list(Path(view.directory).glob("*.deleted")), "what was held is not removed")


@pytest.mark.slow
def test_of_three_slots_the_copy_that_leads_is_read_and_another_one_after_it_died(tmp_path: Path) -> None:
    appliance = Appliance(tmp_path / "data", slots=3)
    appliance.start()
    try:
        admin = AdminClient({"bootstrap.servers": appliance.address})
        admin.create_topics([NewTopic("copied", 1, 3)])["copied"].result(30)
        produce(appliance, "copied", 0, 1000)
        eventually(lambda: view_of(appliance, "copied").high_watermark == 1000, "the state is late")
        before = view_of(appliance, "copied")
        planned = tasks_of(before)
        assert len(before.homes) == 3
        slot = Path(before.directory).parent.name.removeprefix("slot-")
        (pid,) = (row.pid for row in appliance.processes() if row.role == f"ioproc {slot}.0")
        os.kill(pid, signal.SIGKILL)
        produce(appliance, "copied", 1000, 500)
        eventually(lambda: view_of(appliance, "copied").high_watermark == 1500, "the state is late")
        after = view_of(appliance, "copied")
        assert after.leader_epoch > before.leader_epoch
        assert values(tasks_of(after)) == list(range(1500))
        assert values(planned) == list(range(1000))
    finally:
        appliance.stop()


def test_the_records_of_a_deleted_topic_are_read_on_under_a_lease(broker: Appliance) -> None:
    admin = make_topic(broker, "deleted")
    produce(broker, "deleted", 0, 2000)
    eventually(lambda: view_of(broker, "deleted").high_watermark == 2000, "the state is late")
    view = view_of(broker, "deleted")
    lease = take_lease([(view, 0)], owner="tests")
    planned = tasks_of(view)
    admin.delete_topics(["deleted"])["deleted"].result(20)
    home = Path(view.directory).parent
    eventually(lambda: not (home / "deleted-0").exists(), "the topic is not deleted")
    assert values(planned) == list(range(2000))
    for path in home.glob("deleted-0.*-delete/.readers/*.lease"):
        path.unlink()
    eventually(lambda: not list(home.glob("deleted-0.*-delete")), "what was held is not removed")
    assert lease.renew() == ["deleted-0"]
