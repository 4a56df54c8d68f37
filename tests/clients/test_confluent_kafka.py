"""confluent-kafka: librdkafka of today."""

from __future__ import annotations

import pytest

from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.play import Stage
from tests.clients.scenarios import Scenario, cells


@pytest.mark.parametrize("scenario", cells(ConfluentClient))
def test_confluent_kafka(scenario: Scenario, stage: Stage) -> None:
    scenario.play(ConfluentClient, stage)
