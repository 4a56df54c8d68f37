"""How a client ends: closed in the middle of a call, forked, forgotten. No broker is there, so nothing is ever done."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from appliance_client import Admin, Consumer, Producer, RecordFuture, TopicPartition, aio
from appliance_client.core import Core
from appliance_client.errors import ClientError, ClosedError, ForkedError, SerializationError
from appliance_client.network import Leader, Topic
from appliance_client.wire import TopicKey

PATIENCE_S = 20.0
PLACE = TopicPartition("topic", 0)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def know(core: Core) -> None:
    """Have a topic of one partition known."""
    core.metadata.topics["topic"] = Topic(TopicKey("topic", None), [Leader(1, 0)])


def fill_up(producer: Producer) -> RecordFuture:
    """Send until `buffer.memory` is full, and then one more."""
    while True:
        future = producer.send("topic", b"x" * 1000)
        if producer._accumulator.used_bytes > 9_000:
            return producer.send("topic", b"x" * 1000)
        assert not future.done()


def wait_for_room(producer: Producer) -> None:
    fill_up(producer).get()


class Ending(threading.Thread):
    """Calls something, and keeps how that ended."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error

    def ended(self) -> BaseException | None:
        self.join(PATIENCE_S)
        assert not self.is_alive(), "it waits for ever"
        return self.error


# ── closed while another thread waits ────────────────────────────────────────────────────────────────────


def test_a_send_that_waits_for_room_ends_when_the_producer_is_closed(nobody: str) -> None:
    """The close frees all room; what took it then would never be sent, and its future never be done."""
    for _ in range(5):
        producer = Producer(bootstrap_servers=nobody, buffer_memory=10_000, max_block_ms=60_000)
        know(producer._core)
        waiting = Ending(partial(wait_for_room, producer))
        while not producer._accumulator.waiters:
            time.sleep(0.001)
        producer.close(0)
        assert isinstance(waiting.ended(), ClosedError)


def test_a_send_that_comes_while_the_producer_is_closed_has_no_future_that_is_never_done(nobody: str) -> None:
    """Threads that have looked whether the producer is closed, and have not appended yet, when it is closed."""
    producer = Producer(bootstrap_servers=nobody)
    know(producer._core)
    between, closed = threading.Event(), threading.Event()

    class Slow:
        def on_send(self, _record: object) -> None:
            between.set()
            closed.wait(PATIENCE_S)

    producer._intake.close()
    producer._pipeline._interceptors = (Slow(),)
    waiting = Ending(lambda: producer.send("topic", b"late").get())
    assert between.wait(PATIENCE_S)
    producer.close(0)
    closed.set()
    assert isinstance(waiting.ended(), ClosedError)


def test_an_asyncio_send_that_waits_for_room_ends_when_the_producer_is_closed(nobody: str) -> None:
    async def play() -> BaseException | None:
        producer = aio.Producer(bootstrap_servers=nobody, buffer_memory=10_000, max_block_ms=60_000)
        know(producer._core)

        async def fill() -> None:
            while True:
                sent = await producer.send("topic", b"x" * 1000)
                if producer._accumulator.used_bytes > 9_000:
                    await (await producer.send("topic", b"x" * 1000))
                assert not sent.done()

        waiting = asyncio.create_task(fill())
        while not producer._accumulator.waiters:
            await asyncio.sleep(0.001)
        await producer.close(0)
        await asyncio.wait((waiting,), timeout=PATIENCE_S)
        assert waiting.done(), "it waits for ever"
        return waiting.exception()

    assert isinstance(asyncio.run(play()), ClosedError)


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.poll(60_000),
        lambda consumer: consumer.commit({PLACE: 1}),
        lambda consumer: consumer.committed(PLACE),
        lambda consumer: consumer.end_offsets([PLACE]),
        lambda consumer: consumer.partitions_for_topic("topic"),
        lambda consumer: consumer.position(PLACE),
    ],
    ids=["poll", "commit", "committed", "end_offsets", "partitions_for_topic", "position"],
)
def test_a_call_of_a_consumer_ends_when_another_thread_closes_it(
    nobody: str, call: Callable[[Consumer], Any]
) -> None:
    consumer = Consumer(bootstrap_servers=nobody, group_id="g")
    consumer.assign([PLACE])
    waiting = Ending(lambda: call(consumer))
    time.sleep(0.1)
    consumer.close(0)
    assert isinstance(waiting.ended(), ClosedError)


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer, _: consumer.poll(60_000),
        lambda consumer, _: consumer.commit({PLACE: 1}),
        lambda consumer, _: consumer.end_offsets([PLACE]),
        lambda consumer, _: consumer.position(PLACE),
        lambda _, producer: producer.flush(),
        lambda _, producer: producer.init_transactions(),
        lambda _, producer: producer.partitions_for("unknown"),
    ],
    ids=["poll", "commit", "end_offsets", "position", "flush", "init_transactions", "partitions_for"],
)
def test_a_call_of_an_asyncio_client_ends_when_another_task_closes_it(
    nobody: str, call: Callable[[aio.Consumer, aio.Producer], Any]
) -> None:
    async def play() -> None:
        consumer = aio.Consumer(bootstrap_servers=nobody, group_id="g")
        consumer.assign([PLACE])
        producer = aio.Producer(bootstrap_servers=nobody, transactional_id="t")
        know(producer._core)
        producer._accumulator.append("topic", 0, None, b"x", 0, (), None)
        waiting = asyncio.create_task(call(consumer, producer))
        await asyncio.sleep(0.05)
        await consumer.close(0)
        await producer.close(0)
        done, _ = await asyncio.wait((waiting,), timeout=5)
        assert done, "it waits for ever"
        if "flush" not in repr(call.__code__.co_names):  # all is done then: it has failed
            assert isinstance(waiting.exception(), ClosedError)

    asyncio.run(play())


def test_iterating_over_an_asyncio_consumer_ends_when_another_task_closes_it(nobody: str) -> None:
    async def play() -> None:
        consumer = aio.Consumer(bootstrap_servers=nobody)
        consumer.assign([PLACE])

        async def iterate() -> None:
            async for _ in consumer:
                pass

        iterating = asyncio.create_task(iterate())
        await asyncio.sleep(0.05)
        await consumer.close(0)
        await asyncio.wait_for(iterating, PATIENCE_S)

    asyncio.run(play())


def test_wakeup_ends_a_poll_of_the_asyncio_face(nobody: str) -> None:
    async def play() -> None:
        async with aio.Consumer(bootstrap_servers=nobody) as consumer:
            consumer.assign([PLACE])
            polling = asyncio.create_task(consumer.poll(60_000))
            await asyncio.sleep(0.05)
            consumer.wakeup()
            assert await asyncio.wait_for(polling, PATIENCE_S) == {}

    asyncio.run(play())


def test_who_rings_a_client_that_has_ended_writes_into_no_other_file(nobody: str) -> None:
    producer = Producer(bootstrap_servers=nobody)
    bell = producer._io._bell
    producer.close(0)
    other = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        os.dup2(other, bell)  # the number of the bell is another file's by now
        producer._io.ring()
        with pytest.raises(BlockingIOError):
            os.eventfd_read(other)
    finally:
        for each in {other, bell}:
            os.close(each)


# ── forked ───────────────────────────────────────────────────────────────────────────────────────────────


def in_child(play: Callable[[], None]) -> None:
    """Run in a forked process; it must end, and raise nothing."""
    child = os.fork()
    if not child:
        try:
            play()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + PATIENCE_S
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise AssertionError("the child waits for ever")
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 0


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "assign": ([PLACE],),
    "subscribe": ("topic",),
    "beginning_offsets": ([PLACE],),
    "end_offsets": ([PLACE],),
    "offsets_for_times": ({PLACE: 1},),
    "pause": (PLACE,),
    "resume": (PLACE,),
    "seek": (PLACE, 1),
    "seek_to_beginning": (PLACE,),
    "seek_to_end": (PLACE,),
    "position": (PLACE,),
    "committed": (PLACE,),
    "highwater": (PLACE,),
    "partitions_for_topic": ("topic",),
    "partitions_for": ("topic",),
    "read_until": ({},),
    "send": ("topic", b"x"),
    "send_offsets_to_transaction": ({PLACE: 1}, "g"),
    "create_topic": ("topic",),
    "delete_topic": ("topic",),
    "create_partitions": ("topic", 2),
    "topic_configs": ("topic",),
}
QUIET = {
    "assignment",
    "close",
    "default_timeout_s",
    "group_metadata",
    "highwater",
    "paused",
    "read_until",
    "subscription",
    "wakeup",
}
"""What asks nobody: it may say what the parent knew when it forked."""
NEEDS_ARROW = {"send_arrow", "poll_arrow"}


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
def test_no_call_waits_in_the_child_of_a_fork_whatever_the_clients_thread_held(
    nobody: str, kind: type[Any]
) -> None:
    client = kind(bootstrap_servers=nobody)
    if kind is Consumer:
        client.assign([PLACE])
    future = None
    if kind is Producer:
        know(client._core)
        future = client.send("topic", b"x")
    names = [
        name
        for name, each in inspect.getmembers(kind)
        if not name.startswith("_") and callable(each) and name not in NEEDS_ARROW
    ]

    def play() -> None:
        for name in names:
            try:
                getattr(client, name)(*ARGUMENTS.get(name, ()))
            except ForkedError:
                continue
            except ClientError:
                assert name in QUIET, name
            else:
                assert name in QUIET, name
        if future is not None:
            with pytest.raises(ForkedError):
                future.get()

    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with client._core.lock:
            if future is not None:
                client._accumulator.lock.acquire()
            held.set()
            let_go.wait(PATIENCE_S)
            if future is not None:
                client._accumulator.lock.release()

    holding = threading.Thread(target=hold)
    holding.start()
    held.wait(PATIENCE_S)
    try:
        in_child(play)
    finally:
        let_go.set()
        holding.join()
        client.close(*((0,) if kind is not Admin else ()))


def test_the_asyncio_face_raises_in_the_child_of_a_fork_and_leaves_the_parents_sockets_alone(
    nobody: str,
) -> None:
    async def play() -> None:
        producer = aio.Producer(bootstrap_servers=nobody)
        consumer = aio.Consumer(bootstrap_servers=nobody, group_id="g")
        know(producer._core)
        consumer.assign([PLACE])
        sent = await producer.send("topic", b"x")
        await asyncio.sleep(0.05)

        async def child() -> None:
            for call in (
                lambda: producer.send("topic", b"x"),
                producer.flush,
                consumer.poll,
                consumer.commit,
            ):
                with pytest.raises(ForkedError):
                    await call()
            with pytest.raises(ForkedError):
                await sent
            await producer.close()
            await consumer.close()

        in_child(lambda: asyncio.run(child()))
        assert not sent.done()
        await producer.close(0)
        await consumer.close(0)

    asyncio.run(play())


# ── forgotten ────────────────────────────────────────────────────────────────────────────────────────────


def told(caught: list[warnings.WarningMessage]) -> int:
    return sum(each.category is ResourceWarning and "was not closed" in str(each.message) for each in caught)


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
def test_the_thread_of_a_forgotten_client_ends_and_a_warning_names_it(nobody: str, kind: type[Any]) -> None:
    client = kind(bootstrap_servers=nobody)
    thread = client._io._thread
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del client
        gc.collect()
    assert told(caught) == 1
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("kind", [aio.Producer, aio.Consumer])
def test_a_forgotten_asyncio_client_closes_its_sockets_and_a_warning_names_it(
    nobody: str, kind: type[Any]
) -> None:
    async def play() -> None:
        client = kind(bootstrap_servers=nobody)
        await asyncio.sleep(0.05)
        io = client._io
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del client
            gc.collect()
        assert told(caught) == 1
        await asyncio.sleep(0.05)
        assert io.closed

    asyncio.run(play())


# ── interceptors and serializers of a send that fails ────────────────────────────────────────────────────


class Hears:
    def __init__(self) -> None:
        self.heard: list[tuple[object, BaseException | None]] = []

    def on_acknowledgement(self, metadata: object, error: BaseException | None) -> None:
        self.heard.append((metadata, error))


@pytest.mark.parametrize(
    ("options", "record", "says"),
    [
        ({"max_block_ms": 50}, ("unknown", b"x"), "no metadata of topic unknown"),
        ({}, ("topic", "text"), "the value is str, not bytes"),
        ({}, ("topic", b"x" * 2_000_000), "larger than max.request.size"),
        ({}, ("topic", b"x", b"key", [(1, 2)]), "headers"),
        ({"value_serializer": int}, ("topic", "no number"), "the value_serializer raised ValueError"),
        ({"key_serializer": int}, ("topic", b"x", "no number"), "the key_serializer raised ValueError"),
        ({"partitioner": lambda *_: 99}, ("topic", b"x"), "has partitions 0 to 0, not 99"),
    ],
)
def test_an_interceptor_hears_once_of_a_record_that_cannot_be_sent(
    nobody: str, options: dict[str, Any], record: tuple[Any, ...], says: str
) -> None:
    hears, quiet = Hears(), object()
    with Producer(bootstrap_servers=nobody, interceptors=[hears, quiet], **options) as producer:
        know(producer._core)
        with pytest.raises(ClientError, match=says) as raised:
            producer.send(*record)
        assert hears.heard == [(None, raised.value)]

    async def play() -> None:
        hears.heard.clear()
        async with aio.Producer(bootstrap_servers=nobody, interceptors=[hears], **options) as producer:
            know(producer._core)
            with pytest.raises(ClientError, match=says) as raised:
                await producer.send(*record)
            assert hears.heard == [(None, raised.value)]

    asyncio.run(play())


def test_an_interceptor_hears_of_a_record_that_a_cancelled_send_did_not_take(nobody: str) -> None:
    hears = Hears()

    async def play() -> None:
        producer = aio.Producer(bootstrap_servers=nobody, interceptors=[hears])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.send("unknown", b"x"), 0.05)
        await producer.close(0)

    asyncio.run(play())
    assert [type(error) for _, error in hears.heard] == [asyncio.CancelledError]


def test_a_serializer_that_raises_is_an_error_of_the_client_with_its_cause(nobody: str) -> None:
    with Producer(bootstrap_servers=nobody, value_serializer=str.encode) as producer:
        know(producer._core)
        with pytest.raises(SerializationError, match="the value_serializer raised TypeError") as raised:
            producer.send("topic", 5)
        assert isinstance(raised.value.__cause__, TypeError)
