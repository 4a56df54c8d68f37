"""What `make quick` runs: files that exist, start no broker and no JVM, and that the gate runs with all examples."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

ROOT: Final = Path(__file__).parents[2]
STARTS: Final = re.compile(
    r"tests\.support\.(apache_kafka|broker|flink|forked|java_\w+|judge|kafka_\w+|s3|zookeeper)\b"
)
"""What a test imports to start a broker, a JVM or another server."""


@pytest.fixture(scope="module")
def quick() -> list[str]:
    """The words of the command, as make would run it in a tree that is installed."""
    asked = ["make", "--dry-run", "--old-file=.venv/.installed-test", "quick"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def left_out(quick: list[str]) -> list[Path]:
    return [ROOT / word.removeprefix("--ignore=") for word in quick if word.startswith("--ignore=")]


def rooms(quick: list[str]) -> list[Path]:
    return [ROOT / word for word in quick if word.startswith("tests/")]


def test_every_room_exists_and_every_file_that_is_left_out_is_in_one_of_them(quick: list[str]) -> None:
    assert len(rooms(quick)) > 5
    assert [room for room in rooms(quick) if not room.is_dir()] == []
    lost = [
        file
        for file in left_out(quick)
        if not file.is_file() or not any(file.is_relative_to(room) for room in rooms(quick))
    ]
    assert left_out(quick)
    assert lost == []


def test_no_file_starts_a_broker_or_a_jvm(quick: list[str]) -> None:
    files = {file for room in rooms(quick) for file in room.rglob("*.py")} - set(left_out(quick))
    assert len(files) > 100
    assert [file for file in files if STARTS.search(file.read_text()) and file != Path(__file__)] == []


def test_a_file_that_starts_one_would_be_found(quick: list[str]) -> None:
    assert any(STARTS.search(file.read_text()) for file in left_out(quick))


def test_few_examples_are_tried_by_it_and_all_of_them_by_the_gate(quick: list[str]) -> None:
    assert "--hypothesis-profile=quick" in quick
    few, all_of_them = (settings.get_profile(name) for name in ("quick", "gate"))
    assert few.max_examples < all_of_them.max_examples == settings.get_profile("default").max_examples
    assert (ROOT / "Makefile").read_text().count("--hypothesis-profile=quick") == 1
