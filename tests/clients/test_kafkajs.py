"""KafkaJS: the Node.js client, below its group API."""

from __future__ import annotations

import pytest

from tests.clients.adapters.kafkajs import KafkajsClient
from tests.clients.play import Stage
from tests.clients.scenarios import Scenario, cells


@pytest.mark.parametrize("scenario", cells(KafkajsClient))
def test_kafkajs(scenario: Scenario, stage: Stage) -> None:
    scenario.play(KafkajsClient, stage)
