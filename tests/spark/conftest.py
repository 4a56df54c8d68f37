"""One Spark session for the whole room: the virtual machine takes seconds to start, each query after that tenths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from spark_connector.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final = {
    # A virtual machine that lives for a minute gains nothing from its second compiler, which costs most of its start.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

HOME: Final = Path(__file__).parent
PATIENCE_S: Final = 1200
"""A virtual machine and a worker for each step of planning start on whatever the machine has left over."""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Whoever starts Spark waits for it, and the first test of the room waits for the session too."""
    for item in items:
        if item.path.is_relative_to(HOME) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PATIENCE_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2]`, tuned. A test that changes a setting sets it back."""
    home = tmp_path_factory.mktemp("spark")
    started = session(
        "tests",
        "local[2]",
        settings={
            **SETTINGS,
            "spark.local.dir": str(home / "local"),
            "spark.sql.warehouse.dir": str(home / "warehouse"),
        },
    )
    yield started
    started.stop()
