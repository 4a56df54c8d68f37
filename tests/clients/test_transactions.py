"""Transactions by every library that has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.adapters.driver_process import end_idle_drivers
from tests.clients.transaction_scenarios import TransactionScenario, transaction_cells
from tests.clients.transactional.aiokafka import AiokafkaTransactions
from tests.clients.transactional.confluent import ConfluentTransactions
from tests.clients.transactional.drivers import (
    FranzGoTransactions,
    Java3Transactions,
    JavaTransactions,
    KafkajsTransactions,
)
from tests.clients.transactional.kafka_python import KafkaPythonTransactions
from tests.clients.transactional.native import NativeTransactions
from tests.support.judge import ENDS_AT_ONCE, running_broker


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfluentTransactions]:
    """A broker that aborts transactions as soon as their time is over."""
    with running_broker(tmp_path_factory.mktemp("transactions") / "data", ENDS_AT_ONCE) as broker:
        yield ConfluentTransactions(broker.address)
        end_idle_drivers()


@pytest.mark.parametrize("scenario", transaction_cells(ConfluentTransactions))
def test_confluent_kafka(scenario: TransactionScenario, witness: ConfluentTransactions) -> None:
    scenario.play(ConfluentTransactions, witness)


@pytest.mark.parametrize("scenario", transaction_cells(KafkaPythonTransactions))
def test_kafka_python(scenario: TransactionScenario, witness: ConfluentTransactions) -> None:
    scenario.play(KafkaPythonTransactions, witness)


@pytest.mark.parametrize("scenario", transaction_cells(AiokafkaTransactions))
def test_aiokafka(scenario: TransactionScenario, witness: ConfluentTransactions) -> None:
    scenario.play(AiokafkaTransactions, witness)


@pytest.mark.parametrize("scenario", transaction_cells(KafkajsTransactions))
def test_kafkajs(scenario: TransactionScenario, witness: ConfluentTransactions) -> None:
    scenario.play(KafkajsTransactions, witness)


@pytest.mark.parametrize("scenario", transaction_cells(JavaTransactions))
def test_java(scenario: TransactionScenario, witness: ConfluentTransactions) -> None:
    scenario.play(JavaTransactions, witness)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", transaction_cells(Java3Transactions))
def test_java_of_version_1(scenario: TransactionScenario, witness: ConfluentTransactions) -> None:
    scenario.play(Java3Transactions, witness)


@pytest.mark.parametrize("scenario", transaction_cells(NativeTransactions))
def test_native(scenario: TransactionScenario, witness: ConfluentTransactions) -> None:
    scenario.play(NativeTransactions, witness)


@pytest.mark.parametrize("scenario", transaction_cells(FranzGoTransactions))
def test_franz_go(scenario: TransactionScenario, witness: ConfluentTransactions) -> None:
    scenario.play(FranzGoTransactions, witness)
