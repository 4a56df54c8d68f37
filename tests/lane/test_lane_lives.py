"""Who may have a lane, and what becomes of lanes when a process stops, dies or hangs."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from appliance_client import Producer
from appliance_client import shared_memory as shm
from tests.lane.lane_client import LaneClient, api_versions, fetch, produce
from tests.support.another_user import NOBODY
from tests.support.broker import Appliance
from tests.support.raw_fetch import fetched_batches, is_served
from tests.support.zeromq_wire import ZeroMqSession
from tests.system.raw import create_topic, wait_until

TOPIC = "carried"


@pytest.fixture
def home() -> Iterator[Path]:
    """Everybody may pass through, as pytest's own directories do not allow."""
    made = Path(tempfile.mkdtemp(prefix="lane"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def broker(home: Path) -> Iterator[Appliance]:
    appliance = Appliance(
        home / "data",
        settings={"shared.memory.lanes.max": 10, "listeners.zeromq": [f"ipc://{home}/z"]},
    )
    appliance.start(180)
    try:
        assert create_topic(appliance.port, TOPIC) == 0
        wait_until(partial(is_served, appliance.address, TOPIC, 1), TOPIC)
        yield appliance
    finally:
        appliance.stop()


def outcome_as(data_dir: Path, uid: int, gid: int) -> str:
    """Return what another user gets who asks for a lane: an answer's length, or the error's name."""
    assert os.geteuid() == 0, "this test plays several users and must be run as root"
    there, here = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            try:
                with LaneClient(data_dir) as client:
                    os.write(here, str(len(client.ask(api_versions()))).encode())
            except Exception as error:
                os.write(here, type(error).__name__.encode())
        os._exit(0)
    os.close(here)
    said = os.read(there, 100).decode()
    os.close(there)
    os.waitpid(child, 0)
    return said


def test_another_user_gets_no_lane_by_the_mode_nor_where_the_mode_was_widened(broker: Appliance) -> None:
    door = broker.data_dir / "shared-memory"
    assert stat.S_IMODE(door.stat().st_mode) == 0o700
    assert stat.S_IMODE((door / "hello").stat().st_mode) == 0o600
    broker.data_dir.chmod(0o711)
    assert outcome_as(broker.data_dir, NOBODY, NOBODY) == "PermissionError"
    door.chmod(0o777)
    (door / "hello").chmod(0o777)
    assert outcome_as(broker.data_dir, NOBODY, NOBODY) in {
        "LaneEndedError",
        "ConnectionResetError",
        "BrokenPipeError",
    }
    assert "runs as user" in broker.output()


def test_members_of_the_group_get_a_lane_and_nobody_else(home: Path) -> None:
    appliance = Appliance(
        home / "data", settings={"shared.memory.lanes.max": 10, "shared.memory.group": "daemon"}
    )
    appliance.start(180)
    try:
        member = (home / "data" / "shared-memory").stat().st_gid
        (home / "data").chmod(0o711)
        assert int(outcome_as(home / "data", NOBODY, member)) > 100
        assert outcome_as(home / "data", NOBODY, NOBODY) == "PermissionError"
    finally:
        appliance.stop()


def test_without_the_option_there_is_no_door(home: Path) -> None:
    appliance = Appliance(home / "data")
    appliance.start(180)
    try:
        assert not (home / "data" / "shared-memory").exists()
        with Producer(bootstrap_servers=f"shm://{home}/data") as producer:
            create_topic(appliance.port, TOPIC)
            assert producer.send(TOPIC, value=b"over TCP").result(30).offset == 0
    finally:
        appliance.stop()


def test_a_client_connects_over_tcp_after_lanes_were_turned_off(home: Path) -> None:
    before = Appliance(home / "data", settings={"shared.memory.lanes.max": 1})
    before.start(180)
    try:
        create_topic(before.port, TOPIC)
    finally:
        before.stop()
    assert (home / "data" / "shared-memory" / "hello").exists()
    after = Appliance(home / "data")
    after.start(180)
    try:
        with Producer(bootstrap_servers=f"shm://{home}/data", delivery_timeout_ms=20_000) as producer:
            assert producer.send(TOPIC, value=b"over TCP").result(30).offset == 0
    finally:
        after.stop()


def test_a_producer_goes_on_when_its_network_process_dies(broker: Appliance) -> None:
    with Producer(bootstrap_servers=f"shm://{broker.data_dir}", acks="all") as producer:
        for round_ in range(3):
            sent = [producer.send(TOPIC, value=b"%d" % round_) for _ in range(20)]
            for row in broker.processes():
                if row.role.startswith("netproc"):
                    os.kill(row.pid, signal.SIGKILL)
            for each in sent:
                each.result(60)
    wait_until(broker.is_whole, "network processes that were killed last run again")
    assert sum(batch.records for batch in fetched_batches(broker.address, TOPIC, 0)) >= 60


def test_a_producer_goes_on_when_the_appliance_was_restarted(broker: Appliance) -> None:
    with Producer(bootstrap_servers=f"shm://{broker.data_dir}") as producer:
        producer.send(TOPIC, value=b"before").result(30)
        broker.stop()
        broker.start(180)
        producer.send(TOPIC, value=b"after").result(60)


def test_a_lane_that_is_open_does_not_hold_up_a_stop(broker: Appliance) -> None:
    with LaneClient(broker.data_dir) as idle, LaneClient(broker.data_dir) as waiting:
        idle.ask(api_versions())
        waiting.send(fetch(TOPIC, 0))
        began_s = time.monotonic()
        broker.stop()
        assert time.monotonic() - began_s < 5
        assert idle.is_ended()


def test_a_client_that_is_stopped_holds_up_only_itself(broker: Appliance) -> None:
    there, here = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            client = LaneClient(broker.data_dir)
            while True:
                client.ask(produce(TOPIC, b"s" * 1000))
                os.write(here, b".")
        os._exit(0)
    try:
        os.read(there, 1)
        with LaneClient(broker.data_dir) as other:
            os.kill(child, signal.SIGSTOP)
            for number in range(200):
                assert other.ask(produce(TOPIC, b"o"))[4:6]
                assert other.ask(api_versions(number))[:4] == struct.pack(">i", number)
            os.kill(child, signal.SIGCONT)
            os.read(there, 65536)
            assert os.read(there, 1)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_lanes_and_zeromq_sessions_share_a_network_process(broker: Appliance, home: Path) -> None:
    import zmq

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        for _ in range(3):
            with LaneClient(broker.data_dir) as client, ZeroMqSession(context, f"ipc://{home}/z") as session:
                for number in range(20):
                    assert client.ask(api_versions(number))[:4] == struct.pack(">i", number)
                    assert session.ask(api_versions(number))[:4] == struct.pack(">i", number)
    finally:
        context.destroy(linger=0)


def test_a_client_without_a_hello_gives_its_place_back(broker: Appliance) -> None:
    silent = [shm.say_hello(broker.data_dir) for _ in range(10)]
    with pytest.raises((shm.LaneEndedError, ConnectionError)):
        LaneClient(broker.data_dir)

    def has_room() -> bool:
        try:
            LaneClient(broker.data_dir).close()
        except (shm.LaneEndedError, ConnectionError):
            return False
        return True

    wait_until(has_room, "the silent ones were sent away", timeout_s=30)
    for sock in silent:
        sock.close()
