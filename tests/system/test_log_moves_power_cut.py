"""`durability = "fsync"` while a partition moves to and fro: acknowledged records outlive a power cut at any moment."""

from __future__ import annotations

import itertools
import random
import threading
import time
from pathlib import Path

import pytest

from tests.support.broker import Appliance
from tests.support.power_loss import after_power_loss, layer_environment
from tests.support.store import copy_metadata
from tests.support.wire import ConnectionEnded
from tests.system.raw import create_topic, wait_until
from tests.system.test_fsync import PARTITIONS, Writer, all_records
from tests.system.test_log_moves import Moving

CUTS = 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(CUTS))
def test_every_acknowledged_record_is_there_after_a_power_cut_during_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    for name, value in (layer_environment() | {"DISK_LAYER_SHADOW": str(shadow)}).items():
        monkeypatch.setenv(name, value)
    data = tmp_path / "data"
    settings = {"durability": "fsync", "log.segment.bytes": 1 << 20, "log.dirs": "a,b"}
    moving = Moving(tmp_path, **settings)
    moving.paths = {"a": data / "a", "b": data / "b"}
    broker = moving.broker
    broker.start()
    assert create_topic(broker.port, "t") == 0
    moves = [0]

    def to_and_fro() -> None:
        for where in itertools.cycle("ba"):
            try:
                if moving.alter(where):
                    return
                wait_until(lambda where=where: moving.is_in(where), "moved")  # type: ignore[misc]
            except (AssertionError, OSError, ConnectionEnded):
                return
            moves[0] += 1

    mover = threading.Thread(target=to_and_fro, daemon=True)
    writers = [Writer(broker.port, PARTITIONS * number) for number in range(3)]
    mover.start()
    wait_until(lambda: moves[0] >= 3, "moves under load", timeout_s=60)
    time.sleep(random.Random(seed).uniform(0, 0.2))  # any moment of a move
    broker.kill()
    for writer in writers:
        writer.join()
    mover.join(30)

    left = tmp_path / "left"
    left.mkdir()
    same_tree = copy_metadata(data, left)
    for name in ("a", "b"):
        after_power_loss(data / name, shadow, left / name)
    monkeypatch.undo()
    after = Appliance(left, settings={**settings, **same_tree})
    after.start()
    try:
        found = all_records(after, 0)
        assert list(found) == sorted(found)
        for writer in writers:
            assert {offset: found.get(offset) for offset in writer.acked} == writer.acked
        assert sum(len(writer.acked) for writer in writers) > 0
    finally:
        after.stop()
