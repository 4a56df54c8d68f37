"""aiokafka: the oldest protocol versions of all, none of them flexible."""

from __future__ import annotations

import pytest

from tests.clients.adapters.aiokafka import AiokafkaClient
from tests.clients.play import Stage
from tests.clients.scenarios import Scenario, cells


@pytest.mark.parametrize("scenario", cells(AiokafkaClient))
def test_aiokafka(scenario: Scenario, stage: Stage) -> None:
    scenario.play(AiokafkaClient, stage)
