"""The client's own distribution: its wheel, in an environment that has nothing of the broker (decision 0102)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest

from tests.support.judge import running_broker

ROOT: Final = Path(__file__).parent.parent.parent
README: Final = ROOT / "appliance_client" / "README.md"
BUILD_S: Final = 900
RUN_S: Final = 120

pytestmark = pytest.mark.timeout(BUILD_S + RUN_S)
"""The first test waits for the build."""


def needed(distribution: str, known: set[str]) -> set[str]:
    """A distribution and all that it needs, by their installed metadata."""
    name = re.split(r"[^A-Za-z0-9_.-]", distribution)[0].lower().replace("_", "-")
    if name in known:
        return known
    try:
        wants = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return known
    known.add(name)
    for each in wants:
        if "extra ==" not in each:
            needed(each, known)
    return known


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as pip builds it."""
    to = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(to), str(ROOT / "appliance_client")]
    # Without it the build would be a pure one, and say nothing, where a hot module cannot be compiled.
    compiled = {**os.environ, "APPLIANCE_BUILD": "compiled"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=BUILD_S, check=False, env=compiled)
    shutil.rmtree(ROOT / "appliance_client" / "build", ignore_errors=True)  # pip builds in the tree
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = to.glob("log_appliance_client-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and the packages that it says it needs, and nothing else.

    Those packages are links to the ones of this environment, because each installation of them is the same.
    """
    place = tmp_path_factory.mktemp("alone")
    venv.create(place, symlinks=True)
    (packages,) = (place / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
        (described,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        wants = re.findall(r"^Requires-Dist: (.+)$", archive.read(described).decode(), re.M)
    known: set[str] = set()
    for each in wants:
        if "extra ==" not in each:
            needed(each, known)
    here = Path(sysconfig.get_paths()["purelib"])
    for name in known:
        for path in {
            Path(str(each)).parts[0] for each in metadata.files(name) or [] if ".." not in str(each)
        }:
            if not (packages / path).exists():
                (packages / path).symlink_to(here / path)
    return place / "bin" / "python"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address


def run(python: Path, program: str, elsewhere: Path) -> str:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        [str(python), "-W", "error::ResourceWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        cwd=elsewhere,
        env=clean,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_owns_no_file_of_the_broker(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        sources = [name for name in archive.namelist() if name.endswith(".py")]
        compiled = {name.split(".")[0] for name in archive.namelist() if name.endswith(".so")}
        left = [
            name
            for name in sources
            if re.search(r"(from|import) appliance[.\s]", archive.read(name).decode())
        ]
    assert tops <= {"appliance_client", "log_appliance_client-0.1.0.dist-info"}
    assert {f"appliance_client/{name}" for name in ("kernel", "accumulator", "intake")} <= compiled
    assert not left, "these still import the broker's package"


def test_whoever_uses_the_wheel_is_told_the_types(wheel: Path, python: Path, tmp_path: Path) -> None:
    """The marker is in the wheel, and a checker that follows it finds a wrong argument."""
    with zipfile.ZipFile(wheel) as archive:
        assert "appliance_client/py.typed" in archive.namelist()
    program = tmp_path / "typed.py"
    program.write_text(
        "from appliance_client import Producer\n\n"
        "producer = Producer()\n"
        "reveal_type(producer.send('topic', b'value').get())\n"
        "producer.send(1)\n"
    )
    words = [sys.executable, "-m", "mypy", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    done = subprocess.run(
        [*words, "--python-executable", str(python), str(program)],
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
        cwd=tmp_path,
    )
    assert "typed.py:4" in done.stdout, done.stdout + done.stderr
    assert "RecordMetadata" in done.stdout.splitlines()[0]
    assert 'typed.py:5: error: Argument 1 to "send"' in done.stdout
    assert "Found 1 error" in done.stdout


def test_without_pyzmq_the_caller_is_told_what_to_install(python: Path, tmp_path: Path) -> None:
    program = """
from appliance_client import Producer
from appliance_client.errors import OptionError
try:
    Producer(bootstrap_servers="zmq+ipc:///run/a")
except OptionError as error:
    print(error)
"""
    assert "pip install 'log-appliance-client[zeromq]'" in run(python, program, tmp_path)


def test_the_client_works_where_there_is_no_broker_package(
    python: Path, address: str, tmp_path: Path
) -> None:
    program = f"""
import importlib.util
assert importlib.util.find_spec("appliance") is None
assert importlib.util.find_spec("kafka") is None
from appliance_client import Consumer, Producer, TopicPartition
for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
    with Producer(bootstrap_servers={address!r}, compression_type=codec) as producer:
        producer.send("alone-" + codec, b"alone" * 100, partition=0).get(60)
    with Consumer(bootstrap_servers={address!r}) as consumer:
        place = TopicPartition("alone-" + codec, 0)
        consumer.assign([place])
        consumer.seek_to_beginning()
        while not (polled := consumer.poll(1000)):
            pass
        assert polled[place][0].value == b"alone" * 100
print("done")
"""
    assert run(python, program, tmp_path).strip() == "done"


def test_the_sixty_seconds_of_the_readme_work(python: Path, address: str, tmp_path: Path) -> None:
    programs = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S)
    assert len(programs) == 3
    told = [run(python, each.replace("localhost:9092", address), tmp_path) for each in programs]
    assert "b'hello 9'" in told[0]
    assert "RecordMetadata(topic='greetings'" in told[1]
