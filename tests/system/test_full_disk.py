"""No room on the disk: appends say so, reads go on, nobody dies, and with room again everything goes on.

On a small file system of its own where the test may mount one, and everywhere under a limit that the kernel keeps on
the size of files: both are refusals of the system, not of a stand-in.
"""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import psutil
import pytest

from appliance.channels import runtime_directory
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.delete_topics import DeleteTopicsRequest
from appliance.protocol.apis.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, decode_records, encode_batch
from tests.support.broker import Appliance
from tests.support.raw_fetch import fetch
from tests.support.wire import WireSocket, answers_api_versions
from tests.system.offsets import commit, committed, find
from tests.system.raw import (
    MIB,
    Produced,
    ask,
    create_topic,
    generations,
    new_producer_id,
    produce,
    wait_until,
)

TOPIC, OTHER = "full", "other"
DISK_BYTES: Final = 48 * MIB
BATCH_BYTES: Final = 300_000
APPENDS_MAX: Final = 400


class Disk(Protocol):
    """A disk that can be filled and emptied beside the appliance."""

    path: Path

    def fill(self, broker: Appliance) -> None:
        """From now on nothing more gets room."""

    def free(self, broker: Appliance) -> None:
        """Gives the room back."""


class SmallFileSystem:
    """A tmpfs of its own, filled up by a file beside the data."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, broker: Appliance) -> None:
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (MIB, 4096):
                with suppress(OSError):
                    while True:
                        ballast.write(bytes(size))

    def free(self, broker: Appliance) -> None:
        self._ballast.unlink(missing_ok=True)


class FileSizeLimit:
    """The kernel lets no file of those who write grow beyond what the largest log segment has now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._limited: set[int] = set()

    def fill(self, broker: Appliance) -> None:
        largest = max(path.stat().st_size for path in self.path.rglob("*.log"))
        for role, limit_bytes in (("ioproc", largest), ("controller", 0)):
            for pid in broker.pids(role):
                self._limit(pid, limit_bytes)
                self._limited.add(pid)

    def free(self, broker: Appliance) -> None:
        for pid in self._limited:
            with suppress(psutil.NoSuchProcess):
                self._limit(pid, resource.RLIM_INFINITY)
        self._limited = set()

    def _limit(self, pid: int, limit_bytes: int) -> None:
        psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))


def _mount(path: Path) -> bool:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


def _may_mount() -> bool:
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as path:
        if not _mount(Path(path)):
            return False
        subprocess.run(["umount", path], check=True)
    return True


KINDS: Final = ["file size limit", *(["file system"] if _may_mount() else [])]


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "file size limit":
        yield FileSizeLimit(tmp_path)
        return
    path = tmp_path / "disk"
    path.mkdir()
    assert _mount(path)
    try:
        yield SmallFileSystem(path)
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow)], ids="{} workers".format)
def broker(request: pytest.FixtureRequest, disk: Disk) -> Iterator[Appliance]:
    settings = {"log.segment.bytes": 8 * MIB, "io.workers": request.param}
    appliance = Appliance(disk.path / "data", settings=settings)
    appliance.start()
    try:
        for topic in (TOPIC, OTHER):
            assert create_topic(appliance.port, topic) == 0
        yield appliance
        assert "Traceback" not in appliance.output()
        assert "SIGBUS" not in appliance.output()
    finally:
        disk.free(appliance)
        appliance.stop()


def batch(number: int, **producer: int) -> bytes:
    return encode_batch([Record(b"%d " % number + os.urandom(BATCH_BYTES))], **producer)  # type: ignore[arg-type]


def append_until_refused(connection: WireSocket, first: int = 0) -> tuple[int, Produced]:
    """(how many were taken, the refusal)."""
    for number in range(first, first + APPENDS_MAX):
        answer = produce(connection, TOPIC, batch(number))
        if answer.error:
            return number - first, answer
    raise AssertionError("the disk never ran full")


def is_served(connection: WireSocket, topic: str) -> bool:
    """Whether a fetch is answered with records."""
    with suppress(AssertionError):
        return bool(fetch(connection, topic, 0, offset=0))
    return False


def read_numbers(connection: WireSocket, topic: str = TOPIC) -> list[int]:
    """Of every record in the log, which one it is."""
    numbers: list[int] = []
    while data := fetch(connection, topic, 0, offset=len(numbers), max_bytes=BATCH_BYTES + 1000):
        record = next(iter(decode_records(data)))
        assert record.offset == len(numbers)
        assert record.value is not None
        numbers.append(int(record.value.split(b" ", 1)[0]))
    return numbers


def test_full_disk_refuses_appends_while_reads_go_on_and_room_lets_them_in_again(
    disk: Disk, broker: Appliance
) -> None:
    before = generations(broker)
    with WireSocket(broker.port, timeout_s=20) as connection:
        assert produce(connection, TOPIC, batch(0)).error == 0
        disk.fill(broker)
        taken, refused = append_until_refused(connection, 1)
        assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
        for _ in range(20):
            assert produce(connection, TOPIC, batch(99)).error == ErrorCode.KAFKA_STORAGE_ERROR
        assert read_numbers(connection) == list(range(taken + 1))
        disk.free(broker)
        assert produce(connection, TOPIC, batch(taken + 1)).base_offset == taken + 1
        assert read_numbers(connection) == list(range(taken + 2))
    assert generations(broker) == before
    broker.stop()
    broker.start()
    with WireSocket(broker.port, timeout_s=20) as connection:
        assert read_numbers(connection) == list(range(taken + 2))
        assert produce(connection, TOPIC, batch(0)).base_offset == taken + 2


def test_refused_batch_of_an_idempotent_producer_is_taken_when_it_is_sent_again(
    disk: Disk, broker: Appliance
) -> None:
    identity, epoch = new_producer_id(broker.port)

    def send(connection: WireSocket, sequence: int) -> Produced:
        raw = batch(sequence, producer_id=identity, producer_epoch=epoch, base_sequence=sequence)
        return produce(connection, TOPIC, raw)

    with WireSocket(broker.port, timeout_s=20) as connection:
        assert send(connection, 0).error == 0
        disk.fill(broker)
        sequence = 1
        while (answer := send(connection, sequence)).error == 0:
            sequence += 1
        assert answer.error == ErrorCode.KAFKA_STORAGE_ERROR
        assert send(connection, sequence).error == ErrorCode.KAFKA_STORAGE_ERROR
        disk.free(broker)
        taken = send(connection, sequence)
        assert (taken.error, taken.base_offset) == (0, sequence)
        again = send(connection, sequence)
        assert (again.error, again.base_offset) == (0, sequence)
        assert read_numbers(connection) == list(range(sequence + 1))


def test_topic_cannot_be_created_on_a_full_disk_and_can_afterwards(disk: Disk, broker: Appliance) -> None:
    before = generations(broker)
    with WireSocket(broker.port, timeout_s=20) as connection:
        assert produce(connection, TOPIC, batch(0)).error == 0
        disk.fill(broker)
        append_until_refused(connection, 1)
        for number in range(3):
            error = create_topic(broker.port, f"late-{number}", timeout_ms=3000)
            assert error != 0
            assert ErrorCode(error)
        assert answers_api_versions(broker.port, 30)
        assert len(read_numbers(connection)) > 0
        disk.free(broker)
        wait_until(
            lambda: create_topic(broker.port, "afterwards") in (0, ErrorCode.TOPIC_ALREADY_EXISTS),
            "a new topic",
        )
        wait_until(
            lambda: produce(connection, "afterwards", encode_batch([Record(b"0 x")])).error == 0,
            "an append to it",
        )
        for number in range(3):
            name = f"late-{number}"
            assert create_topic(broker.port, name) in (0, ErrorCode.TOPIC_ALREADY_EXISTS)
            wait_until(
                lambda name=name: produce(connection, name, encode_batch([Record(b"0 x")])).error == 0,  # type: ignore[misc]
                f"an append to {name}",
            )
    assert generations(broker) == before


def test_kill_of_the_worker_on_a_full_disk_loses_nothing(disk: Disk, broker: Appliance) -> None:
    with WireSocket(broker.port, timeout_s=20) as connection:
        assert produce(connection, TOPIC, batch(0)).error == 0
        disk.fill(broker)
        taken, _ = append_until_refused(connection, 1)
    before = generations(broker)
    broker.kill_role("ioproc")
    wait_until(
        lambda: generations(broker).get("ioproc 0.0", before["ioproc 0.0"]) != before["ioproc 0.0"],
        "a new one",
    )
    disk.free(broker)
    with WireSocket(broker.port, timeout_s=20) as connection:
        wait_until(lambda: produce(connection, OTHER, batch(0)).error == 0, "appends")
        # Each log that could not be opened is tried again by itself.
        wait_until(lambda: is_served(connection, TOPIC), "the topic is served")
        assert read_numbers(connection) == list(range(taken + 1))


def test_stop_on_a_full_disk_loses_nothing(disk: Disk, broker: Appliance) -> None:
    with WireSocket(broker.port, timeout_s=20) as connection:
        assert produce(connection, TOPIC, batch(0)).error == 0
        disk.fill(broker)
        taken, _ = append_until_refused(connection, 1)
    broker.stop()
    disk.free(broker)
    broker.start()
    with WireSocket(broker.port, timeout_s=20) as connection:
        assert read_numbers(connection) == list(range(taken + 1))
        assert produce(connection, TOPIC, batch(0)).base_offset == taken + 1


def kill_and_remove_its_shared_memory(broker: Appliance) -> None:
    """As the start of another instance of the same user does with what a killed one left."""
    broker.kill()
    runtime_directory.remove_dead()


if "file system" in KINDS:

    @pytest.mark.parametrize("slots", [1, pytest.param(3, marks=pytest.mark.slow)])
    @pytest.mark.parametrize("end", [Appliance.stop, Appliance.kill, kill_and_remove_its_shared_memory])
    @pytest.mark.parametrize("disk", ["file system"], indirect=True)
    def test_appliance_starts_on_a_full_disk_and_deletes_topics_to_make_room(
        disk: Disk, end: Callable[[Appliance], None], slots: int
    ) -> None:
        settings = {"log.segment.bytes": 2 * MIB, "log.segment.delete.delay.ms": 100}
        broker = Appliance(disk.path / "data", slots=slots, settings=settings)
        broker.start()
        for topic in (TOPIC, OTHER):
            assert create_topic(broker.port, topic) == 0
        # Whichever slot leads.
        for slot in range(slots):
            with WireSocket(broker.port + slot, timeout_s=20) as connection:
                for number in range(10):
                    produce(connection, TOPIC, batch(number))
        end(broker)
        disk.fill(broker)
        room = os.statvfs(disk.path)
        assert room.f_bavail == 0
        broker.start()
        request = DeleteTopicsRequest((TopicSelector(name=TOPIC),), timeout_ms=10_000)
        with WireSocket(broker.port, timeout_s=20) as connection:
            (deleted,) = ask(connection, ApiKey.DELETE_TOPICS, request).responses
            assert deleted.error_code == 0
        wait_until(lambda: os.statvfs(disk.path).f_bavail * room.f_frsize > 2 * MIB, "room", timeout_s=30)
        assert create_topic(broker.port, TOPIC) == 0
        broker.stop()


def test_full_disk_refuses_commits_and_loses_none_and_room_lets_them_in_again(
    disk: Disk, broker: Appliance
) -> None:
    before = generations(broker)

    def request(number: int) -> OffsetCommitRequest:
        # One partition named often, with as much metadata as is allowed: a few of these fill what was preallocated.
        each = tuple(OffsetCommitPartition(0, number, "m" * 4000) for _ in range(60))
        return OffsetCommitRequest("g", topics=(OffsetCommitTopic(TOPIC, partitions=each),))

    with WireSocket(broker.port, timeout_s=20) as connection:
        find(connection, "g")
        assert not any(commit(connection, request(0)))
        disk.fill(broker)
        for number in range(1, APPENDS_MAX):
            response = ask(connection, ApiKey.OFFSET_COMMIT, request(number), version=9)
            error = response.topics[0].partitions[0].error_code
            if error:
                break
        assert error == ErrorCode.NOT_COORDINATOR
        assert committed(connection, "g", TOPIC) == number - 1
        disk.free(broker)
        assert not any(commit(connection, request(number)))
        assert committed(connection, "g", TOPIC) == number
        broker.kill_role("coordinator")
        assert committed(connection, "g", TOPIC) == number
    after = generations(broker)
    assert {role for role in before | after if after.get(role) != before.get(role)} == {"coordinator"}
