"""What no request can carry is an error of the call: the client goes on, and nothing waits for ever."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from appliance_client import Admin, Consumer, Producer
from appliance_client.errors import BrokerError, ClosedError, SerializationError
from tests.native.transports import served_on_all

PATIENCE_S = 60.0
_numbers = count(1)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Where one broker is reached, by transport."""
    with served_on_all(tmp_path_factory.mktemp("u")) as served:
        yield served


def create(address: str, topic: str) -> str:
    with Admin(bootstrap_servers=address) as admin:
        admin.create_topic(topic, 4)
    return topic


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"timestamp_ms": 1.5}, "no whole number"),
        ({"timestamp_ms": 2**63}, "64 bits"),
        ({"headers": [("\ud800", b"v")]}, "headers"),
        ({"headers": [("n", 5)]}, "headers"),
        ({"headers": [("n", "text")]}, "headers"),
        ({"headers": [(b"n", b"v")]}, "headers"),
        ({"headers": 5}, "headers"),
        ({"partition": 1.5}, "has partitions 0 to 3"),
        ({"partition": "0"}, "has partitions 0 to 3"),
    ],
)
def test_a_record_that_cannot_be_sent_is_refused_and_the_producer_goes_on(
    places: dict[str, str], how: dict[str, Any], says: str
) -> None:
    topic = create(places["tcp"], f"native-{os.getpid()}-{next(_numbers)}")
    with Producer(bootstrap_servers=places["tcp"]) as producer:
        with pytest.raises(SerializationError, match=says):
            producer.send(topic, b"value", **how)
        producer.send(topic, b"next", headers={"n": bytearray(b"v")}).get(PATIENCE_S)


@pytest.mark.parametrize("chosen", [-1, 4, 10**9, None, 1.5, "x"])
def test_a_partitioner_that_names_no_partition_is_an_error_of_its_record(
    places: dict[str, str], chosen: Any
) -> None:
    topic = create(places["tcp"], f"native-{os.getpid()}-{next(_numbers)}")
    with Producer(bootstrap_servers=places["tcp"], partitioner=lambda *_: chosen) as producer:
        with pytest.raises(SerializationError, match="has partitions 0 to 3"):
            producer.send(topic, b"value")
        with pytest.raises(SerializationError, match="has partitions 0 to 3"):
            producer.send_arrow(topic, pa.table({"value": ["a"]}))
        producer.send(topic, b"next", partition=0).get(PATIENCE_S)


@pytest.mark.parametrize("name", [None, b"bytes", "\ud800", "a" * 70_000, ""])
def test_a_name_that_no_topic_can_have_is_refused_and_the_client_learns_other_topics(
    places: dict[str, str], name: Any
) -> None:
    topic = create(places["tcp"], f"native-{os.getpid()}-{next(_numbers)}")
    with Producer(bootstrap_servers=places["tcp"], max_block_ms=5_000) as producer:
        with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
            producer.send(name, b"value")
        producer.send(topic, b"value").get(PATIENCE_S)
    with Consumer(bootstrap_servers=places["tcp"], group_id="names") as consumer:
        with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
            consumer.assign([(name, 0)])
        with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
            consumer.subscribe([name])


def _fail() -> None:
    raise RuntimeError("a defect of the client")


def test_records_fail_when_the_thread_of_their_producer_has_failed(places: dict[str, str]) -> None:
    topic = create(places["tcp"], f"native-{os.getpid()}-{next(_numbers)}")
    with Producer(bootstrap_servers=places["tcp"], linger_ms=60_000) as producer:
        sent = producer.send(topic, b"value")
        producer._io.submit(_fail)
        with pytest.raises(ClosedError):
            sent.get(PATIENCE_S)
        with pytest.raises(ClosedError):
            producer.send(topic, b"value")


@pytest.mark.parametrize("partition", [1.5, 9, -1])
def test_a_table_goes_to_the_partition_that_is_named_or_nowhere(
    places: dict[str, str], partition: Any
) -> None:
    topic = create(places["tcp"], f"native-{os.getpid()}-{next(_numbers)}")
    with Producer(bootstrap_servers=places["tcp"]) as producer:
        with pytest.raises(SerializationError, match="has partitions 0 to 3"):
            producer.send_arrow(topic, pa.table({"value": ["a"]}), partition=partition)
        sent = producer.send_arrow(topic, pa.table({"value": ["a"] * 9}), partition=np.int64(3))  # type: ignore[arg-type]
        assert [place.partition for place in sent.get(PATIENCE_S)] == [3]


def test_a_header_name_that_is_no_text_can_be_sent_on_as_it_was_read(places: dict[str, str]) -> None:
    topic = create(places["tcp"], f"native-{os.getpid()}-{next(_numbers)}")
    headers = (("\udcff", b"v"),)
    with Producer(bootstrap_servers=places["tcp"]) as producer:
        producer.send(topic, b"value", headers=headers, partition=0).get(PATIENCE_S)
    with Consumer(bootstrap_servers=places["tcp"], auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert next(consumer).headers == headers
