"""A full disk, seen from the command line: `produce` says what the broker answers, `status` how much room is left."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import appliance, environment
from tests.support.broker import Appliance
from tests.system.raw import MIB
from tests.system.test_full_disk import KINDS, FileSizeLimit, SmallFileSystem, _mount

TOPIC = "full"
SAID_WITHIN_S = 20.0
"""A second of patience, a retry, and the start of Python on a busy machine; librdkafka gives up after 60 s."""


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileSizeLimit | SmallFileSystem]:
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


def test_produce_says_at_once_why_a_full_disk_takes_nothing_and_goes_on_with_room(
    disk: FileSizeLimit | SmallFileSystem,
) -> None:
    broker = Appliance(disk.path / "data", settings={"log.segment.bytes": MIB})
    broker.start()
    try:
        appliance("topics", "create", TOPIC, "-b", broker.address).succeeded()
        appliance("produce", TOPIC, "-b", broker.address, given=b"first\n").succeeded()
        disk.fill(broker)
        began_s = time.monotonic()
        with subprocess.Popen(
            [sys.executable, "-m", "appliance", "produce", TOPIC, "-b", broker.address, "--whole"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        ) as producer:
            assert producer.stdin is not None
            assert producer.stderr is not None
            producer.stdin.write(bytes(900_000))
            producer.stdin.close()
            line = producer.stderr.readline().decode()
            assert time.monotonic() - began_s < SAID_WITHIN_S
            assert line.startswith("appliance: "), line
            assert "broker 0" in line
            assert "retrying" in line
            if isinstance(disk, SmallFileSystem):
                assert "broker 0 cannot store records: its disk is full" in line
                assert "KAFKA_STORAGE_ERROR" in line
            told = json.loads(appliance("status", "--data-dir", broker.data_dir, "--json").succeeded().text)
            (directory,) = told["log_dirs"]
            assert directory["path"] == str((broker.data_dir / "slot-0").resolve())
            if isinstance(disk, SmallFileSystem):
                assert directory["usable_bytes"] < MIB
                shown = appliance("status", "--data-dir", broker.data_dir).succeeded().text
                assert "disk is full" in shown
            given_up = appliance(
                *("produce", TOPIC, "-b", broker.address, "--whole", "--acks", 1),
                *("-X", "message.timeout.ms=4000"),
                given=bytes(900_000),
            )
            assert given_up.code == 1
            last = given_up.errors.splitlines()[-1]
            assert (
                "1 of 1 records were not acknowledged: the broker did not acknowledge the record in time"
                in last
            )
            assert "last answer: broker 0" in last
            assert "KAFKA_STORAGE_ERROR" in last
            assert f"appliance: {TOPIC}-0: broker 0 cannot store records" in given_up.errors
            disk.free(broker)
            assert producer.wait(60) == 0
    finally:
        disk.free(broker)
        broker.stop()
