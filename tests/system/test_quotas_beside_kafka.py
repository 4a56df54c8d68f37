"""The same requests about quotas: the appliance answers what Apache Kafka answers, and keeps what Kafka keeps."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    QuotaAlteration,
    QuotaEntity,
    QuotaOperation,
)
from appliance.protocol.apis.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaFilterComponent,
)
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import Appliance
from tests.support.wire import PATIENCE_S, WireSocket
from tests.system.raw import ask

REQUESTS: Final = int(os.environ.get("QUOTA_REQUESTS", "500"))
SEED: Final = int(os.environ.get("QUOTA_SEED", "48"))
EVERYTHING: Final = DescribeClientQuotasRequest(())
KEYS: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
VALUES: Final = (512.0, 1024.0, 1048576.0, 100.5, 612.25, 2.0**31, 2.0**62, 2.0**63, 1e19, 0.0, -1.0)
NAMES: Final = {
    "user": (None, None, "alice", "bob", "a b/c*d~e+%41", "<default>", "ü=,\n", "."),
    "client-id": (None, None, "app", "app-2", "x/../y", "<default>"),
    "ip": (None, "127.0.0.1", "10.0.0.7", "::1", "no address at all"),
    "group": ("g", None),
    "": ("x",),
}

Brokers = tuple[Appliance, ApacheKafka]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    appliance = Appliance(tmp_path_factory.mktemp("quotas") / "data")
    kafka = ApacheKafka(tmp_path_factory.mktemp("kafka"))
    try:
        appliance.start()
        kafka.start()
        yield appliance, kafka
    finally:
        appliance.stop()
        kafka.stop()


def random_kinds(chance: random.Random) -> list[str]:
    usual = [["user"], ["client-id"], ["user", "client-id"], ["client-id", "user"], ["ip"]]
    odd: list[list[str]] = [["user", "ip"], ["group"], [""], [], ["user", "user"], ["ip", "client-id"]]
    return chance.choice(odd if chance.random() < 0.12 else usual)


def random_alteration(chance: random.Random) -> QuotaAlteration:
    kinds = random_kinds(chance)
    entity = []
    for kind in kinds:
        name = chance.choice(NAMES[kind])
        entity.append(QuotaEntity(kind, "" if chance.random() < 0.03 else name))
    fitting = KEYS[4:] if kinds == ["ip"] else KEYS[:4]
    operations = []
    for _ in range(chance.choice((1, 1, 1, 2, 3, 0))):
        key = chance.choice((*KEYS, "no_such_key") if chance.random() < 0.1 else fitting)
        value = chance.choice(VALUES[:3] if chance.random() < 0.7 else VALUES)
        operations.append(QuotaOperation(key, value, chance.random() < 0.25))
    return QuotaAlteration(tuple(entity), tuple(operations))


def random_filter(chance: random.Random) -> DescribeClientQuotasRequest:
    components = []
    for kind in random_kinds(chance):
        match_type = chance.choice((0, 0, 0, 1, 2, 2, 3 if chance.random() < 0.1 else 2))
        name = chance.choice(NAMES[kind]) if match_type == 0 or chance.random() < 0.05 else None
        components.append(QuotaFilterComponent(kind, match_type, name))
    return DescribeClientQuotasRequest(tuple(components), chance.random() < 0.4)


def random_request(chance: random.Random) -> tuple[ApiKey, Any]:
    if chance.random() < 0.4:
        return ApiKey.DESCRIBE_CLIENT_QUOTAS, random_filter(chance)
    entries = [random_alteration(chance) for _ in range(chance.choice((1, 1, 1, 2, 4)))]
    if chance.random() < 0.05:
        entries.append(entries[0])
    return ApiKey.ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest(tuple(entries), chance.random() < 0.15)


def seen(response: Any) -> Any:
    """What both must say alike: all but the words of messages, and the order of entities."""
    if isinstance(response, AlterClientQuotasResponse):
        return sorted((parts(each.entity), each.error_code) for each in response.entries)
    assert isinstance(response, DescribeClientQuotasResponse)
    entries = None
    if response.entries is not None:
        entries = sorted(
            (parts(each.entity), sorted((value.key, value.value) for value in each.values))
            for each in response.entries
        )
    return response.error_code, entries


def parts(entity: tuple[QuotaEntity, ...]) -> list[tuple[str, bool, str]]:
    return sorted((each.entity_type, each.entity_name is None, each.entity_name or "") for each in entity)


def everything(connection: WireSocket) -> Any:
    return seen(ask(connection, ApiKey.DESCRIBE_CLIENT_QUOTAS, EVERYTHING))


def kafka_shows(kafka: WireSocket, expected: Any) -> bool:
    """Kafka's controller answers before its broker has read the change."""
    deadline = time.monotonic() + PATIENCE_S
    while everything(kafka) != expected:
        if time.monotonic() > deadline:
            return False
    return True


def test_random_requests_are_answered_alike_and_leave_the_same_quotas(brokers: Brokers) -> None:
    chance = random.Random(SEED)
    codes: set[int] = set()
    found = 0
    # One connection each: the quotas of addresses count for this test, too.
    with (
        WireSocket(brokers[0].port, timeout_s=60) as appliance,
        WireSocket(brokers[1].port, timeout_s=60) as kafka,
    ):
        for number in range(REQUESTS):
            api, request = random_request(chance)
            version = chance.choice((0, 1))
            ours, theirs = (ask(each, api, request, version=version) for each in (appliance, kafka))
            where = f"request {number} of seed {SEED}: {request}\nours: {ours}\nKafka's: {theirs}"
            assert seen(ours) == seen(theirs), where
            if isinstance(ours, AlterClientQuotasResponse):
                codes.update(each.error_code for each in ours.entries)
                assert kafka_shows(kafka, everything(appliance)), where
            else:
                codes.add(ours.error_code)
                found += len(ours.entries or ())
        for name in NAMES["ip"]:
            gone = QuotaAlteration(
                (QuotaEntity("ip", name),), (QuotaOperation("connection_creation_rate", 0.0, True),)
            )
            ask(appliance, ApiKey.ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest((gone,)))
    assert codes == {0, 35, 42}
    assert found > REQUESTS // 10


def test_quotas_are_there_after_a_kill(brokers: Brokers) -> None:
    appliance, _ = brokers
    with WireSocket(appliance.port) as connection:
        entity = (QuotaEntity("user", "after/a kill"), QuotaEntity("client-id", None))
        alteration = QuotaAlteration(entity, (QuotaOperation("request_percentage", 12.5),))
        done = ask(connection, ApiKey.ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest((alteration,)))
        assert done.entries[0].error_code == 0
        before = everything(connection)
    assert len(before[1]) > 1
    appliance.kill()
    appliance.start()
    with WireSocket(appliance.port) as connection:
        assert everything(connection) == before
