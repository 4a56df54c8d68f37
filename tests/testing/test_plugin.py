"""The plugin, in runs of pytest as users start them: scopes, slots, xdist, asyncio, reports, and a killed run."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import appliance
from tests.support.broker import end_with_the_test_runner

PATIENCE_S = 240.0
PLUGIN = "appliance.testing.plugin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project beside this one, with an ini file of its own."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    return tmp_path


def command(*arguments: str) -> list[str]:
    # Installed, pytest finds the plugin by its entry point; a tree that was installed before it was written has none.
    found = any(point.value == PLUGIN for point in importlib.metadata.entry_points(group="pytest11"))
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp=tmp"] + (
        [*arguments] if found else ["-p", PLUGIN, *arguments]
    )


def environment() -> dict[str, str]:
    root = str(Path(appliance.__file__).parent.parent)
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=project,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


SCOPES = """
import pytest
from kafka import KafkaProducer

from appliance.testing.plugin import broker_fixture

pytestmark = pytest.mark.kafka_broker(options={"num.partitions": 4})
own = broker_fixture(scope="module", slots=2)
ports = []

def parts(broker, topic):
    broker.topics.create(topic)
    return len(list((broker.data_dir / "slot-0").glob(topic + "-*")))

def produce(broker):
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    producer.send("t", b"x").get(timeout=20)
    producer.close()

def test_fresh(kafka_broker):
    assert parts(kafka_broker, "of_the_module") == 4
    produce(kafka_broker)
    ports.append(kafka_broker.data_dir)

def test_fresh_again(kafka_broker):
    assert kafka_broker.data_dir not in ports
    assert kafka_broker.topics.names() == []

def test_module_1(kafka_broker_module):
    produce(kafka_broker_module)

def test_module_2(kafka_broker_module):
    assert kafka_broker_module.topics.names() == ["t"]

def test_session(kafka_broker_session, kafka_broker_module):
    assert kafka_broker_session.topics.names() == []

@pytest.mark.kafka_broker(slots=3)
def test_marker(kafka_broker):
    assert kafka_broker.slots == 3

@pytest.mark.parametrize("kafka_broker", [1, {"slots": 2}], indirect=True, ids=str)
def test_parameter(kafka_broker):
    assert len(kafka_broker.bootstrap_servers.split(",")) == kafka_broker.slots

def test_own(own):
    assert own.slots == 2

def test_factory(kafka_broker_factory):
    one, two = kafka_broker_factory(), kafka_broker_factory(slots=2)
    assert (one.slots, two.slots) == (1, 2)
    assert one.is_running and two.is_running
"""


def test_scopes_markers_parameters_and_factories(project: Path) -> None:
    (project / "test_scopes.py").write_text(SCOPES)
    done = run(project)
    assert "10 passed" in done.stdout, done.stdout + done.stderr
    assert "PytestUnknownMarkWarning" not in done.stdout


WORKERS = """
import asyncio
import pytest
from kafka import KafkaProducer

@pytest.mark.asyncio
@pytest.mark.parametrize("n", range(4))
async def test_each_worker_has_its_own(kafka_broker_session, n, worker_id):
    def produce():
        producer = KafkaProducer(bootstrap_servers=kafka_broker_session.bootstrap_servers)
        producer.send(worker_id, b"x").get(timeout=20)
        producer.close()
    await asyncio.to_thread(produce)
    assert kafka_broker_session.topics.names() == [worker_id]

@pytest.mark.asyncio
async def test_an_asynchronous_client(kafka_broker_session):
    from aiokafka import AIOKafkaProducer
    producer = AIOKafkaProducer(bootstrap_servers=kafka_broker_session.bootstrap_servers)
    await producer.start()
    try:
        await producer.send_and_wait("PLACE", b"x")
    finally:
        await producer.stop()
        kafka_broker_session.topics.delete("PLACE")
"""


def test_workers_of_xdist_have_a_broker_each_and_asyncio_tests_use_it(project: Path) -> None:
    (project / "test_workers.py").write_text(WORKERS)
    done = run(project, "-n", "2")
    assert "5 passed" in done.stdout, done.stdout + done.stderr


def test_a_failed_test_shows_what_the_broker_printed(project: Path) -> None:
    (project / "test_fails.py").write_text("def test_it(kafka_broker):\n    assert kafka_broker.port == 0\n")
    done = run(project)
    assert "1 failed" in done.stdout
    assert "log of kafka_broker" in done.stdout
    assert "INFO controller: controller epoch 1" in done.stdout


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("@pytest.mark.kafka_broker(options={'no.such': 1})", "no.such: no such option"),
        ("@pytest.mark.kafka_broker(3)", "takes keyword arguments only, such as slots=3"),
        (
            "@pytest.mark.parametrize('kafka_broker', ['x'], indirect=True)",
            "a number of slots or a mapping, not 'x'",
        ),
    ],
)
def test_a_wrong_wish_is_an_error_with_its_reason(project: Path, code: str, said: str) -> None:
    (project / "test_wrong.py").write_text(f"import pytest\n{code}\ndef test_it(kafka_broker):\n    pass\n")
    done = run(project)
    assert "1 error" in done.stdout
    assert said in done.stdout


def test_the_ini_file_sets_slots_and_options(project: Path) -> None:
    with (project / "pytest.ini").open("a") as ini:
        ini.write(
            "kafka_broker_slots = 2\nkafka_broker_options =\n    num.partitions=3\n    broker.rack=r1\n"
        )
    (project / "test_ini.py").write_text(
        "def test_it(kafka_broker):\n"
        "    assert kafka_broker.slots == 2\n"
        "    kafka_broker.topics.create('t')\n"
        "    assert (kafka_broker.data_dir / 'slot-0' / 't-2').exists()\n"
    )
    done = run(project)
    assert "1 passed" in done.stdout, done.stdout


def test_a_killed_run_leaves_no_process_and_no_data(project: Path) -> None:
    (project / "test_killed.py").write_text(
        "import json, pathlib, time\n"
        "def test_it(kafka_broker):\n"
        "    facts = {'pid': kafka_broker.pid, 'data_dir': str(kafka_broker.data_dir)}\n"
        "    pathlib.Path('facts.new').write_text(json.dumps(facts))\n"
        "    pathlib.Path('facts.new').rename('facts')\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        command(),
        cwd=project,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
    ) as running:
        until((project / "facts").exists)
        facts = json.loads((project / "facts").read_text())
        family = [psutil.Process(facts["pid"]), *psutil.Process(facts["pid"]).children()]
        running.kill()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert alive == []
    until(lambda: not Path(facts["data_dir"]).parent.exists())


def test_a_run_that_uses_no_broker_loads_nothing_of_it(project: Path) -> None:
    (project / "test_nothing.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    loaded = {name for name in sys.modules if name.startswith('appliance')}\n"
        "    assert 'appliance.testing.broker' not in loaded, loaded\n"
    )
    done = run(project)
    assert "1 passed" in done.stdout, done.stdout


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
