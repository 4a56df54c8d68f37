"""Lanes while something fails: the acceptor, the disk, the room for connections, and clients that die or stop."""

from __future__ import annotations

import os
import random
import resource
import signal
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pytest

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, decode_records, encode_batch
from appliance_client import shared_memory as shm
from tests.lane.lane_client import LaneClient, api_versions, fetch, produce
from tests.support.broker import Appliance
from tests.support.raw_fetch import fetched_batches, is_served
from tests.support.wire import WireSocket, answers_api_versions
from tests.system.raw import create_topic, wait_until
from tests.system.raw import produce as produce_over_tcp

TOPIC: Final = "carried"
KILLS: Final = 50
LEFT: Final = 1000
_NUMBER: Final = struct.Struct(">II")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    with started(tmp_path_factory.mktemp("lane") / "data", {"shared.memory.lanes.max": LEFT}) as appliance:
        yield appliance


@contextmanager
def started(data_dir: Path, settings: Mapping[str, object]) -> Iterator[Appliance]:
    """Run an appliance with one topic."""
    appliance = Appliance(data_dir, settings=settings)
    appliance.start(180)
    try:
        assert create_topic(appliance.port, TOPIC) == 0
        wait_until(partial(is_served, appliance.address, TOPIC, 1), TOPIC)
        yield appliance
        assert "Traceback" not in appliance.output()
    finally:
        appliance.stop()


def error_of(answer: bytes, topic: str = TOPIC) -> int:
    """Return the error code of a Produce answer of version 8 for one partition."""
    return int(struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)[0])


def gets_a_lane(broker: Appliance) -> bool:
    """Return whether a client gets a lane, and an answer over it."""
    try:
        with LaneClient(broker.data_dir) as client:
            return client.ask(api_versions(3))[:4] == struct.pack(">i", 3)
    except (shm.LaneEndedError, OSError):
        return False


def lane_when_there_is_room(broker: Appliance) -> LaneClient:
    """Return a lane as soon as a client gets one."""
    until_s = time.monotonic() + 60
    while True:
        try:
            return LaneClient(broker.data_dir)
        except (shm.LaneEndedError, OSError):
            assert time.monotonic() < until_s, "nobody gets a lane"
            time.sleep(0.05)


def held_by(pids: list[int]) -> tuple[int, int]:
    """Return how many descriptors and how many mapped lanes these processes have."""
    descriptors = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
    return descriptors, sum(
        Path(f"/proc/{pid}/maps").read_text().count("memfd:appliance-lane") for pid in pids
    )


@contextmanager
def child_that(does: Callable[[int], None]) -> Iterator[tuple[int, int]]:
    """Fork a client. Yields its process id, and where it says something. It is killed at the end."""
    there, here = os.pipe()
    child = os.fork()
    if not child:
        os.close(there)
        with suppress(BaseException):
            does(here)
        os._exit(0)
    os.close(here)
    try:
        yield child, there
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(there)


def test_lanes_go_on_without_an_acceptor_and_new_ones_come_after_its_restart(broker: Appliance) -> None:
    with LaneClient(broker.data_dir) as client:
        client.ask(api_versions(1))
        died = broker.kill_role("acceptor")
        for number in range(50):
            assert error_of(client.ask(produce(TOPIC, b"a", correlation_id=number))) == 0
        wait_until(lambda: gets_a_lane(broker), "a new acceptor hands out lanes", timeout_s=60)
        assert broker.pids("acceptor") != [died]
        assert error_of(client.ask(produce(TOPIC, b"a"))) == 0


def test_a_new_acceptor_counts_the_lanes_of_its_last_life(tmp_path: Path) -> None:
    with started(tmp_path / "data", {"shared.memory.lanes.max": 4}) as broker:
        kept = [LaneClient(broker.data_dir) for _ in range(3)]
        broker.kill_role("acceptor")
        with lane_when_there_is_room(broker):
            assert not gets_a_lane(broker)
        for client in kept:
            assert client.ask(api_versions(2))[:4] == struct.pack(">i", 2)
            client.close()
        wait_until(lambda: gets_a_lane(broker), "lanes were given back")


def test_lanes_count_to_the_limit_of_connections(tmp_path: Path) -> None:
    with started(tmp_path / "data", {"shared.memory.lanes.max": 100, "max.connections": 12}) as broker:
        clients: list[LaneClient] = []
        # Connections of the test's own beginning may still be counted.
        while len(clients) < 12:
            clients.append(lane_when_there_is_room(broker))
        assert not gets_a_lane(broker)
        assert not answers_api_versions(broker.port, 1)
        assert "max.connections = 12 are held" in broker.output()
        for client in clients:
            assert client.ask(api_versions(1))[:4] == struct.pack(">i", 1)
            client.close()
        wait_until(lambda: answers_api_versions(broker.port, 1), "TCP has room again", timeout_s=30)
        assert gets_a_lane(broker)


def test_a_full_disk_is_answered_as_over_tcp_and_the_lane_goes_on(tmp_path: Path) -> None:
    with started(tmp_path / "data", {"shared.memory.lanes.max": 4}) as broker:
        with LaneClient(broker.data_dir) as client, WireSocket(broker.port) as connection:
            assert error_of(client.ask(produce(TOPIC, b"before"))) == 0
            log = next(broker.data_dir.glob(f"slot-0/{TOPIC}-0/*.log"))
            workers = [psutil.Process(pid) for pid in broker.pids("ioproc")]
            for worker in workers:
                worker.rlimit(psutil.RLIMIT_FSIZE, (log.stat().st_size, resource.RLIM_INFINITY))
            for _ in range(5):
                over_tcp = produce_over_tcp(connection, TOPIC, encode_batch([Record(b"r" * 300_000)])).error
                assert over_tcp == ErrorCode.KAFKA_STORAGE_ERROR
                assert error_of(client.ask(produce(TOPIC, b"r" * 300_000))) == over_tcp
            assert client.ask(api_versions(4))[:4] == struct.pack(">i", 4)
            for worker in workers:
                worker.rlimit(psutil.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            wait_until(lambda: not error_of(client.ask(produce(TOPIC, b"after"))), "the disk takes records")
        assert b"r" * 1000 not in log.read_bytes()


def pipelining(data_dir: Path, topic: str, life: int, says: int) -> None:
    """Produce numbered records with many in flight, and say each that was acknowledged. Never returns."""
    client = LaneClient(data_dir)
    sent = acknowledged = 0
    while True:
        while sent - acknowledged < 40:
            if not client.lane.put([produce(topic, _NUMBER.pack(life, sent) + b"p" * (sent * 61 % 5000))]):
                break
            client.lane.publish()
            sent += 1
        if not error_of(client.answer(), topic):
            os.write(says, b".")
        acknowledged += 1


def test_a_segment_that_is_cut_while_it_is_sent_ends_its_lane_only(broker: Appliance) -> None:
    topic = "cut"
    assert create_topic(broker.port, topic) == 0
    with LaneClient(broker.data_dir) as other, LaneClient(broker.data_dir) as client:
        for number in range(30):
            assert error_of(other.ask(produce(topic, b"c" * 100_000, correlation_id=number)), topic) == 0
        # More than the area of answers takes: the rest is sent while the client reads.
        client.send(fetch(topic, 0))
        wait_until(lambda: client.lane.words[shm.WANTS_ROOM] == 1, "the area is full")
        os.truncate(max(broker.data_dir.glob(f"slot-0/{topic}-0/*.log")), 1_000)
        with pytest.raises(ConnectionError):
            client.answer()
        assert other.ask(api_versions(3))[:4] == struct.pack(">i", 3)
    wait_until(lambda: "before its promised end" in broker.output(), "the log says why")
    assert "Traceback" not in broker.output()


def test_of_fifty_killed_clients_all_writes_are_wholly_in_or_not_at_all_and_all_is_given_back(
    broker: Appliance,
) -> None:
    topic = "killed-often"
    assert create_topic(broker.port, topic) == 0
    wait_until(partial(is_served, broker.address, topic, 1), topic)
    assert gets_a_lane(broker)
    time.sleep(0.5)
    pids = broker.pids("netproc")
    before = held_by(pids)
    dice = random.Random(50)
    acknowledged: list[int] = []
    for life in range(KILLS):
        with child_that(partial(pipelining, broker.data_dir, topic, life)) as (child, says):
            assert os.read(says, 1)
            time.sleep(dice.random() * 0.03)
            os.kill(child, signal.SIGKILL)
            count = 1
            while got := os.read(says, 65536):
                count += len(got)
            acknowledged.append(count)
    assert broker.pids("netproc") == pids
    wait_until(lambda: held_by(pids)[1] <= before[1], "memory was given back")
    wait_until(lambda: held_by(pids)[0] <= before[0], "descriptors were given back")
    written: dict[int, list[int]] = {life: [] for life in range(KILLS)}
    for value in values_in(broker, topic):
        life, number = _NUMBER.unpack_from(value)
        assert value[_NUMBER.size :] == b"p" * (number * 61 % 5000)
        written[life].append(number)
    for life, count in enumerate(acknowledged):
        # In order, each once, and without a gap: what is missing was not written when its client died.
        assert written[life] == list(range(len(written[life])))
        assert len(written[life]) >= count


def values_in(broker: Appliance, topic: str) -> Iterator[bytes]:
    """Read every record of partition 0 from its log. The test has waited until nobody writes."""
    count = len(fetched_batches(broker.address, topic, 0))
    raw = b"".join(path.read_bytes() for path in sorted(broker.data_dir.glob(f"slot-0/{topic}-0/*.log")))
    at = 0
    for _ in range(count):
        (length,) = struct.unpack_from(">i", raw, at + 8)
        for record in decode_records(raw[at : at + 12 + length]):
            assert record.value is not None
            yield record.value
        at += 12 + length


def fills_its_ring(data_dir: Path, says: int) -> None:
    """Ask until neither ring has room, read nothing, and stand still. Go on when told, and say what was answered."""
    client = LaneClient(data_dir)
    asked = 0
    until_s = time.monotonic() + 1
    while time.monotonic() < until_s:
        if client.lane.put([api_versions(asked)]):
            client.lane.publish()
            asked += 1
        else:
            time.sleep(0.01)
    os.write(says, b"%d\n" % asked)
    os.kill(os.getpid(), signal.SIGSTOP)
    for number in range(asked):
        assert client.answer()[:4] == struct.pack(">i", number)
    os.write(says, b"answered\n")


def test_a_stopped_client_with_full_rings_holds_up_nobody_and_gets_its_answers_afterwards(
    broker: Appliance,
) -> None:
    with child_that(partial(fills_its_ring, broker.data_dir)) as (child, says):
        assert int(os.read(says, 100)) > 256
        os.waitpid(child, os.WUNTRACED)
        pids = broker.pids("netproc")
        work = sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)
        time.sleep(2)
        # Nothing spins for it.
        assert sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids) - work < 0.5
        with LaneClient(broker.data_dir) as other, WireSocket(broker.port) as connection:
            for number in range(100):
                assert error_of(other.ask(produce(TOPIC, b"o", correlation_id=number))) == 0
                assert produce_over_tcp(connection, TOPIC, encode_batch([Record(b"t")])).error == 0
        os.kill(child, signal.SIGCONT)
        assert os.read(says, 100) == b"answered\n"


def test_a_stop_does_not_wait_for_a_stopped_client_with_full_rings(tmp_path: Path) -> None:
    with (
        started(tmp_path / "data", {"shared.memory.lanes.max": 4}) as broker,
        child_that(partial(fills_its_ring, broker.data_dir)) as (child, says),
    ):
        assert os.read(says, 100)
        os.waitpid(child, os.WUNTRACED)
        began_s = time.monotonic()
        broker.stop()
        assert time.monotonic() - began_s < 20


def opens_and_leaves(data_dir: Path, says: int) -> None:
    """Open lanes, ask over each and read nothing. Then stand still."""
    kept = []
    for number in range(LEFT - 10):
        client = LaneClient(data_dir)
        client.send(api_versions(number))
        kept.append(client)
    os.write(says, b"%d\n" % len(kept))
    signal.pause()


def test_a_thousand_lanes_that_were_opened_and_left_disturb_nobody_and_are_given_back(
    broker: Appliance,
) -> None:
    assert gets_a_lane(broker)
    time.sleep(0.5)
    pids = broker.pids("netproc")
    before = held_by(pids)
    with child_that(partial(opens_and_leaves, broker.data_dir)) as (child, says):
        assert os.read(says, 100) == b"%d\n" % (LEFT - 10)
        with LaneClient(broker.data_dir) as other, WireSocket(broker.port) as connection:
            for number in range(50):
                assert error_of(other.ask(produce(TOPIC, b"o", correlation_id=number))) == 0
                assert produce_over_tcp(connection, TOPIC, encode_batch([Record(b"t")])).error == 0
        os.kill(child, signal.SIGKILL)
    wait_until(lambda: held_by(pids)[1] <= before[1], "memory was given back", timeout_s=60)
    wait_until(lambda: held_by(pids)[0] <= before[0], "descriptors were given back", timeout_s=60)
    assert broker.pids("netproc") == pids
    assert gets_a_lane(broker)


def test_lanes_that_were_left_open_end_when_they_are_idle_for_too_long(tmp_path: Path) -> None:
    settings = {"shared.memory.lanes.max": 20, "connections.max.idle.ms": 2_000}
    with started(tmp_path / "data", settings) as broker:
        left = [LaneClient(broker.data_dir) for _ in range(20)]
        for client in left:
            client.ask(api_versions(1))
        assert not gets_a_lane(broker)
        assert all(client.is_ended(30) for client in left)
        wait_until(lambda: gets_a_lane(broker), "lanes were given back")
        for client in left:
            client.close()
