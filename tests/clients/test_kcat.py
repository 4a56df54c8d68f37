"""kcat: an old librdkafka on purpose, with the compression trap of every release before 2.11.1."""

from __future__ import annotations

import pytest

from tests.clients.adapters.kcat import KcatClient
from tests.clients.play import Stage
from tests.clients.scenarios import Scenario, cells


@pytest.mark.parametrize("scenario", cells(KcatClient))
def test_kcat(scenario: Scenario, stage: Stage) -> None:
    scenario.play(KcatClient, stage)
