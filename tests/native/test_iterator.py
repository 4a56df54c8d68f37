"""The iterator of a consumer beside its other calls: no record is given twice or left out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from appliance_client import Admin, Consumer, OffsetAndMetadata, TopicPartition, aio
from appliance_client.errors import OptionError
from tests.native.numbered import PATIENCE_S, fill, read
from tests.native.transports import served_on_all

_numbers = count(1)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bootstrap address of a broker."""
    with served_on_all(tmp_path_factory.mktemp("i")) as served:
        yield served["tcp"]


@pytest.fixture
def topic(address: str) -> str:
    """A topic of four partitions."""
    name = f"iterated-{os.getpid()}-{next(_numbers)}"
    with Admin(bootstrap_servers=address) as admin:
        admin.create_topic(name, 4)
    return name


def _iterating(address: str, topic: str) -> Consumer:
    fill(address, topic, 80)
    consumer = Consumer(bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([(topic, 0)])
    return consumer


def test_a_seek_within_an_iteration_counts_at_once(address: str, topic: str) -> None:
    place = TopicPartition(topic, 0)
    with _iterating(address, topic) as consumer:
        found = [next(consumer).offset for _ in range(3)]
        assert consumer.position(place) == 3
        consumer.seek(place, 15)
        found += [next(consumer).offset for _ in range(3)]
        consumer.seek_to_beginning(place)
        assert [*found, next(consumer).offset] == [0, 1, 2, 15, 16, 17, 0]


def test_a_poll_goes_on_behind_the_record_that_the_iterator_gave_last(address: str, topic: str) -> None:
    with _iterating(address, topic) as consumer:
        assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]
        assert read(consumer, 17) == [b"%d" % (4 * number) for number in range(3, 20)]


def test_an_assignment_within_an_iteration_counts_at_once(address: str, topic: str) -> None:
    with _iterating(address, topic) as consumer:
        next(consumer)
        consumer.assign([(topic, 1)])
        assert (next(consumer).partition, next(consumer).partition) == (1, 1)


def test_the_asyncio_iterator_follows_a_seek_and_gives_the_rest_to_a_poll(address: str, topic: str) -> None:
    fill(address, topic, 80)

    async def run() -> tuple[list[int], int]:
        place = TopicPartition(topic, 0)
        async with aio.Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
            consumer.assign([place])
            found = [(await anext(consumer)).offset]
            consumer.seek(place, 15)
            found.append((await anext(consumer)).offset)
            polled = await consumer.poll(PATIENCE_S * 1000)
            return found, polled[place][0].offset

    assert asyncio.run(run()) == ([0, 15], 16)


@pytest.mark.parametrize("offset", [-5, "5", 5.0, 2**63, None])
def test_a_seek_or_commit_to_what_is_no_offset_is_refused(address: str, topic: str, offset: Any) -> None:
    place = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=address, group_id="offsets", enable_auto_commit=False) as consumer:
        consumer.assign([place])
        with pytest.raises(OptionError, match="no offset"):
            consumer.seek(place, offset)
        with pytest.raises(OptionError, match="no offset"):
            consumer.commit({place: offset})
        consumer.commit({place: OffsetAndMetadata(3, "a note")})
        assert consumer.committed(place)[place] == OffsetAndMetadata(3, "a note")
