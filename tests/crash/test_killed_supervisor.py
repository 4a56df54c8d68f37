"""`kill -9` of the supervisor alone: the others stop in good order by themselves, and a start goes on from there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from appliance.channels import runtime_directory
from appliance.log.file_names import CLEAN_SHUTDOWN
from appliance.protocol.records.record import Record, encode_batch
from tests.cli.command import appliance
from tests.support.broker import STOP_TIMEOUT_S, Appliance
from tests.support.wire import WireSocket
from tests.system.acked_load import leaders
from tests.system.raw import create_topic, produce

TOPIC = "t"


@pytest.mark.parametrize("slots", [1, 3])
def test_killed_supervisor_leaves_a_clean_stop_behind(tmp_path: Path, slots: int) -> None:
    broker = Appliance(tmp_path / "data", slots=slots)
    broker.start()
    assert create_topic(broker.port, TOPIC) == 0
    for offset in range(3):
        assert append(broker) == offset
    supervisor, *others = broker.family()
    memory = runtime_directory.find(broker.data_dir)
    assert memory is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(others, timeout=STOP_TIMEOUT_S)
    assert alive == []
    for slot in range(slots):
        assert (broker.data_dir / f"slot-{slot}" / CLEAN_SHUTDOWN).exists()
    told = appliance("status", "--data-dir", broker.data_dir)
    assert told.code == 1
    # Another appliance that starts on this host removes the memory of dead ones. The gate runs some beside this test.
    reason = "the appliance was killed; no appliance runs" if memory.exists() else "no appliance runs"
    assert reason in told.errors
    output = broker.output()
    broker.kill()  # forgets it; nothing lives
    assert "the supervisor is gone; stopping" in output
    assert "Traceback" not in output
    broker.start()
    assert not memory.exists()
    assert append(broker) == 3
    broker.stop()


def append(broker: Appliance) -> int:
    (leader,) = leaders(broker, TOPIC).values()
    with WireSocket(broker.port + leader) as connection:
        answer = produce(connection, TOPIC, encode_batch([Record(b"value")]))
    assert answer.error == 0
    return answer.base_offset
