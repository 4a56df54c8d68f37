"""The cases of all lanes: every way into the appliance is asked, and what it acknowledges is in the log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance_client import Admin
from benchmarks import proc
from benchmarks.brokers.broker import end_offset
from benchmarks.brokers.setting import SETTINGS
from benchmarks.cases import CASES
from benchmarks.cases.case import Scale
from benchmarks.figures import FIGURES
from benchmarks.load import lanes
from benchmarks.load.ways import Meter
from benchmarks.machine import GIB
from benchmarks.places import ROOT
from benchmarks.plan import Plan
from tests.support.broker import Appliance

LANES = frozenset(
    {"lane_latency", "lane_frames", "lane_throughput_1k", "lane_throughput_100", "local_reading"}
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    home = tmp_path_factory.mktemp("lanes")
    served = Appliance(
        home / "data",
        settings={"listeners.zeromq": [f"ipc://{home}/z"], "shared.memory.lanes.max": 4},
    )
    served.start()
    yield served
    served.stop()


def measured(broker: Appliance, mode: str, topic: str) -> dict[str, dict[str, float]]:
    """What the program tells of a new topic."""
    with Admin(bootstrap_servers=broker.address) as admin:
        admin.create_topic(topic, 1)
    words = [f"tcp={broker.address}", f"zeromq=ipc://{broker.data_dir.parent}/z", f"lane={broker.data_dir}"]
    if mode == "latency":
        words.append("floors=yes")
    words.append(f"pids={','.join(str(each.pid) for each in broker.family())}")
    program = Path(lanes.__file__)
    told = subprocess.run(
        [sys.executable, "-P", str(program), mode, topic, "0.1", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    found: dict[str, dict[str, float]] = json.loads(told.stdout)
    return found


@pytest.mark.slow
def test_each_way_and_each_floor_has_its_latency_and_every_acknowledged_record_is_there(
    broker: Appliance,
) -> None:
    told = measured(broker, "latency", "latency")
    assert told.keys() == {"all", "ping_pong", "echo", "tcp", "zeromq", "lane"}
    acknowledged = told.pop("all")["acknowledged"]
    assert end_offset(broker.address, "latency", 1) == acknowledged >= 3 * lanes.TURN_REQUESTS
    for way, figures in told.items():
        assert 0 < figures["p50_us"] <= figures["p99_us"], way
    assert min(told[way]["cpu_us_per_request"] for way in ("tcp", "zeromq", "lane")) > 1


@pytest.mark.slow
def test_a_megabyte_comes_whole_by_each_way_also_with_some_in_flight(broker: Appliance) -> None:
    told = measured(broker, "frames", "frames")
    assert told.pop("all")["batch_bytes"] > 900_000
    assert told.keys() == {f"{way}{many}" for way in ("tcp", "zeromq", "lane") for many in ("", "_4")}
    assert all(figures["mb_s"] > 0 and figures["cpu_s_per_gb"] > 0 for figures in told.values())


def test_lanes_are_measured_where_the_appliance_has_them_and_change_no_usual_row() -> None:
    plan = Plan(("appliance", "kafka"), tuple(CASES.values()), 3, Scale(), tuple(SETTINGS.values()))
    assert {case.name for case in plan.cases_under(SETTINGS["lanes"])} == LANES
    assert not any(setting.lanes for name, setting in SETTINGS.items() if name != "lanes")
    rows = {figure.case for figure in FIGURES if figure.key.startswith("lanes/")}
    assert rows == {f"lanes/{name}" for name in LANES}


def test_the_harness_holds_no_more_memory_than_its_cases_are_lent() -> None:
    settings = (SETTINGS["lanes"],)
    cases = tuple(CASES[name] for name in LANES)
    assert Plan(("appliance",), cases, 3, Scale(), settings).held_bytes == GIB // 2
    all_of_them = Plan(("appliance",), tuple(CASES.values()), 3, Scale(), tuple(SETTINGS.values()))
    assert all_of_them.held_bytes == Scale().held_bytes


def test_the_broker_s_processor_time_of_a_meter_is_that_of_its_turns() -> None:
    meter = Meter([os.getpid()])
    assert meter.seconds == 0.0
    meter.start()
    before = proc.sample([os.getpid()])
    sum(range(2_000_000))
    meter.stop()
    used_s = proc.used(before, proc.sample([os.getpid()])).cpu_seconds
    assert 0 < meter.seconds <= used_s + 0.01
