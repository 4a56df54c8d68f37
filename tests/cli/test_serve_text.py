"""What `serve` says before the supervisor takes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.build import build
from appliance.cli.serve import build_text, start_text, try_text
from appliance.config import load_settings


def text(**overrides: str) -> str:
    given = {"data.dir": "/data", **{name.replace("_", "."): value for name, value in overrides.items()}}
    settings = load_settings(overrides=given)
    return start_text(settings) + "\n" + try_text(settings, "appliance")


def test_lines_to_copy_name_the_address_where_it_is_not_the_default() -> None:
    assert "appliance produce demo\n" in text()
    assert "appliance produce demo --bootstrap 127.0.0.1:19092\n" in text(port="19092")
    assert "kcat -P -b 127.0.0.1:19092 -t demo" in text(port="19092")


def test_unspecified_address_is_told_as_one_that_can_be_dialled() -> None:
    assert "--bootstrap" not in text(host="0.0.0.0")
    assert "1 slot on 0.0.0.0:9092" in text(host="0.0.0.0")
    assert "kcat -P -b logs.example:9092" in text(advertised_host="logs.example")


def test_slots_tell_their_ports() -> None:
    assert "3 slots on 127.0.0.1:9092 to 9094, data in /data" in text(slots="3")


def test_the_build_is_named_and_how_to_get_the_faster_one() -> None:
    assert build_text("compiled") == "appliance: compiled build"
    assert "pure Python build" in build_text("pure")
    assert "needs a C compiler" in build_text("pure")
    assert build_text(build()) in text()


def test_start_text_does_not_look_like_readiness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ready" not in text(slots="2")


def test_what_to_try_is_not_said_before_it_can_be_tried() -> None:
    assert "produce" not in start_text(load_settings(overrides={"data.dir": "/data"}))


def test_kafkas_names_for_processes_are_taken_and_said() -> None:
    settings = load_settings(overrides={"num.network.threads": "3", "num.io.threads": "2"})
    assert (settings.network.processes, settings.io.workers) == (3, 2)
    assert "num.network.threads is accepted as network.processes = 3" in start_text(settings)
    assert "num.io.threads is accepted as io.workers = 2" in start_text(settings)
