"""kafka-python 3: pure Python, idempotent by default, Kafka's newest protocol versions."""

from __future__ import annotations

import pytest

from tests.clients.adapters.kafka_python import KafkaPythonClient
from tests.clients.play import Stage
from tests.clients.scenarios import Scenario, cells


@pytest.mark.parametrize("scenario", cells(KafkaPythonClient))
def test_kafka_python(scenario: Scenario, stage: Stage) -> None:
    scenario.play(KafkaPythonClient, stage)
