"""A slot's log directory is removed while three slots are written to: the others have everything, and go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker import Appliance
from tests.system.acked_load import AckedLoad, create, in_sync, leaders
from tests.system.raw import wait_until

TOPIC = "kept"
PARTITIONS = 6


@pytest.mark.slow
def test_nothing_acked_goes_with_a_slot_s_log_directory(tmp_path: Path) -> None:
    settings = {"replica.lag.time.max.ms": 2000}
    broker = Appliance(tmp_path / "data", slots=3, settings=settings)
    broker.start()
    create(broker, TOPIC, PARTITIONS, replicas=3, min_insync_replicas="2")
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(500)
        (broker.data_dir / "slot-1").rename(broker.data_dir / "gone")
        wait_until(lambda: 1 not in leaders(broker, TOPIC).values(), "others lead", timeout_s=30)
        wait_until(
            lambda: all(1 not in isr for isr in in_sync(broker, TOPIC).values()), "out of sync", timeout_s=30
        )
        load.until(500)
    assert not load.failed
    load.check(broker)
    broker.stop()
