"""`make wheels`: each wheel serves from an empty environment of its own Python, and brings the fixture along."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BUILD_S = 3600
sys.path.insert(0, str(ROOT / "scripts"))  # the scripts import each other, as programs
wheels = import_module("wheels")

A_TEST = """
from kafka import KafkaProducer

def test_it(kafka_broker):
    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap_servers)
    assert producer.send("t", b"one").get(timeout=20).offset == 0
    kafka_broker.kill("ioproc")
    assert producer.send("t", b"two").get(timeout=20).offset == 1
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
    assert "-manylinux_2_" in wheel.name
    assert wheel.name.endswith("x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert sum(name.endswith(".so") for name in archive.namelist()) > 100
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True, env=clean())
    within = tmp_path / "venv" / "bin" / "python"
    install = [str(within), "-m", "pip", "install", "--quiet", f"{wheel}[testing]", "kafka-python"]
    subprocess.run(install, check=True, env=clean(), timeout=BUILD_S)
    (tmp_path / "test_it.py").write_text(A_TEST)
    done = subprocess.run(
        [within, "-m", "pytest", "-q", "--basetemp=base", "-p", "no:cacheprovider"],
        cwd=tmp_path,
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
