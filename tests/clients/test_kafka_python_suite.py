"""kafka-python's own integration tests against the broker; unpacked by scripts/install-kafka-python-suite.sh."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.broker import Appliance
from tests.support.judge import SLOTS

REPOSITORY: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = REPOSITORY / ".cache" / "kafka-python" / "source"
SUITE: Final = ("test_consumer_integration.py", "test_admin_integration.py", "test_producer_integration.py")

# What is not served yet; TLS and SASL have files of their own, which are not run.
LATER: Final = ("acls", "metadata_quorum")
# The suite's topics have one replica, and this test takes for granted that it lies with the first broker.
ONE_BROKER: Final = ("alter_replica_log_dirs",) if SLOTS > 1 else ()
PASSED_MIN: Final = 52


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kafka_pythons_own_integration_tests_pass(tmp_path: Path) -> None:
    subprocess.run([str(REPOSITORY / "scripts" / "install-kafka-python-suite.sh")], check=True, timeout=120)
    settings = {
        "num.partitions": 4,
        "group.min.session.timeout.ms": 1_000,
        "group.initial.rebalance.delay.ms": 0,
    }
    broker = Appliance(tmp_path / "data", slots=SLOTS, settings=settings)
    broker.start()
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"),
                *(
                    "--timeout=120",
                    "--timeout-method=signal",
                    "-k",
                    " and ".join(f"not {word}" for word in (*LATER, *ONE_BROKER)),
                ),
                *(f"test/integration/{name}" for name in SUITE),
            ],
            cwd=SOURCE,
            env={
                **os.environ,
                "KAFKA_URI": f"kafka://{broker.address}",
                "KAFKA_VERSION": "4.3.0",
                "KAFKA_ROOT": str(SOURCE),  # it only wants to exist: no broker is started from there
                "PYTHONPATH": str(SOURCE),
            },
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    finally:
        broker.stop()
    assert done.returncode == 0, done.stdout[-6000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout[-3000:]
    assert int(passed[1]) >= PASSED_MIN
