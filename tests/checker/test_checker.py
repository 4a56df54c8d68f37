"""Random faults under load. In a process of its own: a client that cannot bear an answer may end its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checker.native_clients import CLIENTS, LIBRDKAFKA

SEED = os.environ.get("APPLIANCE_SEED") or str(os.getpid())
SHORT_RUN_S = 270.0
"""A run of some seconds with all that it waits for. Less than pytest's timeout, which would hide what was said."""


def check(directory: Path, *arguments: str, slots: int, duration_s: float, pause_max_s: float) -> None:
    """Runs the checker. Its whole output, which begins with the seed, is the failure's text.

    One that comes to no end in time says where its threads were, and what the appliance said last.
    """
    run = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.checker", "--slots", str(slots), "--seed", SEED),
            *("--duration-s", str(duration_s), "--pause-max-s", str(pause_max_s)),
            *("--directory", str(directory), *arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    within_s = SHORT_RUN_S if duration_s < 60 else duration_s + 500
    try:
        said, _ = run.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGABRT)  # its appliance stops with it
        said, _ = run.communicate()
        appliance = (directory / "appliance.log").read_text(errors="replace")[-8000:]
        pytest.fail(f"no end within {within_s:.0f} s\n{said}\nthe appliance:\n{appliance}")
    assert run.returncode == 0, said


@pytest.mark.parametrize("slots", [1, 3])
def test_acked_records_survive_random_faults_once_in_order_and_seen(tmp_path: Path, slots: int) -> None:
    check(tmp_path, "--no-transactions", slots=slots, duration_s=6, pause_max_s=1)


def test_transactions_stay_whole_when_processes_are_killed_at_their_steps(tmp_path: Path) -> None:
    check(
        tmp_path,
        *("--coordinators", "2", "--only", "kill_at_moment", "--records-per-s", "100"),
        slots=3,
        duration_s=12,
        pause_max_s=1,
    )


def test_native_clients_on_all_lanes_survive_random_faults(tmp_path: Path) -> None:
    check(tmp_path, "--client", "mixed", "--records-per-s", "100", slots=1, duration_s=6, pause_max_s=1)


def test_records_that_consumers_hand_back_end_processed_or_dead_under_random_faults(tmp_path: Path) -> None:
    more = "--retried", "--no-transactions", "--records-per-s", "100"
    check(tmp_path, *more, slots=1, duration_s=4, pause_max_s=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("more", [("--no-transactions",), ()], ids=["clock", "transactions"])
def test_records_that_consumers_hand_back_survive_minutes_of_random_faults(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    check(tmp_path, "--retried", *more, slots=3, duration_s=120, pause_max_s=4)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("client", [each for each in CLIENTS if each != LIBRDKAFKA])
def test_native_clients_on_one_lane_survive_minutes_of_random_faults(tmp_path: Path, client: str) -> None:
    check(tmp_path, "--client", client, "--records-per-s", "200", slots=3, duration_s=180, pause_max_s=4)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "more",
    [("--no-transactions",), ("--coordinators", "2"), ("--no-transactions", "--exact")],
    ids=["clock", "transactions", "exact-clock"],
)
def test_delayed_records_come_once_under_random_faults(tmp_path: Path, more: tuple[str, ...]) -> None:
    check(tmp_path, "--delayed", *more, slots=3, duration_s=120, pause_max_s=4)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("slots", [1, 3])
def test_acked_records_and_transactions_survive_five_minutes_of_random_faults(
    tmp_path: Path, slots: int
) -> None:
    coordinators = str(min(2, slots))
    check(
        tmp_path,
        "--coordinators",
        coordinators,
        slots=slots,
        duration_s=300,
        pause_max_s=20,
    )
