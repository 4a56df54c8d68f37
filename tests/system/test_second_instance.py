"""What a killed instance leaves is cleaned at the next start; what a living one holds is refused by name."""

from __future__ import annotations

import fcntl
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from appliance.channels import runtime_directory
from appliance.control.supervisor.main import EXIT_IN_USE, EXIT_PORT_TAKEN
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance, shared_memory_names
from tests.support.store import chosen_options
from tests.support.wire import WireSocket, answers_api_versions, free_ports
from tests.system.raw import create_topic, generations, produce
from tests.system.steady import undisturbed

TOPIC = "t"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path / "data")
    appliance.start()
    try:
        yield appliance
    finally:
        appliance.stop()


def append(broker: Appliance) -> int:
    with WireSocket(broker.port) as connection:
        answer = produce(connection, TOPIC, encode_batch([Record(b"value")]))
    assert answer.error == 0
    return answer.base_offset


def assert_no_more_than(before: frozenset[str], now: frozenset[str]) -> None:
    """Generations begin anew, so names come again, and no other one is left over.

    How many images of the metadata there were depends on who was ready first; two are kept, three while one is made.
    """
    images = {name for name in before | now if re.search(r"^image-\d+$", name)}
    assert now - images <= before
    assert len(now & images) <= 3


def serve(data_dir: Path, port: int) -> subprocess.CompletedProcess[str]:
    """Tries to start another instance with the same store, and waits for its end."""
    command = [sys.executable, "-m", "appliance", "serve", "--data-dir", str(data_dir), "--port", str(port)]
    command += [f"--set={name}={value}" for name, value in chosen_options(data_dir).items()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def kept_from_other_instances(runtime: Path) -> Iterator[None]:
    """Stands in the queue for the lock of a living instance and holds it from the instance's end until the exit.

    The start of any other instance of this user removes what a dead one left, and other tests run beside this one.
    """
    with open(runtime / "instance", "rb") as file:
        waiting = threading.Thread(target=fcntl.flock, args=(file, fcntl.LOCK_EX), daemon=True)
        waiting.start()
        yield
        waiting.join(30)
        assert not waiting.is_alive(), "a process of the instance still holds its lock"


def test_what_a_killed_instance_leaves_is_cleaned_at_the_next_start(broker: Appliance) -> None:
    assert create_topic(broker.port, TOPIC) == 0
    assert append(broker) == 0
    runtime = runtime_directory.find(broker.data_dir)
    assert runtime is not None
    before = shared_memory_names(broker.data_dir)
    with kept_from_other_instances(runtime):
        broker.kill()
        left = shared_memory_names(broker.data_dir)
    assert left == before, "nothing was left to clean: the test tests nothing"
    broker.start()
    assert not runtime.exists()
    runtime = runtime_directory.find(broker.data_dir)
    assert runtime is not None
    assert_no_more_than(before, shared_memory_names(broker.data_dir))
    assert append(broker) == 1
    broker.stop()  # asserts that no name is left
    assert not runtime.exists()
    broker.start()


def test_kill_after_kill_leaves_no_more_than_one(broker: Appliance) -> None:
    assert create_topic(broker.port, TOPIC) == 0
    before = shared_memory_names(broker.data_dir)
    for number in range(3):
        assert append(broker) == number
        broker.kill()
        broker.start()
    assert_no_more_than(before, shared_memory_names(broker.data_dir))


def test_second_instance_on_the_same_directory_is_refused_while_the_first_serves_on(
    broker: Appliance,
) -> None:
    with undisturbed(broker):
        refused = serve(broker.data_dir, free_ports())
        assert refused.returncode == EXIT_IN_USE
        (line,) = [line for line in refused.stderr.splitlines() if "CRITICAL" in line]
        assert f"data directory {broker.data_dir} is in use by another appliance (pid {broker.pid})" in line
        assert "Traceback" not in refused.stderr
        assert "ready" not in refused.stdout


def test_second_instance_by_another_path_to_the_directory_is_refused(
    broker: Appliance, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(broker.data_dir)
    assert serve(tmp_path / "link", free_ports()).returncode == EXIT_IN_USE
    assert answers_api_versions(broker.port, 30)


def test_port_that_another_program_holds_is_refused_by_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = serve(tmp_path / "data", port)
    assert refused.returncode == EXIT_PORT_TAKEN
    (line,) = [line for line in refused.stderr.splitlines() if "CRITICAL" in line]
    assert str(port) in line
    assert "Traceback" not in refused.stderr
    assert not shared_memory_names(tmp_path / "data")


def test_port_of_another_instance_is_refused_while_that_one_serves_on(
    broker: Appliance, tmp_path: Path
) -> None:
    before = generations(broker)
    assert serve(tmp_path / "other", broker.port).returncode == EXIT_PORT_TAKEN
    assert answers_api_versions(broker.port, 30)
    assert generations(broker) == before
