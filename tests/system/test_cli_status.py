"""What `serve` says from its start to its end, and what `status` shows above its table of processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from appliance.version import VERSION
from tests.cli.command import appliance, environment
from tests.support.broker import Appliance


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    started = Appliance(tmp_path_factory.mktemp("status") / "data", arguments=["--set", "num.io.threads=2"])
    started.start()
    try:
        appliance("topics", "create", "t", "-p", 3, "-b", started.address).succeeded()
        yield started
    finally:
        started.stop()


def test_status_tells_address_version_disks_and_topics(own: Appliance) -> None:
    told = json.loads(appliance("status", "--data-dir", own.data_dir, "--json").succeeded().text)
    assert (told["address"], told["version"], told["slots"]) == (own.address, VERSION, 1)
    assert (told["topics"], told["partitions"]) == (1, 3)
    assert (told["under_replicated_partitions"], told["unavailable_partitions"]) == (0, 0)
    assert 0 < told["uptime_ms"] < 600_000
    (directory,) = told["log_dirs"]
    assert 0 < directory["usable_bytes"] <= directory["total_bytes"]
    assert directory["error"] is None

    lines = appliance("status", "--data-dir", own.data_dir).succeeded().text.splitlines()
    assert lines[0].startswith(f"appliance {VERSION} on {own.address}, up ")
    assert lines[1] == "1 slot, 1 topic, 3 partitions: all in sync"
    assert lines[2].startswith("log directory ")
    assert lines[2].endswith(" free")


def test_counters_in_the_json_have_names(own: Appliance) -> None:
    told = json.loads(appliance("status", "--data-dir", own.data_dir, "--json").succeeded().text)
    counters = {process["role"]: process.get("counters") for process in told["processes"]}
    assert counters["controller"]["topics"] == 1
    assert counters["ioproc 0.0"]["offline_partitions"] == 0
    assert set(counters["purgatory"]) >= {"waiting", "satisfied", "expired"}


def test_status_is_answered_while_the_broker_is_not(own: Appliance) -> None:
    stopped = own.pids("netproc")
    for pid in stopped:
        subprocess.run(["kill", "-STOP", str(pid)], check=True)
    try:
        told = json.loads(appliance("status", "--data-dir", own.data_dir, "--json").succeeded().text)
        assert told["topics"] is None
        assert told["address"] == own.address
    finally:
        for pid in stopped:
            subprocess.run(["kill", "-CONT", str(pid)], check=True)


@pytest.mark.parametrize("seconds", [(), ("0.2",)])
def test_watch_shows_it_again_until_it_is_interrupted(own: Appliance, seconds: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "appliance", "status", "--data-dir", str(own.data_dir), "--json"]
    with subprocess.Popen(
        [*command, "--watch", *seconds], stdout=subprocess.PIPE, env=environment(), text=True
    ) as watching:
        assert watching.stdout is not None
        pictures = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 130
    assert [each["running"] for each in pictures] == [True, True]


def test_source_of_a_flag_is_not_called_a_file(own: Appliance) -> None:
    rows = json.loads(
        appliance("configs", "describe", "--broker", 0, "-b", own.address, "--json").succeeded().text
    )
    assert {row["name"]: row["source"] for row in rows}["io.workers"] == "file or command line"


def test_units_are_taken_where_the_file_takes_them(own: Appliance) -> None:
    done = appliance(
        "configs", "set", "retention.ms=7d", "segment.bytes=64 MiB", "-t", "t", "-b", own.address
    )
    assert done.succeeded().text == (
        "retention.ms: 604800000 → 604800000\nsegment.bytes: 1073741824 → 67108864\n"
    )


def test_what_to_try_follows_readiness_and_the_last_line_says_that_it_stopped(own: Appliance) -> None:
    own.stop()
    lines = own.output().splitlines()
    own.start()
    ready = next(number for number, line in enumerate(lines) if line.startswith("appliance ready on"))
    assert any("num.io.threads is accepted as io.workers = 2" in line for line in lines[:ready])
    assert not any("Try it" in line for line in lines[:ready])
    assert any("Try it" in line for line in lines[ready:])
    assert lines[-1].endswith(": stopped")
