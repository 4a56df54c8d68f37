"""Clients of a shared-memory lane, as docs/shared-memory.md has them: a real broker, kind clients and hostile ones."""

from __future__ import annotations

import os
import random
import signal
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median

import pytest

from appliance.lane import layout
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.heartbeat import HeartbeatRequest
from appliance.protocol.messages import encode_request
from appliance.protocol.records import batch
from appliance_client import Consumer, Producer
from appliance_client import shared_memory as shm
from tests.lane.lane_client import LaneClient, api_versions, fetch, produce
from tests.support.broker import Appliance
from tests.support.raw_fetch import fetched_batches, is_served
from tests.support.wire import WireSocket
from tests.system.raw import create_topic, wait_until

TOPIC = "carried"
LANES_MAX = 1000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(
        tmp_path_factory.mktemp("lane") / "data", settings={"shared.memory.lanes.max": LANES_MAX}
    )
    appliance.start(180)
    try:
        assert create_topic(appliance.port, TOPIC) == 0
        wait_until(partial(is_served, appliance.address, TOPIC, 1), TOPIC)
        yield appliance
    finally:
        appliance.stop()


@pytest.fixture(autouse=True)
def no_process_died(broker: Appliance) -> Iterator[None]:
    def lives() -> tuple[dict[str, int], int]:
        return {row.role: row.pid for row in broker.processes()}, broker.output().count("Traceback")

    before = lives()
    yield
    with LaneClient(broker.data_dir) as client:
        assert client.ask(api_versions(7))[:4] == struct.pack(">i", 7)
    assert lives() == before


def error_of(answer: bytes, topic: str = TOPIC) -> int:
    """Return the error code of a Produce answer of version 8 for one partition."""
    return int(struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)[0])


def values_in(broker: Appliance, topic: str) -> int:
    """Return how many batches a topic has."""
    return len(fetched_batches(broker.address, topic, 0))


def test_client_and_broker_agree_on_the_layout() -> None:
    for name in (
        "MAGIC", "VERSION", "MORE", "RINGS_OFFSET",
        "REQUEST_TAIL", "REQUEST_HEAD", "ANSWER_TAIL", "ANSWER_HEAD", "CLIENT_SLEEPS", "WANTS_ROOM",
    ):  # fmt: skip
        assert getattr(layout, name) == getattr(shm, name), name
    for name in ("HELLO", "WELCOME", "SLOT"):
        assert getattr(layout, name).format == getattr(shm, name).format, name


def test_what_is_written_over_a_lane_is_read_over_tcp_and_the_reverse(broker: Appliance) -> None:
    assert create_topic(broker.port, "both") == 0
    servers = f"shm://{broker.data_dir}"
    for writer, reader in ((servers, broker.address), (broker.address, servers)):
        with Producer(bootstrap_servers=writer) as producer:
            sent = [producer.send("both", value=b"%d" % number) for number in range(50)]
            offsets = [each.result(20).offset for each in sent]
        with Consumer(bootstrap_servers=reader, auto_offset_reset="earliest") as consumer:
            consumer.assign([("both", 0)])
            seen: list[bytes | None] = []
            until_s = time.monotonic() + 20
            while len(seen) < offsets[-1] + 1 and time.monotonic() < until_s:
                seen += [record.value for listed in consumer.poll(1.0).values() for record in listed]
        assert seen[-50:] == [b"%d" % number for number in range(50)]


def test_an_answer_larger_than_the_area_comes_whole(broker: Appliance) -> None:
    assert create_topic(broker.port, "large") == 0
    with LaneClient(broker.data_dir) as client:
        for number in range(9):
            assert error_of(client.ask(produce("large", bytes([number]) * 700_000)), "large") == 0
        answer = client.ask(fetch("large", 0, correlation_id=5))
        assert len(answer) > 9 * 700_000
        for number in range(9):
            assert bytes([number]) * 700_000 in answer


def test_requests_wrap_around_the_ring_and_the_area_in_order(broker: Appliance) -> None:
    with LaneClient(broker.data_dir) as client:
        for number in range(3 * layout.REQUEST_SLOTS):
            answer = client.ask(produce(TOPIC, b"w" * (number * 37 % 30_000), correlation_id=number))
            assert struct.unpack_from(">i", answer)[0] == number
            assert error_of(answer) == 0


def test_a_full_request_ring_is_answered_in_order(broker: Appliance) -> None:
    with LaneClient(broker.data_dir) as client:
        for number in range(layout.REQUEST_SLOTS):
            assert client.lane.put([api_versions(number)])
        assert not client.lane.put([api_versions(0)])
        client.lane.publish()
        for number in range(layout.REQUEST_SLOTS):
            assert client.answer()[:4] == struct.pack(">i", number)


def test_the_memory_can_neither_shrink_nor_grow(broker: Appliance) -> None:
    with LaneClient(broker.data_dir) as client:
        lives = os.stat(f"/proc/self/map_files/{_mapping()}").st_size
        path = f"/proc/self/map_files/{_mapping()}"
        for size in (0, 4096, lives * 2):
            with pytest.raises(PermissionError):
                os.truncate(path, size)
        assert client.ask(api_versions())


def _mapping() -> str:
    """Return the address range of the lane of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:appliance-lane" in line:
            return line.split()[0]
    raise AssertionError("no lane is mapped")


@pytest.mark.parametrize(
    ("offset", "length", "flags", "tail"),
    [
        (0, 0, 0, 1),
        (0, 1, 0, 1),
        (0, 1 << 31, 0, 1),
        (0, (1 << 32) - 1, 0, 1),
        ((1 << 64) - 1, 100, 0, 1),
        (2 << 20, 100, 0, 1),
        ((2 << 20) - 99, 100, 0, 1),
        (0, 100, 1, 1),
        (0, 100, 0, layout.REQUEST_SLOTS + 1),
        (0, 100, 0, 1 << 63),
        (0, 100, 0, -1),
    ],
)
def test_a_slot_or_cursor_that_cannot_be_ends_the_lane(
    broker: Appliance, offset: int, length: int, flags: int, tail: int
) -> None:
    with LaneClient(broker.data_dir) as client:
        client.raw_slot(offset, length, flags, tail=tail)
        assert client.is_ended()


def test_a_client_that_claims_to_have_read_what_never_was_is_ended(broker: Appliance) -> None:
    for lie in (1, 5, 1 << 40, (1 << 64) - 1):
        with LaneClient(broker.data_dir) as client:
            client.lane.words[shm.ANSWER_HEAD] = lie
            client.send(api_versions())
            assert client.is_ended()


def test_random_bytes_anywhere_in_the_memory_end_no_process(broker: Appliance) -> None:
    dice = random.Random(30)
    for _ in range(150):
        with LaneClient(broker.data_dir) as client:
            for _ in range(4):
                count = dice.choice((8, 64, 4096))
                place = dice.randrange(0, 16_384 - count)
                client.memory[place : place + count] = dice.randbytes(count)
                client.lane.words[shm.REQUEST_TAIL] = dice.choice((1, 2, 255, 256, dice.getrandbits(64)))
                client.lane.ring()


def test_random_requests_end_their_own_lane_only(broker: Appliance) -> None:
    dice = random.Random(31)
    with LaneClient(broker.data_dir) as other:
        for number in range(150):
            with LaneClient(broker.data_dir) as client:
                head = struct.pack(">hhi", dice.randrange(0, 80), dice.randrange(0, 12), number)
                client.send(head + dice.randbytes(dice.randrange(0, 300)))
            if not number % 10:
                assert other.ask(api_versions(number))[:4] == struct.pack(">i", number)


def test_bytes_that_change_while_they_are_read_harm_their_own_batch_only(broker: Appliance) -> None:
    assert create_topic(broker.port, "changed") == 0
    request = produce("changed", b"a" * 20_000)
    acknowledged = refused = 0
    for number in range(20):
        with LaneClient(broker.data_dir) as client:
            assert error_of(client.ask(request), "changed") == 0
            acknowledged += 1
            vandal = os.fork()  # a thread would have to wait for this one
            if not vandal:
                dice = random.Random(number)
                with suppress(BaseException):
                    while True:
                        client.memory[client.lane.requests + dice.randrange(len(request))] ^= 0xFF
                os._exit(1)
            try:
                for _ in range(10):
                    with suppress(ConnectionError, struct.error):  # ended, or no answer to Produce
                        is_refused = error_of(client.ask(request), "changed") != 0
                        refused += is_refused
                        acknowledged += not is_refused
            finally:
                os.kill(vandal, signal.SIGKILL)
                os.waitpid(vandal, 0)
    assert refused, "nothing was changed in time"
    assert values_in(broker, "changed") == acknowledged
    log = next(broker.data_dir.glob("slot-0/changed-0/*.log")).read_bytes()
    at = seen = 0
    while (length := batch.OFFSET_AND_LENGTH.unpack_from(log, at)[1]) > 0:
        stop = at + batch.LOG_OVERHEAD + length
        assert batch.crc_holds(memoryview(log)[at:stop])
        at, seen = stop, seen + 1
    assert seen == acknowledged


def test_a_flood_of_rings_holds_up_nobody_else(broker: Appliance) -> None:
    stopped = threading.Event()
    with LaneClient(broker.data_dir) as flooding, LaneClient(broker.data_dir) as other:

        def flood() -> None:
            while not stopped.is_set():
                flooding.lane.ring()

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            for number in range(100):
                assert other.ask(api_versions(number))[:4] == struct.pack(">i", number)
            # What floods is served, too.
            assert flooding.ask(api_versions(5))[:4] == struct.pack(">i", 5)
        finally:
            stopped.set()
            thread.join()


def test_a_bell_that_was_made_to_block_holds_up_nobody(broker: Appliance) -> None:
    with LaneClient(broker.data_dir) as client, LaneClient(broker.data_dir) as other:
        os.set_blocking(client.lane.bell, True)
        os.eventfd_write(client.lane.bell, (1 << 64) - 2)
        client.send_without_ringing(api_versions(1))
        time.sleep(0.2)
        assert other.ask(api_versions(2))[:4] == struct.pack(">i", 2)


def test_a_client_that_takes_no_answer_holds_up_only_itself(broker: Appliance) -> None:
    with LaneClient(broker.data_dir) as deaf, LaneClient(broker.data_dir) as other:
        sent = 0
        until_s = time.monotonic() + 2
        while time.monotonic() < until_s:
            if deaf.lane.put([api_versions(sent)]):
                sent += 1
                deaf.lane.publish()
            else:
                time.sleep(0.01)
        assert layout.ANSWER_SLOTS < sent < 2 * layout.ANSWER_SLOTS + 64
        assert other.ask(api_versions(1))[:4] == struct.pack(">i", 1)
        for number in range(sent):
            assert deaf.answer()[:4] == struct.pack(">i", number)


def test_a_client_killed_at_any_instant_has_written_wholly_or_not_at_all(broker: Appliance) -> None:
    assert create_topic(broker.port, "killed") == 0
    dice = random.Random(33)
    acknowledged = 0
    for _ in range(25):
        there, here = os.pipe()
        child = os.fork()
        if not child:
            with suppress(BaseException):
                client = LaneClient(broker.data_dir)
                while True:
                    if not error_of(client.ask(produce("killed", b"k" * 3000)), "killed"):
                        os.write(here, b".")
            os._exit(0)
        os.close(here)
        assert os.read(there, 1)
        acknowledged += 1
        time.sleep(dice.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while counted := os.read(there, 65536):
            acknowledged += len(counted)
        os.close(there)
    batches = values_in(broker, "killed")
    assert acknowledged <= batches <= acknowledged + 25
    log = next(broker.data_dir.glob("slot-0/killed-0/*.log")).read_bytes()
    assert log.count(b"k" * 3000) == batches


def test_what_a_dead_client_held_is_given_back(broker: Appliance) -> None:
    def descriptors() -> int:
        rows = [row for row in broker.processes() if row.role.startswith("netproc")]
        return sum(len(os.listdir(f"/proc/{row.pid}/fd")) for row in rows)

    with LaneClient(broker.data_dir) as client:
        client.ask(api_versions())
    time.sleep(0.5)
    before = descriptors()
    for _ in range(5):
        clients = [LaneClient(broker.data_dir) for _ in range(20)]
        for client in clients:
            client.send(api_versions())
        for client in clients:
            client.close()
    wait_until(lambda: descriptors() <= before, "descriptors were given back")


def test_a_hello_that_cannot_be_is_turned_away(broker: Appliance) -> None:
    for hello in (
        b"x",
        b"x" * 100,
        shm.HELLO.pack(b"NOTALANE", 1, 0, -1),
        shm.HELLO.pack(shm.MAGIC, 0, 0, -1),
        shm.HELLO.pack(shm.MAGIC, 1, 0, 1),
        shm.HELLO.pack(shm.MAGIC, 1, 0, -2),
    ):
        with pytest.raises((shm.LaneEndedError, ConnectionError)):
            LaneClient(broker.data_dir, hello=hello)


def test_a_thousand_lanes_are_served_and_one_more_is_refused(broker: Appliance) -> None:
    clients: list[LaneClient] = []
    try:
        for _ in range(LANES_MAX):
            clients.append(LaneClient(broker.data_dir))
        with pytest.raises((shm.LaneEndedError, ConnectionError)):
            LaneClient(broker.data_dir)
        for number, client in enumerate(clients):
            client.send(api_versions(number))
        for number, client in enumerate(clients):
            assert client.answer()[:4] == struct.pack(">i", number)
    finally:
        for client in clients:
            client.close()
    wait_until(partial(has_room, broker), "lanes were given back")


def has_room(broker: Appliance) -> bool:
    """Return whether a client gets a lane."""
    try:
        LaneClient(broker.data_dir).close()
    except (shm.LaneEndedError, ConnectionError):
        return False
    return True


def test_a_lone_request_to_the_coordinator_waits_for_no_other_event(broker: Appliance) -> None:
    """The network process must show the coordinator what came over a lane before it sleeps."""
    request = encode_request(ApiKey.HEARTBEAT, 0, HeartbeatRequest("g", 1, "m"), 7, client_id="lane")
    by_lane, by_tcp = [], []
    with LaneClient(broker.data_dir) as client, WireSocket(broker.port) as connection:
        for _ in range(30):
            began = time.monotonic()
            client.ask(request[4:])
            between = time.monotonic()
            connection.send(request)
            connection.read_frame()
            by_lane.append(between - began)
            by_tcp.append(time.monotonic() - between)
    lane_s, tcp_s = median(by_lane), median(by_tcp)
    print(f"{lane_s * 1000:.1f} ms over the lane, {tcp_s * 1000:.1f} ms over TCP")
    assert lane_s < 3 * tcp_s + 0.02
