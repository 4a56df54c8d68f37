"""A copy that a slot follows with moves to another log directory of the slot, whatever happens meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from appliance.log.file_names import MOVED_HERE
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from appliance.protocol.apis.describe_log_dirs import DescribeLogDirsPartition, DescribeLogDirsRequest
from appliance.protocol.errors import ErrorCode
from tests.support.broker import Appliance
from tests.support.power_loss import layer_environment
from tests.support.wire import WireSocket
from tests.system.acked_load import AckedLoad, bootstrap, create, in_sync, leaders, log_bytes
from tests.system.raw import ask, wait_until

TOPIC: Final = "t"
PATIENCE_S: Final = 60


class Slots:
    """Three slots of two log directories each, and a topic of one partition with a copy in each slot."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.root = root
        log_dirs = ",".join(str(root / f"{side}-{{slot}}") for side in "ab")
        self.broker = Appliance(
            root / "data",
            slots=3,
            settings={"log.dirs": log_dirs, "replica.lag.time.max.ms": 5000} | settings,
        )

    def path(self, side: str, slot: int) -> Path:
        return self.root / f"{side}-{slot}"

    def side(self, slot: int) -> str:
        """Where the slot's copy lies, by name, once it does; the first where it is in both."""
        found: list[str] = []

        def lies() -> bool:
            found[:] = [side for side in "ab" if (self.path(side, slot) / f"{TOPIC}-0").is_dir()]
            return bool(found)

        wait_until(lies, f"slot {slot} has a copy", timeout_s=PATIENCE_S)
        return found[0]

    def other_side(self, slot: int) -> str:
        return "b" if self.side(slot) == "a" else "a"

    def is_in(self, side: str, slot: int) -> bool:
        """Whether the copy is there, and nowhere else, and nothing of a move is left."""
        other = self.path("b" if side == "a" else "a", slot)
        there = self.path(side, slot) / f"{TOPIC}-0"
        left = [path for each in "ab" for path in self.path(each, slot).glob(f"{TOPIC}-0.*")]
        gone = not (other / f"{TOPIC}-0").exists() and not left
        return there.is_dir() and gone and not (there / MOVED_HERE).exists()

    def follower(self) -> int:
        """A slot that follows."""
        return (leaders(self.broker, TOPIC)[0] + 1) % 3

    def alter(self, side: str, slot: int) -> int:
        path = str(self.path(side, slot)) if len(side) == 1 else side
        wanted = (AlterReplicaLogDir(path, (AlterReplicaLogDirTopic(TOPIC, (0,)),)),)
        with WireSocket(self.broker.port + slot, timeout_s=30) as connection:
            answer = ask(connection, ApiKey.ALTER_REPLICA_LOG_DIRS, AlterReplicaLogDirsRequest(wanted))
        return int(answer.results[0].partitions[0].error_code)

    def begin(self, side: str, slot: int) -> None:
        """Returns when the move has begun: a copy may not be open yet."""
        wait_until(
            lambda: self.alter(side, slot) == 0, f"slot {slot}'s copy moves to {side}", timeout_s=PATIENCE_S
        )

    def described(self, side: str, slot: int) -> list[DescribeLogDirsPartition]:
        with WireSocket(self.broker.port + slot, timeout_s=30) as connection:
            answer = ask(connection, ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(None))
        (found,) = [each for each in answer.results if each.log_dir == str(self.path(side, slot))]
        return [one for topic in found.topics for one in topic.partitions]

    def moved(self, side: str, slot: int) -> None:
        """Returns when the copy has come there, and is in sync."""
        wait_until(lambda: self.is_in(side, slot), f"slot {slot}'s copy in {side}", timeout_s=PATIENCE_S)
        wait_until(
            lambda: slot in in_sync(self.broker, TOPIC)[0], f"slot {slot} in sync", timeout_s=PATIENCE_S
        )

    def fill(self, count: int) -> None:
        """Produces so many records of 1 KiB, whose numbers come before those of any load."""
        producer = Producer({"bootstrap.servers": bootstrap(self.broker), "linger.ms": 5, "acks": "all"})
        for number in range(-count, 0):
            producer.produce(TOPIC, b"-%01023d" % -number, partition=0)
        assert producer.flush(PATIENCE_S) == 0

    def process(self, role: str) -> int:
        """The process id of a role, which runs or is about to."""
        found: list[int] = []

        def runs() -> bool:
            found[:] = [row.pid for row in self.broker.processes() if row.role == role and row.pid]
            return bool(found)

        wait_until(runs, f"{role} runs", timeout_s=PATIENCE_S)
        return found[0]

    def same(self) -> None:
        """Returns when every slot has the same bytes."""

        def are() -> bool:
            copies = [self.path(self.side(slot), slot) / f"{TOPIC}-0" for slot in range(3)]
            return len({log_bytes(each) for each in copies}) == 1

        wait_until(are, "the copies are the same", timeout_s=PATIENCE_S)


@contextmanager
def three_slots(root: Path, **settings: object) -> Iterator[Slots]:
    slots = Slots(root, **settings)
    slots.broker.start()
    try:
        create(slots.broker, TOPIC, 1, replicas=3, min_insync_replicas="2", segment_bytes=str(1 << 20))
        yield slots
        assert "Traceback" not in slots.broker.output()
    finally:
        slots.broker.stop()


@pytest.mark.parametrize("durability", ["page-cache", pytest.param("fsync", marks=pytest.mark.slow)])
def test_every_copy_moves_there_and_back_while_it_is_written(tmp_path: Path, durability: str) -> None:
    with three_slots(tmp_path, durability=durability) as slots:
        with AckedLoad(slots.broker, TOPIC, 1) as load:
            load.until(500)
            for _ in range(2):
                wanted = {slot: slots.other_side(slot) for slot in range(3)}
                for slot, side in wanted.items():
                    slots.begin(side, slot)
                for slot, side in wanted.items():
                    slots.moved(side, slot)
                load.until(500)
        assert not load.failed
        load.check(slots.broker)
        slots.same()
        slots.broker.stop()
        slots.broker.start()
        load.check(slots.broker)
        slots.same()


def test_what_cannot_be_is_refused_with_kafka_s_codes_and_changes_nothing(tmp_path: Path) -> None:
    with three_slots(tmp_path) as slots:
        slot = slots.follower()
        here = slots.side(slot)
        assert slots.alter("/nowhere", slot) == ErrorCode.LOG_DIR_NOT_FOUND
        wait_until(lambda: slots.alter(here, slot) == 0, "the copy is followed", timeout_s=PATIENCE_S)
        assert slots.is_in(here, slot)


@pytest.mark.slow
def test_a_replica_that_stands_still_is_not_waited_for_longer_than_a_client_waits(tmp_path: Path) -> None:
    with three_slots(tmp_path) as slots:
        slot = slots.follower()
        there = slots.other_side(slot)
        stopped = slots.process(f"replica {slot}")
        os.kill(stopped, signal.SIGSTOP)
        try:
            told = slots.alter(there, slot)
        finally:
            with suppress(ProcessLookupError):
                os.kill(stopped, signal.SIGCONT)
        assert told in (0, ErrorCode.REPLICA_NOT_AVAILABLE)


@contextmanager
def held_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Slots, Path]]:
    """Copies on the way do not grow as long as the second file is there."""
    trigger = root / "wait"
    for name, value in (layer_environment() | {"DISK_LAYER_WAITS": str(trigger)}).items():
        monkeypatch.setenv(name, value)
    with three_slots(root) as slots:
        trigger.write_text("-future/")
        try:
            yield slots, trigger
        finally:
            trigger.unlink(missing_ok=True)


def test_describe_log_dirs_shows_the_copy_and_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_up(tmp_path, monkeypatch) as (slots, trigger):
        slots.fill(4000)
        slot = slots.follower()
        slots.same()
        here, there = slots.side(slot), slots.other_side(slot)
        slots.begin(there, slot)
        (future,) = slots.described(there, slot)
        assert future.is_future_key
        assert future.offset_lag > 0
        (current,) = slots.described(here, slot)
        assert not current.is_future_key
        trigger.unlink()
        slots.moved(there, slot)
        (current,) = slots.described(there, slot)
        assert not current.is_future_key
        assert slots.described(here, slot) == []


def test_a_move_outlives_its_replica_s_death_and_the_leadership_of_its_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_up(tmp_path, monkeypatch) as (slots, trigger):
        slots.fill(4000)
        with AckedLoad(slots.broker, TOPIC, 1) as load:
            load.until(500)
            leader = leaders(slots.broker, TOPIC)[0]
            wanted = {slot: slots.other_side(slot) for slot in range(3)}
            for slot, side in wanted.items():
                slots.begin(side, slot)
            killed = slots.process(f"replica {(leader + 1) % 3}")
            os.kill(killed, signal.SIGKILL)
            os.kill(slots.process(f"ioproc {leader}.0"), signal.SIGKILL)
            load.until(500)
            trigger.unlink()
            for slot, side in wanted.items():
                slots.moved(side, slot)
            load.until(500)
        assert not load.failed
        load.check(slots.broker)
        slots.same()


@pytest.mark.slow
def test_replicas_killed_at_any_moment_of_a_move_lose_nothing_and_end_it(tmp_path: Path) -> None:
    with three_slots(tmp_path) as slots, AckedLoad(slots.broker, TOPIC, 1) as load:
        slots.fill(20_000)
        for number in range(8):
            slot = slots.follower()
            there = slots.other_side(slot)
            slots.alter(there, slot)
            load.until(10 * number + 1)
            os.kill(slots.process(f"replica {slot}"), signal.SIGKILL)

            def ends(slot: int = slot, there: str = there) -> bool:
                # It may have died before it was told.
                slots.alter(there, slot)
                return slots.is_in(there, slot)

            wait_until(ends, f"slot {slot}'s copy in {there}", timeout_s=PATIENCE_S)
            slots.moved(there, slot)
    assert not load.failed


def test_a_target_that_fails_leaves_the_copy_where_it_is_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = tmp_path / "fail"
    for name, value in (layer_environment() | {"DISK_LAYER_FAULTS": str(trigger)}).items():
        monkeypatch.setenv(name, value)
    with three_slots(tmp_path) as slots, AckedLoad(slots.broker, TOPIC, 1) as load:
        load.until(300)
        slot = slots.follower()
        here, there = slots.side(slot), slots.other_side(slot)
        slots.begin(here, slot)  # it is open
        trigger.write_text(f"/{there}-{slot}/{TOPIC}-0.")
        assert slots.alter(there, slot) in (0, ErrorCode.KAFKA_STORAGE_ERROR)
        wait_until(
            lambda: not list(slots.path(there, slot).glob(f"{TOPIC}-0.*-future")),
            "given up",
            timeout_s=PATIENCE_S,
        )
        load.until(300)
        assert slots.side(slot) == here
        trigger.unlink()
    assert not load.failed


@pytest.mark.slow
def test_a_disk_that_dies_under_the_copy_takes_its_slot_out_of_sync_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_up(tmp_path, monkeypatch) as (slots, trigger):
        slots.fill(4000)
        with AckedLoad(slots.broker, TOPIC, 1) as load:
            load.until(500)
            slot = slots.follower()
            here, there = slots.side(slot), slots.other_side(slot)
            slots.begin(there, slot)
            shutil.move(slots.path(here, slot), tmp_path / "gone")
            wait_until(
                lambda: slot not in in_sync(slots.broker, TOPIC)[0], "out of sync", timeout_s=PATIENCE_S
            )
            load.until(500)
            trigger.unlink()
            load.until(500)
        assert not load.failed
        load.check(slots.broker)
