"""appliance_client: the native client, over TCP and, where the broker has them, over ZeroMQ and shared memory."""

from __future__ import annotations

import pytest

from tests.clients.adapters.native import NativeClient, NativeShmClient, NativeZeroMqClient
from tests.clients.play import Stage
from tests.clients.scenarios import Scenario, cells
from tests.clients.transaction_scenarios import TransactionScenario, transaction_cells
from tests.clients.transactional.confluent import ConfluentTransactions
from tests.clients.transactional.native import NativeShmTransactions, NativeZeroMqTransactions
from tests.support.judge import JUDGE


@pytest.mark.parametrize("scenario", cells(NativeClient))
def test_native(scenario: Scenario, stage: Stage) -> None:
    scenario.play(NativeClient, stage)


if JUDGE != "kafka":

    @pytest.mark.parametrize("scenario", cells(NativeZeroMqClient))
    def test_native_over_zeromq(scenario: Scenario, stage: Stage) -> None:
        scenario.play(NativeZeroMqClient, stage)

    @pytest.mark.parametrize("scenario", transaction_cells(NativeZeroMqTransactions))
    def test_transactions_over_zeromq(scenario: TransactionScenario, stage: Stage) -> None:
        scenario.play(NativeZeroMqTransactions, ConfluentTransactions(stage.address))

    @pytest.mark.parametrize("scenario", cells(NativeShmClient))
    def test_native_over_shared_memory(scenario: Scenario, stage: Stage) -> None:
        scenario.play(NativeShmClient, stage)

    @pytest.mark.parametrize("scenario", transaction_cells(NativeShmTransactions))
    def test_transactions_over_shared_memory(scenario: TransactionScenario, stage: Stage) -> None:
        scenario.play(NativeShmTransactions, ConfluentTransactions(stage.address))
