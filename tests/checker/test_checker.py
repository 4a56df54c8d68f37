"""Random faults under load, with a seed of the day's run in the failure's text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.checker.campaign import Plan, run

SEED = int(os.environ.get("APPLIANCE_SEED", "0")) or os.getpid()


def test_acked_records_survive_random_faults_once_in_order_and_seen(tmp_path: Path) -> None:
    run(Plan(duration_s=8.0, seed=SEED, pause_max_s=1.0), tmp_path).check()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_acked_records_survive_five_minutes_of_random_faults(tmp_path: Path) -> None:
    run(Plan(duration_s=300.0, seed=SEED, pause_max_s=20.0), tmp_path).check()
