"""`make wheels`: each wheel serves from an empty environment of its own Python, and brings the fixture along."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

from tests.installation.debian_root import ROOT, DebianRoot

BUILD_S = 3600
sys.path.insert(0, str(ROOT / "scripts"))  # the scripts import each other, as programs
wheels = import_module("wheels")

A_TEST = """
from kafka import KafkaConsumer, KafkaProducer

def test_it(kafka_broker):
    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap_servers)
    assert producer.send("t", b"one").get(timeout=20).offset == 0
    kafka_broker.kill("ioproc")
    assert producer.send("t", b"two").get(timeout=20).offset == 1
    consumer = KafkaConsumer(
        "t",
        bootstrap_servers=kafka_broker.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    assert [next(consumer).value for _ in range(2)] == [b"one", b"two"]
"""


def clean() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "APPLIANCE_", "VIRTUAL_ENV", "TESTED_BUILD"))
    }


def test_interpreters_are_cpython_with_headers_and_pip() -> None:
    found = wheels.interpreters()
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in found
    assert set(found) <= set(wheels.VERSIONS)


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
@pytest.mark.parametrize("version", wheels.interpreters())
def test_a_wheel_works_in_an_empty_environment(version: str, tmp_path: Path) -> None:
    python = wheels.interpreters()[version]
    wheel = wheels.build_one(python, tmp_path / "dist")
    try_wheel(wheel, python, tmp_path)


def try_wheel(wheel: Path, python: Path, place: Path) -> None:
    """Install a wheel into an empty environment of `python` below `place`, and serve a client from there.

    Raises:
        AssertionError: the wheel is not what it says, or does not work.
    """
    assert "manylinux_2_17_x86_64" in wheel.name
    assert wheel.name.endswith("x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert sum(name.endswith(".so") for name in archive.namelist()) > 100
    subprocess.run([python, "-m", "venv", place / "venv"], check=True, env=clean())
    within = place / "venv" / "bin" / "python"
    install = [str(within), "-m", "pip", "install", "--quiet", f"{wheel}[testing]", "kafka-python"]
    subprocess.run(install, check=True, env=clean(), timeout=BUILD_S)
    (place / "test_it.py").write_text(A_TEST)
    done = subprocess.run(
        [within, "-m", "pytest", "-q", "--basetemp=base", "-p", "no:cacheprovider"],
        cwd=place,
        env=clean(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    said = subprocess.run(
        [within.parent / "appliance", "--version"], capture_output=True, text=True, check=True, env=clean()
    )
    assert "compiled build" in said.stdout


LATER_PYTHON, LATER_DEBIAN = "3.14", "forky"
"""The newest Python that the wheels are for, and a Debian release that has it."""

IN_DEBIAN = """
set -eux
cd /tmp
python3 -m venv venv
venv/bin/pip install --quiet --cert /certificates.crt "$(ls /packages/*.whl)[testing]" kafka-python
cp /packages/test_it.py .
venv/bin/python -m pytest -q --basetemp=base -p no:cacheprovider
venv/bin/appliance --version
"""


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
def test_a_wheel_for_a_python_that_this_host_has_not_works_in_a_debian_that_has_it(tmp_path: Path) -> None:
    try_in_debian(wheels.build_in_debian(LATER_PYTHON, LATER_DEBIAN, tmp_path / "dist"), tmp_path)


def try_in_debian(wheel: Path, place: Path) -> None:
    """Do what `try_wheel` does in a fresh Debian system.

    Raises:
        AssertionError: the wheel is not what it says, or does not work.
    """
    assert "manylinux_2_17_x86_64" in wheel.name
    debian = DebianRoot(place / "debian", LATER_DEBIAN, f"python{LATER_PYTHON}-venv", "python3-pip")
    packages = debian.directory / "packages"
    packages.mkdir()
    shutil.copy(wheel, packages)
    (packages / "test_it.py").write_text(A_TEST)
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", debian.directory / "certificates.crt")
    said = debian.run("sh", "-c", IN_DEBIAN, network=True)
    assert "1 passed" in said
    assert "compiled build" in said
