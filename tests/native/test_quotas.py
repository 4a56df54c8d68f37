"""Clients of every transport are under the same quotas."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    QuotaAlteration,
    QuotaEntity,
    QuotaOperation,
)
from appliance_client import Admin, Consumer, Producer
from tests.lane.lane_client import LaneClient, api_versions, fetch
from tests.native.transports import TRANSPORTS, served_on_all
from tests.support.wire import WireSocket
from tests.system.raw import ask

RATE: Final = 300_000
SIZE: Final = 50_000
RECORDS: Final = 84
"""More than may be used in one window (11 seconds), and less than in two."""
AT_LEAST_S: Final = 5.0
AT_MOST_S: Final = 40.0
TOPIC: Final = "limited"
FILLED: Final = "filled"
"""Has its records before the quotas are there, so that producers and consumers are limited at the same time."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with served_on_all(tmp_path_factory.mktemp("q")) as served:
        with Admin(bootstrap_servers=served["tcp"]) as admin:
            admin.create_topic(TOPIC, 1)
            admin.create_topic(FILLED, 1)
        took_to_produce(served["tcp"], "filler", FILLED)
        yield served


def limit(address: str, client_ids: list[str]) -> None:
    operations = (
        QuotaOperation("producer_byte_rate", float(RATE)),
        QuotaOperation("consumer_byte_rate", float(RATE)),
    )
    entries = tuple(QuotaAlteration((QuotaEntity("client-id", each),), operations) for each in client_ids)
    with WireSocket(int(address.rpartition(":")[2]), timeout_s=30) as connection:
        done = ask(connection, ApiKey.ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest(entries))
    assert not any(each.error_code for each in done.entries)


def took_to_produce(address: str, client_id: str, topic: str = TOPIC) -> float:
    began = time.monotonic()
    with Producer(bootstrap_servers=address, client_id=client_id, delivery_timeout_ms=60_000) as producer:
        producer.send(topic, b"first", partition=0).get(AT_MOST_S)
        futures = [producer.send(topic, bytes(SIZE), partition=0) for _ in range(RECORDS)]
        for future in futures:
            future.get(AT_MOST_S)
    return time.monotonic() - began


def took_to_consume(address: str, client_id: str) -> float:
    began, left = time.monotonic(), RECORDS
    with Consumer(bootstrap_servers=address, client_id=client_id) as consumer:
        consumer.assign([(FILLED, 0)])
        consumer.seek_to_beginning()
        while left > 0:
            assert time.monotonic() < began + AT_MOST_S
            for found in consumer.poll(200).values():
                left -= sum(len(record.value) == SIZE for record in found)
    return time.monotonic() - began


def times(places: dict[str, str], took: Callable[[str, str], float]) -> dict[str, float]:
    """How long it took by transport, all at the same time, each with its own client id; `tcp` again without a quota."""
    clients = {each: (places[each], f"limited-{each}") for each in TRANSPORTS}
    if took is took_to_consume:
        clients.pop("shm", None)  # it reads the files, and does not ask the broker
    clients["free"] = (places["tcp"], "free")
    with ThreadPoolExecutor(len(clients)) as pool:
        found = {name: pool.submit(took, *client) for name, client in clients.items()}
        return {name: future.result() for name, future in found.items()}


def test_clients_of_every_transport_are_throttled_and_others_are_not(places: dict[str, str]) -> None:
    limit(places["tcp"], [f"limited-{each}" for each in TRANSPORTS])
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(times, places, took) for took in (took_to_produce, took_to_consume)]
    for each in both:
        measured = each.result()
        print(measured)
        free = measured.pop("free")
        assert free < AT_LEAST_S
        assert min(measured.values()) > AT_LEAST_S


@pytest.mark.parametrize("transport", [each for each in TRANSPORTS if each == "shm"])
def test_a_lane_that_fetches_over_its_quota_gets_an_empty_answer_and_waits(
    places: dict[str, str], transport: str
) -> None:
    limit(places["tcp"], ["lane"])
    with LaneClient(Path(places[transport].removeprefix("shm://"))) as client:
        client.ask(api_versions())
        answers = [client.ask(fetch(FILLED, 0, max_bytes=2_000_000)) for _ in range(2)]
        began = time.monotonic()
        sizes = [len(answer) for answer in answers]
        throttle_ms = struct.unpack_from(">i", answers[1], 4)[0]
        assert sizes[0] > 1_500_000
        assert sizes[1] < 100
        assert throttle_ms > 500
        client.ask(api_versions())
        assert time.monotonic() - began > throttle_ms / 1_000 - 0.3
