"""Pools that the machine cannot hold are refused at the start, not found out under load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.channels import runtime_directory
from appliance.config import load_settings
from appliance.control.supervisor.memory_room import (
    START_BYTES,
    refuse_full_shared_memory,
    refuse_too_large_pools,
)
from appliance.errors import ConfigurationError, OperatorFault
from tests.cli.command import appliance

GIB = 2**30


def test_pools_that_fit_are_taken() -> None:
    refuse_too_large_pools(load_settings(), shared_bytes=GIB, memory_bytes=GIB)


@pytest.mark.parametrize(
    ("shared_bytes", "memory_bytes", "named"), [(GIB, 64 * GIB, "/dev/shm"), (64 * GIB, GIB, "of memory")]
)
def test_what_is_too_small_is_named(shared_bytes: int, memory_bytes: int, named: str) -> None:
    settings = load_settings(overrides={"network.pool.bytes": "1 GiB"})
    with pytest.raises(ConfigurationError) as refused:
        refuse_too_large_pools(settings, shared_bytes=shared_bytes, memory_bytes=memory_bytes)
    assert named in str(refused.value)
    assert "network.pool.bytes = 1 GiB in each of 2 network processes" in str(refused.value)


def test_every_coordinator_has_a_pool() -> None:
    each = {
        "coordinator.pool.bytes": "300 MiB",
        "network.pool.bytes": "10 MiB",
        "socket.request.max.bytes": "10 MiB",
    }
    settings = load_settings(overrides=each)
    refuse_too_large_pools(settings, shared_bytes=GIB, memory_bytes=GIB)
    settings = load_settings(overrides={**each, "coordinator.processes": "4"})
    with pytest.raises(
        ConfigurationError, match=r"coordinator.pool.bytes = 300 MiB in each of 4 coordinators"
    ):
        refuse_too_large_pools(settings, shared_bytes=GIB, memory_bytes=GIB)


def test_start_with_a_pool_of_four_tebibytes_ends_with_a_line_and_leaves_nothing(tmp_path: Path) -> None:
    told = appliance("serve", "--data-dir", tmp_path / "data", "--set", "network.pool.bytes=4 TiB")
    assert told.code == 2
    assert "network.pool.bytes = 4 TiB" in told.errors
    assert "Try it" not in told.text
    assert not (tmp_path / "data").exists()


def test_a_start_without_room_in_shared_memory_is_refused_with_what_to_do() -> None:
    refuse_full_shared_memory(START_BYTES)
    with pytest.raises(OperatorFault, match=r"32 MiB.*--shm-size"):
        refuse_full_shared_memory(START_BYTES - 1)


def test_dead_instances_are_removed_before_a_start_without_room_is_refused(tmp_path: Path) -> None:
    dead = runtime_directory.create(tmp_path)
    os.close(runtime_directory.hold(dead))
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from appliance.config import load_settings\n"
        "from appliance.control.supervisor import memory_room\n"
        "memory_room.START_BYTES = 1 << 60\n"
        "from appliance.control.supervisor.main import run\n"
        "sys.exit(run(load_settings(overrides={'data.dir': sys.argv[1]})))\n"
    )
    started = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")], capture_output=True, text=True, check=False
    )
    assert started.returncode == 2, started.stderr
    assert "/dev/shm" in started.stderr
    assert not dead.exists()
