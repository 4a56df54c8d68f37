"""What becomes of the memory of a lane that has ended while its client keeps it."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from appliance.ipc.agent import Timers
from appliance.lane.ended_memories import GRACE_MS, EndedMemories, take_pages
from appliance_client import shared_memory as shm
from tests.lane.lane_client import LaneClient, api_versions, fetch, produce
from tests.support.broker import Appliance
from tests.support.raw_fetch import is_served
from tests.system.raw import create_topic, wait_until

TOPIC: Final = "carried"
LANES_MAX: Final = 3
KEPT_BYTES: Final = shm.RINGS_OFFSET + 2 * 256 * shm.SLOT.size
"""The words and the rings."""


def made(size_bytes: int) -> tuple[mmap.mmap, int]:
    """Return a full memory, and its descriptor."""
    descriptor = os.memfd_create("lane")
    os.ftruncate(descriptor, size_bytes)
    memory = mmap.mmap(descriptor, size_bytes)
    memory[:] = b"m" * size_bytes
    return memory, descriptor


def used_bytes(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * 512


def test_pages_are_free_for_everybody() -> None:
    memory, descriptor = made(1 << 20)
    other = mmap.mmap(descriptor, 1 << 20)
    take_pages(memory, 8192)
    assert used_bytes(descriptor) == 8192
    assert other[8190:8194] == b"mm\0\0"
    memory.close()
    os.close(descriptor)


def test_no_more_than_the_bound_wait_and_a_client_that_is_there_has_its_grace() -> None:
    now_ns = [0]
    timers = Timers(lambda: now_ns[0])
    ended = EndedMemories(timers, start=4096, most=2)
    kept, gone = made(1 << 20), made(1 << 20)
    ended.add(kept[0], at_once=False)
    ended.add(gone[0], at_once=True)
    wait_until(lambda: used_bytes(gone[1]) == 4096, "the memory of a client that is gone is free")
    wait_until(lambda: not ended.is_full, "it waits no longer")
    ended.add(made(4096)[0], at_once=False)
    assert ended.is_full
    assert used_bytes(kept[1]) == 1 << 20
    timers.run_due(GRACE_MS * 1_000_000)
    wait_until(lambda: used_bytes(kept[1]) == 4096, "its grace is over")
    wait_until(lambda: not ended.is_full, "nothing waits")


def test_a_view_that_is_left_keeps_no_page() -> None:
    memory, descriptor = made(1 << 20)
    view = memoryview(memory)[100:200]
    ended = EndedMemories(Timers(), start=4096, most=1)
    ended.add(memory, at_once=True)
    wait_until(lambda: not ended.is_full, "it is done")
    assert used_bytes(descriptor) == 4096
    view.release()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(
        tmp_path_factory.mktemp("lane") / "data", settings={"shared.memory.lanes.max": LANES_MAX}
    )
    appliance.start(180)
    try:
        assert create_topic(appliance.port, TOPIC) == 0
        wait_until(partial(is_served, appliance.address, TOPIC, 1), TOPIC)
        with LaneClient(appliance.data_dir) as client:
            for _ in range(20):
                client.ask(produce(TOPIC, b"m" * 100_000))
        yield appliance
        assert "Traceback" not in appliance.output()
    finally:
        appliance.stop()


def lane(broker: Appliance) -> LaneClient:
    """Return a lane as soon as a client gets one."""
    found: list[LaneClient] = []

    def asked() -> bool:
        try:
            found.append(LaneClient(broker.data_dir))
        except (shm.LaneEndedError, OSError):
            return False
        return True

    wait_until(asked, "a client gets a lane")
    return found[0]


def lanes_bytes() -> list[int]:
    """How much each lane uses whose memory this process maps."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = [f"/proc/self/map_files/{line.split()[0]}" for line in maps if "memfd:appliance-lane" in line]
    return [os.stat(path).st_blocks * 512 for path in paths]


def test_clients_that_keep_one_memory_after_the_other_keep_nothing(broker: Appliance) -> None:
    kept = []
    for _ in range(5 * LANES_MAX):
        client = lane(broker)
        client.ask(fetch(TOPIC, 0))
        client.sock.close()
        kept.append(client)
    wait_until(lambda: max(lanes_bytes()) <= KEPT_BYTES, "the memories are free")
    assert len(lanes_bytes()) == len(kept)
    for client in kept:
        client.close()


def test_a_client_that_has_read_all_answers_keeps_nothing(broker: Appliance) -> None:
    with lane(broker) as client:
        client.ask(fetch(TOPIC, 0))
        client.raw_slot(0, 0)
        assert client.is_ended()
        wait_until(lambda: lanes_bytes()[0] <= KEPT_BYTES, "the memory is free", timeout_s=GRACE_MS / 2_000)


def test_a_client_whose_lane_was_ended_reads_its_answers_and_keeps_nothing(broker: Appliance) -> None:
    with lane(broker) as client:
        client.send(fetch(TOPIC, 0))
        wait_until(lambda: not client.lane.is_empty(), "the answer is there")
        client.raw_slot(0, 0)
        assert client.is_ended()
        answer = client.lane.take()
        assert answer is not None
        assert answer.count(b"m") > 1_000_000
        assert lanes_bytes()[0] > 1_000_000
        wait_until(lambda: lanes_bytes()[0] <= KEPT_BYTES, "the memory is free", timeout_s=30)
    with lane(broker) as client:
        assert client.ask(api_versions(3))[:4] == struct.pack(">i", 3)
