"""The sync and the asyncio face have the same members, with the same arguments: who knows one knows the other."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest

import appliance_client
from appliance_client import OffsetAndMetadata, TopicPartition, aio
from appliance_client.reading import Chunk, Reading
from tests.native.test_arrow_units import batch_of


def members(face: type[Any]) -> dict[str, Any]:
    """Public members, and the special ones that a program calls by a statement."""
    own = {name: each for name, each in vars(face).items() if not name.startswith("_")}
    return own | {"__init__": face.__init__}


def arguments(call: Any) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(call).parameters.values()]


@pytest.mark.parametrize("name", aio.__all__)
def test_both_faces_have_the_same_members(name: str) -> None:
    sync, other = members(getattr(appliance_client, name)), members(getattr(aio, name))
    assert sorted(sync) == sorted(other)
    for member, ours in sync.items():
        theirs = other[member]
        assert isinstance(ours, property) == isinstance(theirs, property), member
        if callable(ours):
            assert arguments(ours) == arguments(theirs), member


@pytest.mark.parametrize("name", aio.__all__)
def test_both_faces_are_used_by_the_same_statements(name: str) -> None:
    sync, other = getattr(appliance_client, name), getattr(aio, name)
    for one, twin in (
        ("__enter__", "__aenter__"),
        ("__exit__", "__aexit__"),
        ("__iter__", "__aiter__"),
        ("__next__", "__anext__"),
        ("__del__", "__del__"),
    ):
        assert hasattr(sync, one) == hasattr(other, twin), one


def test_the_position_within_a_loop_is_the_loops_in_both_faces() -> None:
    """The iterator takes more than it gives."""
    data = batch_of(0, b"a", b"b", b"c")
    place = TopicPartition("t", 3)
    nowhere: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1"}
    with appliance_client.Consumer(**nowhere) as consumer:
        consumer.assign([place])
        give(consumer._consumer.fetching.readings[place], data)
        assert next(consumer).value == b"a"
        assert consumer.position(place) == 1

    async def play() -> None:
        async with aio.Consumer(**nowhere) as consumer:
            consumer.assign([place])
            give(consumer._consumer.fetching.readings[place], data)
            assert (await anext(consumer)).value == b"a"
            assert await consumer.position(place) == 1
            assert consumer.highwater(place) is None

    asyncio.run(play())


def give(reading: Reading, data: bytes) -> None:
    """As if this had been fetched."""
    reading.seek(0)
    reading.chunks.append(Chunk(memoryview(data), len(data), ()))
    reading.fetch_offset = 3


def test_what_becomes_of_a_commit_that_nobody_waits_for_is_told_in_both_faces() -> None:
    place = TopicPartition("t", 3)
    told: list[BaseException | None] = []
    done = threading.Event()

    def tell(offsets: object, error: BaseException | None) -> None:
        assert offsets == {place: OffsetAndMetadata(5)}
        told.append(error)
        done.set()

    with appliance_client.Consumer(bootstrap_servers="127.0.0.1:1") as consumer:
        consumer.commit_async({place: 5}, tell)
        assert done.wait(10)

    async def play() -> None:
        async with aio.Consumer(bootstrap_servers="127.0.0.1:1") as consumer:
            consumer.commit_async({place: 5}, tell)
            while len(told) < 2:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(play(), 10))
    assert [str(each) for each in told] == ["commit needs a group.id"] * 2
