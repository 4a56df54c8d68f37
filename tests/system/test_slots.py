"""Three slots: each acknowledged record is there once, in order, on every replica, whoever is killed meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.offset_for_leader_epoch import (
    CONSUMER,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from appliance.protocol.errors import ErrorCode
from tests.cli.command import appliance
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.acked_load import AckedLoad, bootstrap, create, in_sync, leaders, settled
from tests.system.raw import ask, generations, suspend, wait_until

SLOTS = 3
PARTITIONS = 6
TOPIC = "followed"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    started = Appliance(tmp_path / "data", slots=SLOTS, settings={"replica.lag.time.max.ms": 3000})
    started.start()
    yield started
    started.stop()


def kill_slot(broker: Appliance, slot: int) -> None:
    """SIGKILL for a slot's worker and replica at once."""
    roles = (f"ioproc {slot}.0", f"replica {slot}")

    def pids() -> list[int]:
        lives = generations(broker)
        return [lives[role][0] for role in roles if role in lives]

    wait_until(lambda: len(pids()) == len(roles), "both live", timeout_s=30)
    for pid in pids():
        os.kill(pid, signal.SIGKILL)


def test_clients_see_three_brokers_and_replicas_become_the_same(broker: Appliance) -> None:
    create(broker, TOPIC, PARTITIONS, replicas=3)
    found = AdminClient({"bootstrap.servers": bootstrap(broker)}).list_topics(timeout=30)
    assert {(each.id, each.port) for each in found.brokers.values()} == {
        (slot, broker.port + slot) for slot in range(SLOTS)
    }
    assert set(leaders(broker, TOPIC).values()) == set(range(SLOTS))
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(3000)
    assert not load.failed
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)


@pytest.mark.parametrize(
    "victim",
    [
        "ioproc 1.0",
        pytest.param("replica 1", marks=pytest.mark.slow),
        pytest.param("slot 1", marks=pytest.mark.slow),
        pytest.param("controller", marks=pytest.mark.slow),
    ],
)
def test_acked_records_survive_kills(broker: Appliance, victim: str) -> None:
    create(broker, TOPIC, PARTITIONS, replicas=3, min_insync_replicas="2")
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        for _ in range(3):
            load.until(500)
            if victim == "slot 1":
                kill_slot(broker, 1)
            else:
                broker.kill_role(victim)
            load.until(500)
    assert not load.failed
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)


@pytest.mark.parametrize(
    "apart_s", [0.5, pytest.param(0.0, marks=pytest.mark.slow), pytest.param(4.0, marks=pytest.mark.slow)]
)
def test_acked_records_survive_two_of_three_slots_killed_one_after_the_other(
    broker: Appliance, apart_s: float
) -> None:
    """The second at once, before the first is back, and when it is back and catches up."""
    create(broker, TOPIC, PARTITIONS, replicas=3, min_insync_replicas="2")
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        for first in range(SLOTS):
            load.until(500)
            kill_slot(broker, first)
            time.sleep(apart_s)
            kill_slot(broker, (first + 1) % SLOTS)
            load.until(500)
    assert not load.failed
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "victim", ["ioproc 1.0", "replica 1", "netproc 0", "purgatory", "controller", "acceptor"]
)
def test_acked_records_survive_a_process_that_stands_still_for_20_s(broker: Appliance, victim: str) -> None:
    """Who holds logs is ended and followed by another before that (`worker.hang.timeout.ms`); the others just go on."""
    create(broker, TOPIC, PARTITIONS, replicas=3, min_insync_replicas="2")
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(500)
        stopped = broker.pids(victim)[0]
        suspend(stopped)
        try:
            time.sleep(20)
        finally:
            with suppress(ProcessLookupError):  # a worker is given up before that
                os.kill(stopped, signal.SIGCONT)
        load.until(500)
    assert not load.failed
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)


@pytest.mark.slow
def test_replicas_are_the_same_after_a_stop_and_a_start(broker: Appliance) -> None:
    create(broker, TOPIC, PARTITIONS, replicas=3)
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(1000)
    broker.stop()
    broker.start()
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)
    with AckedLoad(broker, TOPIC, PARTITIONS) as more:
        more.until(500)
    assert not more.failed
    settled(broker, TOPIC, PARTITIONS)


def test_acked_records_survive_kill_of_everything(broker: Appliance) -> None:
    create(broker, TOPIC, PARTITIONS, replicas=3)
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(1000)
        broker.kill()
        broker.start()
        load.until(500, timeout_s=60)
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)


def test_a_write_that_too_few_would_have_is_refused_until_they_are_back(broker: Appliance) -> None:
    create(broker, TOPIC, 1, replicas=3, min_insync_replicas="3")
    leader = leaders(broker, TOPIC)[0]
    stopped = broker.pids(f"replica {(leader + 1) % SLOTS}")[0]
    told: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        told.append("" if error is None else error.name())

    producer = Producer(
        {
            "bootstrap.servers": bootstrap(broker),
            "acks": "all",
            "retries": 0,
            "request.timeout.ms": 20_000,
            "message.timeout.ms": 30_000,
        }
    )
    suspend(stopped)
    try:
        deadline = time.monotonic() + 30
        while "NOT_ENOUGH_REPLICAS" not in told:
            assert time.monotonic() < deadline, told
            producer.produce(TOPIC, b"too few", on_delivery=delivered)
            producer.flush(25)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert "" not in told
    wait_until(lambda: len(in_sync(broker, TOPIC)[0]) == SLOTS, "all are in sync again", timeout_s=30)

    def is_taken() -> bool:
        producer.produce(TOPIC, b"enough", on_delivery=delivered)
        producer.flush(25)
        return told[-1] == ""

    # Who is asked for metadata may know it before the leader does.
    wait_until(is_taken, "writes are taken again")


@pytest.mark.slow
def test_retention_and_deletion_reach_every_replica(tmp_path: Path) -> None:
    settings = {"log.retention.check.interval.ms": 500}
    broker = Appliance(tmp_path / "data", slots=SLOTS, settings=settings)
    broker.start()
    small = {"segment_bytes": str(1 << 20), "retention_bytes": str(1 << 20), "file_delete_delay_ms": "0"}
    create(broker, TOPIC, 1, replicas=3, **small)
    directories = [broker.data_dir / f"slot-{slot}" / f"{TOPIC}-0" for slot in range(SLOTS)]

    def first_segments() -> list[str]:
        return [min((each.name for each in path.glob("*.log")), default="") for path in directories]

    with AckedLoad(broker, TOPIC, 1, pace_s=0) as load:
        load.until(200_000, timeout_s=60)
        wait_until(lambda: all(each > f"{0:020d}.log" for each in first_segments()), "retired", timeout_s=60)
    settled(broker, TOPIC, 1)
    admin = AdminClient({"bootstrap.servers": bootstrap(broker)})
    for future in admin.delete_topics([TOPIC], operation_timeout=20).values():
        future.result(30)
    wait_until(lambda: not any(path.exists() for path in directories), "deleted", timeout_s=30)
    create(broker, TOPIC, 1, replicas=3)
    with AckedLoad(broker, TOPIC, 1) as again:
        again.until(100)
    again.check(broker)
    settled(broker, TOPIC, 1)
    broker.stop()


def test_where_a_leader_epoch_ended_is_told_by_the_next_leader(broker: Appliance) -> None:
    create(broker, TOPIC, 1, replicas=3)
    with AckedLoad(broker, TOPIC, 1) as load:
        load.until(50)
    before, first = leaders(broker, TOPIC)[0], load.count
    broker.kill_role(f"ioproc {before}.0")
    with AckedLoad(broker, TOPIC, 1) as load:
        load.until(50)
    # Who is asked for metadata may know it later than who produced.
    wait_until(lambda: leaders(broker, TOPIC)[0] != before, "everybody knows the next leader")
    after = leaders(broker, TOPIC)[0]

    def told(slot: int, epoch: int, *, current: int = -1) -> EpochEndOffset:
        wanted = OffsetForLeaderTopic(TOPIC, (OffsetForLeaderPartition(0, epoch, current),))
        with WireSocket(broker.port + slot) as connection:
            request = OffsetForLeaderEpochRequest((wanted,), CONSUMER)
            answer = ask(connection, ApiKey.OFFSET_FOR_LEADER_EPOCH, request)
        found: EpochEndOffset = answer.topics[0].partitions[0]
        return found

    ended = told(after, 0)
    assert (ended.error_code, ended.leader_epoch, ended.end_offset) == (0, 0, first)
    assert told(after, 1).end_offset == first + load.count
    assert told(after, 0, current=0).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert told(before, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_disk_that_was_replaced_while_nothing_ran_takes_no_record_with_it(broker: Appliance) -> None:
    # Found by the checker: its slot led again, with nothing, and the others cut their copies to that.
    create(broker, TOPIC, PARTITIONS, replicas=3)
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(500)
    settled(broker, TOPIC, PARTITIONS)
    broker.stop()
    shutil.rmtree(broker.data_dir / "slot-1")
    broker.start()
    assert 1 not in leaders(broker, TOPIC).values()
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)


def test_a_slow_stop_takes_no_copy_out_of_sync(tmp_path: Path) -> None:
    # Found by the checker: replicas that had stopped counted as late while another one was at it, and the disk of the
    # only one that was left in sync was then replaced.
    settings = {"replica.lag.time.max.ms": 500, "worker.hang.timeout.ms": 0}
    broker = Appliance(tmp_path / "data", slots=SLOTS, settings=settings)
    broker.start()
    create(broker, TOPIC, PARTITIONS, replicas=3, min_insync_replicas="2")
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(500)
    settled(broker, TOPIC, PARTITIONS)
    (slow,) = broker.pids("replica 1")
    suspend(slow)
    with ThreadPoolExecutor(1) as beside:
        stopped = beside.submit(broker.stop)
        wait_until(
            lambda: not broker.pids("replica 0") + broker.pids("replica 2"), "the others", timeout_s=30
        )
        time.sleep(4 * 0.5)  # in which a leader looks for who is late
        os.kill(slow, signal.SIGCONT)
        stopped.result(60)
    shutil.rmtree(broker.data_dir / "slot-1")
    broker.start()
    wait_until(lambda: set(leaders(broker, TOPIC).values()) <= {0, 2}, "others lead all", timeout_s=30)
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)
    broker.stop()


@pytest.mark.slow
def test_empty_disk_of_the_last_one_in_sync_leads_nothing_until_another_may(broker: Appliance) -> None:
    create(broker, TOPIC, 1, replicas=2)
    (leader,) = leaders(broker, TOPIC).values()
    (other,) = in_sync(broker, TOPIC)[0] - {leader}
    with AckedLoad(broker, TOPIC, 1) as load:
        load.until(200)
    command = {"APPLIANCE_BOOTSTRAP": broker.address}
    appliance("slots", "stop", other, more=command).succeeded()
    with AckedLoad(broker, TOPIC, 1) as alone:
        alone.until(100)
    broker.stop()
    copy = broker.data_dir / f"slot-{other}" / f"{TOPIC}-0" / "00000000000000000000.log"
    kept = copy.read_bytes()
    shutil.rmtree(broker.data_dir / f"slot-{leader}")
    broker.start()
    command = {"APPLIANCE_BOOTSTRAP": f"127.0.0.1:{broker.port + leader}"}
    appliance("slots", "start", other, more=command).succeeded()
    assert in_sync(broker, TOPIC)[0] == {leader}
    admin = AdminClient({"bootstrap.servers": bootstrap(broker)})
    asked, latest = TopicPartition(TOPIC, 0), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    with pytest.raises(KafkaException):
        admin.list_offsets({asked: latest}, request_timeout=3)[asked].result(10)
    appliance("partitions", "elect", TOPIC, "--unclean", more=command).succeeded()
    wait_until(lambda: leaders(broker, TOPIC) == {0: other}, "everybody knows who was elected")
    assert copy.read_bytes()[: len(kept)] == kept
    wait_until(
        lambda: in_sync(broker, TOPIC)[0] == {leader, other}, "the empty one has caught up", timeout_s=30
    )


def test_a_leader_that_hangs_is_ended_and_another_one_leads(tmp_path: Path) -> None:
    broker = Appliance(tmp_path / "data", slots=SLOTS, settings={"worker.hang.timeout.ms": 3000})
    broker.start()
    create(broker, TOPIC, PARTITIONS, replicas=3, min_insync_replicas="2")
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(300)
        (hung,) = broker.pids("ioproc 1.0")
        suspend(hung)
        # All partitions take turns, so those that it leads are among them.
        load.until(300 + 3 * PARTITIONS, timeout_s=60)
        wait_until(lambda: broker.pids("ioproc 1.0") not in ([hung], []), "its next life", timeout_s=30)
        load.until(300)
    assert not load.failed
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)
    broker.stop()
    assert "ioproc 1.0 did not answer for 3000 ms and was killed" in broker.output()


def test_a_replica_that_hangs_holds_nobody_up_and_comes_back_in_sync(tmp_path: Path) -> None:
    settings = {"worker.hang.timeout.ms": 3000, "replica.lag.time.max.ms": 1500}
    broker = Appliance(tmp_path / "data", slots=SLOTS, settings=settings)
    broker.start()
    create(broker, TOPIC, PARTITIONS, replicas=3, min_insync_replicas="2")
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(300)
        (hung,) = broker.pids("replica 1")
        suspend(hung)
        load.until(300 + 3 * PARTITIONS)
        wait_until(lambda: broker.pids("replica 1") not in ([hung], []), "its next life", timeout_s=60)
        load.until(300)
    assert not load.failed
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)
    broker.stop()
    assert "replica 1 did not answer for 3000 ms and was killed" in broker.output()
