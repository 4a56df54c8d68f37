"""The sync and the asyncio face against a real broker: what no scenario of tests/clients asks."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer

from appliance_client import Admin, Consumer, Producer, RebalanceListener, TopicPartition, aio
from appliance_client.errors import (
    BufferFullError,
    ClosedError,
    ForkedError,
    IllegalStateError,
    NoOffsetError,
    SerializationError,
    TimedOutError,
)
from appliance_client.kernel import partition_of_key
from tests.native.numbered import PATIENCE_S, fill, read
from tests.native.transports import TRANSPORTS, served_on_all
from tests.support.judge import QUICK_GROUPS

_numbers = count(1)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Where one broker is reached, by transport."""
    with served_on_all(tmp_path_factory.mktemp("n"), QUICK_GROUPS) as served:
        yield served


@pytest.fixture(scope="module", params=TRANSPORTS)
def address(request: pytest.FixtureRequest, places: dict[str, str]) -> str:
    """A bootstrap address of the native client."""
    return places[request.param]


@pytest.fixture
def tcp(places: dict[str, str]) -> str:
    """The same broker, for other clients."""
    return places["tcp"]


@pytest.fixture
def topic(address: str) -> str:
    """A topic of four partitions."""
    return create(address, f"native-{os.getpid()}-{next(_numbers)}")


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def create(address: str, topic: str) -> str:
    with Admin(bootstrap_servers=address) as admin:
        admin.create_topic(topic, 4)
    return topic


def fill_up(producer: Producer, topic: str) -> None:
    for _ in range(1_000):
        producer.send(topic, b"x" * 100, partition=0)


# ── producer ─────────────────────────────────────────────────────────────────────────────────────────────


def test_keys_go_where_librdkafkas_murmur2_sends_them(address: str, tcp: str, topic: str) -> None:
    fill(address, topic, 1)
    told: dict[bytes | None, int | None] = {}
    theirs = ConfluentProducer({"bootstrap.servers": tcp, "partitioner": "murmur2_random"})
    keys = [b"key-%d" % number for number in range(200)] + [b"", b"\xff\x00"]
    for key in keys:
        theirs.produce(
            topic,
            b"x",
            key,
            on_delivery=lambda _error, message: told.update({message.key(): message.partition()}),
        )
    theirs.flush(PATIENCE_S)
    with Producer(bootstrap_servers=address) as ours:
        futures = {key: ours.send(topic, b"x", key) for key in keys}
        assert {key: future.get(PATIENCE_S).partition for key, future in futures.items()} == told
    assert {key: partition_of_key(key, 4) for key in keys} == told


def test_records_without_keys_stick_to_a_partition_and_reach_all_of_them(address: str, topic: str) -> None:
    with Producer(bootstrap_servers=address, batch_size=1_000) as producer:
        futures = [producer.send(topic, b"x" * 50) for _ in range(2_000)]
        partitions = [future.get(PATIENCE_S).partition for future in futures]
    changes = sum(1 for one, other in pairwise(partitions) if one != other)
    assert set(partitions) == {0, 1, 2, 3}
    assert changes < 400, "about thirteen records fill a batch of 1,000 bytes"


def test_interceptors_see_every_record_first_and_its_end_last(address: str, topic: str) -> None:
    seen: list[object] = []

    class Stamp:
        def on_send(self, record: object) -> object:
            record.value = record.value + "!"  # type: ignore[attr-defined]
            return record

        def on_acknowledgement(self, metadata: object, error: object) -> None:
            seen.append((metadata.offset, error))  # type: ignore[attr-defined]

        def close(self) -> None:
            seen.append("closed")

    with Producer(bootstrap_servers=address, interceptors=[Stamp()], value_serializer=str.encode) as producer:
        producer.send(topic, "hello", partition=0).get(PATIENCE_S)
    with Consumer(bootstrap_servers=address, value_deserializer=bytes.decode) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        assert read(consumer, 1) == ["hello!"]
    assert seen == [(0, None), "closed"]


class Watches:
    """A consumer's interceptor: marks values, leaves some out, and notes what it is told."""

    def __init__(self, name: str, seen: list[object]) -> None:
        self.name = name
        self.seen = seen

    def on_consume(self, records: dict[TopicPartition, list[Any]]) -> dict[TopicPartition, list[Any]]:
        for each in records.values():
            for record in each:
                record.value += self.name
        return {place: [r for r in each if not r.value.startswith("drop")] for place, each in records.items()}

    def on_commit(self, offsets: dict[TopicPartition, Any]) -> None:
        self.seen.append((self.name, {place.partition: at.offset for place, at in offsets.items()}))

    def close(self) -> None:
        self.seen.append((self.name, "closed"))


class Raises:
    """One that does not work: nothing of it shows."""

    def on_consume(self, _records: object) -> object:
        raise ValueError("on_consume")

    def on_commit(self, _offsets: object) -> None:
        raise ValueError("on_commit")

    def close(self) -> None:
        raise ValueError("close")


def test_interceptors_of_a_consumer_see_records_before_it_gives_them_and_offsets_that_are_committed(
    address: str, topic: str
) -> None:
    seen: list[object] = []
    with Producer(bootstrap_servers=address, value_serializer=str.encode) as producer:
        for value in ("keep 0", "drop 1", "keep 2", "drop 3"):
            producer.send(topic, value, partition=0).get(PATIENCE_S)
    options: dict[str, Any] = {
        "bootstrap_servers": address,
        "group_id": topic,
        "auto_offset_reset": "earliest",
        "value_deserializer": bytes.decode,
        "interceptors": [Watches("?", seen), Raises(), object(), Watches("!", seen)],
        "enable_auto_commit": False,
    }
    place = TopicPartition(topic, 0)
    with Consumer(**options) as consumer:
        consumer.assign([place])
        assert read(consumer, 2) == ["keep 0?!", "keep 2?!"]
        while consumer.position(place) < 4:
            consumer.poll(100)
        consumer.commit()
        with pytest.raises(IllegalStateError, match="interceptors see records"):
            consumer.poll_arrow(0)
    assert seen == [("?", {0: 4}), ("!", {0: 4}), ("?", "closed"), ("!", "closed")]

    async def play() -> list[Any]:
        found = []
        async with aio.Consumer(**options) as consumer:
            consumer.assign([place])
            consumer.seek(place, 1)
            async for record in consumer:
                found.append(record.value)
                await consumer.commit()
                return found
        return found

    seen.clear()
    assert asyncio.run(play()) == ["keep 2?!"]
    assert seen[0][1] in ({0: 3}, {0: 4})  # type: ignore[index]
    assert seen[-2:] == [("?", "closed"), ("!", "closed")]


def test_a_commit_that_fails_is_no_commit_for_interceptors(address: str, topic: str) -> None:
    seen: list[object] = []
    options: dict[str, Any] = {"bootstrap_servers": address, "group_id": topic, "enable_auto_commit": False}
    with Consumer(**options, interceptors=[Watches("?", seen)]) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(TimedOutError):
            consumer.commit({TopicPartition(topic, 77): 5}, timeout_ms=2_000)
        consumer.commit({TopicPartition(topic, 0): 0})
        committed = threading.Event()
        consumer.commit_async({TopicPartition(topic, 1): 0}, lambda _offsets, _error: committed.set())
        assert committed.wait(PATIENCE_S)
    assert seen == [("?", {0: 0}), ("?", {1: 0}), ("?", "closed")]


def test_a_full_buffer_holds_up_the_caller_for_max_block_ms_and_no_longer(
    address: str, topic: str, nobody: str
) -> None:
    with Producer(bootstrap_servers=address) as known:
        known.send(topic, b"x").get(PATIENCE_S)
        topics = dict(known._core.metadata.topics)
    producer = Producer(bootstrap_servers=nobody, max_block_ms=300, buffer_memory=10_000)
    producer._core.metadata.topics.update(topics)
    begin = time.monotonic()
    with pytest.raises(BufferFullError):
        fill_up(producer, topic)
    assert time.monotonic() - begin >= 0.3
    producer.close(0)


def test_close_ends_though_no_broker_answers(nobody: str) -> None:
    producer = Producer(bootstrap_servers=nobody, max_block_ms=200)
    with pytest.raises(TimedOutError):
        producer.send("topic", b"x")
    consumer = Consumer("topic", bootstrap_servers=nobody, group_id="g")
    consumer.poll(50)
    begin = time.monotonic()
    producer.close(0.2)
    consumer.close(200)
    assert time.monotonic() - begin < 10
    with pytest.raises(ClosedError):
        producer.send("topic", b"x")
    with pytest.raises(ClosedError):
        consumer.poll(0)


def test_what_is_forgotten_ends_without_a_wait_and_says_so(nobody: str) -> None:
    producer = Producer(bootstrap_servers=nobody)
    thread = producer._io._thread
    waits: list[object] = []
    thread.join = waits.append  # type: ignore[method-assign,assignment]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del producer
        gc.collect()
    assert waits == []
    assert any(each.category is ResourceWarning for each in caught)
    threading.Thread.join(thread, PATIENCE_S)
    assert not thread.is_alive()


def test_a_forked_child_is_told_and_does_the_parent_no_harm(address: str, topic: str) -> None:
    with Producer(bootstrap_servers=address) as producer:
        producer.send(topic, b"before", partition=0).get(PATIENCE_S)
        child = os.fork()
        if not child:
            try:
                producer.send(topic, b"child", partition=0)
            except ForkedError:
                producer.close()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert producer.send(topic, b"after", partition=0).get(PATIENCE_S).offset == 1


def test_many_threads_may_send(address: str, topic: str) -> None:
    with Producer(bootstrap_servers=address, linger_ms=1) as producer:
        offsets: list[int] = []

        def send() -> None:
            futures = [producer.send(topic, b"x", partition=0) for _ in range(500)]
            offsets.extend(future.get(PATIENCE_S).offset for future in futures)

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(offsets) == list(range(2_000))


# ── consumer ─────────────────────────────────────────────────────────────────────────────────────────────


class Listening(RebalanceListener):
    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        self.calls.append(("assigned", [each.partition for each in assigned]))

    def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        self.calls.append(("revoked", [each.partition for each in revoked]))


def settled(consumers: Sequence[Consumer], shares: list[int]) -> bool:
    """Poll all of them until their numbers of partitions are `shares`."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for consumer in consumers:
            consumer.poll(50)
        if sorted(len(each.assignment()) for each in consumers) == shares:
            return True
    return False


@pytest.mark.parametrize(
    ("protocol", "strategy", "shares"),
    [
        ("classic", "range", [2, 2]),
        ("classic", "roundrobin", [2, 2]),
        ("classic", "sticky", [2, 2]),
        ("classic", "cooperative-sticky", [2, 2]),
        ("classic", "broadcast", [4, 4]),
        ("consumer", "range", [2, 2]),
    ],
)
def test_two_members_share_and_the_last_one_takes_over(
    address: str, topic: str, protocol: str, strategy: str, shares: list[int]
) -> None:
    fill(address, topic, 8)
    options: dict[str, Any] = {
        "bootstrap_servers": address,
        "group_id": topic,
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
    }
    if protocol == "classic":  # in the other one the broker decides these
        options |= {
            "partition_assignment_strategy": strategy,
            "heartbeat_interval_ms": 200,
            "session_timeout_ms": 10_000,
        }
    first, second = Consumer(topic, **options), Consumer(topic, **options)
    try:
        assert settled([first, second], shares)
        together = first.assignment() | second.assignment()
        assert {each.partition for each in together} == {0, 1, 2, 3}
        first.close()
        assert settled([second], [4])
    finally:
        first.close()
        second.close()


def test_a_cooperative_member_keeps_what_it_need_not_give_up(address: str, topic: str) -> None:
    fill(address, topic, 4)
    options: dict[str, Any] = {
        "bootstrap_servers": address,
        "group_id": topic,
        "partition_assignment_strategy": "cooperative-sticky",
        "heartbeat_interval_ms": 200,
    }
    heard = Listening()
    first = Consumer(**options)
    second = Consumer(**options)
    try:
        first.subscribe([topic], listener=heard)
        assert settled([first], [4])
        second.subscribe([topic])
        assert settled([first, second], [2, 2])
    finally:
        first.close()
        second.close()
    given_up = [partitions for kind, partitions in heard.calls if kind == "revoked"]
    assert [len(each) for each in given_up] == [2], "only what went to the second member was revoked"


def test_what_was_handed_out_is_committed_when_the_consumer_closes(address: str, topic: str) -> None:
    fill(address, topic, 40)
    options: dict[str, Any] = {
        "bootstrap_servers": address,
        "group_id": topic,
        "auto_offset_reset": "earliest",
    }
    with Consumer(topic, **options) as consumer:
        got: list[Any] = []
        for record in consumer:
            got.append(record.value)
            if len(got) == 15:
                break
    with Consumer(topic, **options) as consumer:
        got += read(consumer, 25)
    assert sorted(got) == sorted(b"%d" % number for number in range(40))


def test_a_consumer_that_does_not_poll_leaves_its_group(address: str, topic: str) -> None:
    fill(address, topic, 4)
    options: dict[str, Any] = {"bootstrap_servers": address, "group_id": topic, "heartbeat_interval_ms": 200}
    stuck = Consumer(topic, max_poll_interval_ms=1_500, **options)
    lively = Consumer(**options)
    try:
        assert settled([stuck], [4])
        lively.subscribe([topic])
        assert settled([lively], [4])
    finally:
        stuck.close()
        lively.close()


def test_paused_partitions_are_not_handed_out(address: str, topic: str) -> None:
    fill(address, topic, 8)
    places = [TopicPartition(topic, number) for number in range(2)]
    with Consumer(bootstrap_servers=address) as consumer:
        consumer.assign(places)
        consumer.pause(places[0])
        consumer.seek_to_beginning()
        assert sorted(read(consumer, 2)) == [b"1", b"5"]
        assert consumer.poll(300) == {}
        consumer.resume(places[0])
        assert sorted(read(consumer, 2)) == [b"0", b"4"]


def test_a_pattern_finds_topics_that_are_created_later(address: str, topic: str) -> None:
    fill(address, create(address, f"{topic}-a"), 4)
    with Consumer(
        bootstrap_servers=address, group_id=topic, auto_offset_reset="earliest", metadata_max_age_ms=500
    ) as consumer:
        consumer.subscribe(pattern=f"{topic}-.*")
        assert len(read(consumer, 4)) == 4
        fill(address, create(address, f"{topic}-b"), 4)
        assert len(read(consumer, 4)) == 4
        assert consumer.subscription() == {f"{topic}-a", f"{topic}-b"}


def test_without_an_offset_and_without_a_reset_the_caller_is_told(address: str, topic: str) -> None:
    fill(address, topic, 1)
    options: dict[str, Any] = {"bootstrap_servers": address, "group_id": topic, "auto_offset_reset": "none"}
    with Consumer(topic, **options) as consumer, pytest.raises(NoOffsetError):
        read(consumer, 1)


def test_confluents_consumer_goes_on_where_the_native_one_has_committed(
    address: str, tcp: str, topic: str
) -> None:
    fill(address, topic, 8)
    with Consumer(topic, bootstrap_servers=address, group_id=topic, auto_offset_reset="earliest") as consumer:
        assert len(read(consumer, 8)) == 8
        consumer.commit()
    fill(address, topic, 4)
    theirs = ConfluentConsumer({"bootstrap.servers": tcp, "group.id": topic, "auto.offset.reset": "earliest"})
    theirs.subscribe([topic])
    deadline = time.monotonic() + PATIENCE_S
    values: list[bytes] = []
    while len(values) < 4 and time.monotonic() < deadline:
        message = theirs.poll(0.5)
        if message is not None and not message.error():
            values.append(message.value() or b"")
    theirs.close()
    assert sorted(values) == [b"0", b"1", b"2", b"3"]


# ── asyncio ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_asyncio_face_writes_reads_commits_and_leaves_no_task_behind(address: str, topic: str) -> None:
    async def talk() -> list[object]:
        before = asyncio.all_tasks()
        async with aio.Producer(bootstrap_servers=address, transactional_id=topic) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            futures = [await producer.send(topic, b"%d" % number) for number in range(100)]
            await producer.commit_transaction()
            for future in futures:
                await future
        values: list[object] = []
        async with aio.Consumer(
            topic,
            bootstrap_servers=address,
            group_id=topic,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            group_protocol="consumer",
        ) as consumer:
            async for record in consumer:
                values.append(record.value)
                if len(values) == 100:
                    break
            await consumer.commit()
            committed = await consumer.committed(*consumer.assignment())
        assert sum(each.offset for each in committed.values() if each is not None) >= 100
        assert asyncio.all_tasks() == before
        return values

    values = asyncio.run(asyncio.wait_for(talk(), PATIENCE_S))
    assert sorted(values) == sorted(b"%d" % number for number in range(100))  # type: ignore[type-var]


@pytest.mark.parametrize("headers", [None, [("a", b"b")]], ids=["short way", "whole way"])
def test_a_time_before_1970_is_refused_because_kafka_means_other_things_by_it(
    address: str, topic: str, headers: list[tuple[str, str | bytes | None]] | None
) -> None:
    with Producer(bootstrap_servers=address) as producer:
        producer.send(topic, b"x", headers=headers, timestamp_ms=0).get(PATIENCE_S)
        with pytest.raises(SerializationError, match="timestamp_ms: -5"):
            producer.send(topic, b"x", headers=headers, timestamp_ms=-5)


def test_a_cancelled_wait_leaves_the_asyncio_producer_usable(address: str, topic: str, nobody: str) -> None:
    async def talk() -> None:
        silent = aio.Producer(bootstrap_servers=nobody)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(silent.send(topic, b"x"), 0.2)
        await silent.close(0)
        async with aio.Producer(bootstrap_servers=address) as producer:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.send(topic, b"cancelled before it was sent", partition=0), 0)
            assert (await (await producer.send(topic, b"x", partition=0))).offset == 0

    asyncio.run(asyncio.wait_for(talk(), PATIENCE_S))
