"""Several workers on one consumer, sync and asyncio: order, contiguous commits, rebalances, failures."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from appliance_client import (
    Admin,
    Consumer,
    ConsumerRecord,
    ParallelConsumer,
    Producer,
    TopicPartition,
    aio,
)
from appliance_client.errors import OptionError, ProcessingError, RecordDeserializationError
from tests.support.broker import Appliance
from tests.support.judge import QUICK_GROUPS

ROOT: Final = Path(__file__).parents[2]
PATIENCE_S: Final = 60.0
PARTITIONS: Final = 2
KEYS: Final = 10
RECORDS: Final = 200
_numbers = count(1)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker = Appliance(tmp_path_factory.mktemp("p") / "data", settings=QUICK_GROUPS)
    broker.start()
    try:
        yield broker.address
    finally:
        broker.stop()


@pytest.fixture
def topic(address: str) -> str:
    """A topic of two partitions with RECORDS numbers; the key of each is its number modulo KEYS."""
    name = f"parallel-{os.getpid()}-{next(_numbers)}"
    with Admin(bootstrap_servers=address) as admin:
        admin.create_topic(name, PARTITIONS)
    with Producer(bootstrap_servers=address) as producer:
        for number in range(RECORDS):
            key = number % KEYS
            producer.send(name, b"%d" % number, key=b"%d" % key, partition=key % PARTITIONS)
        producer.flush(PATIENCE_S)
    return name


def options(address: str, topic: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": address,
        "group_id": f"g-{topic}",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        **more,
    }


class Seen:
    """What was processed, and how much at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.numbers: list[int] = []
        self.by_key: dict[bytes, list[int]] = defaultdict(list)
        self.now = self.most = 0

    def begin(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def end(self, record: ConsumerRecord) -> None:
        with self.lock:
            self.now -= 1
            self.numbers.append(int(record.value))
            self.by_key[record.key].append(int(record.value))

    def is_whole(self) -> bool:
        with self.lock:
            return len(set(self.numbers)) == RECORDS

    def check_order(self) -> None:
        """Repetitions aside, each key's records came in their order."""
        for numbers in self.by_key.values():
            firsts = list(dict.fromkeys(numbers))
            assert firsts == sorted(firsts)


def committed(address: str, topic: str) -> int:
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with Consumer(**options(address, topic)) as consumer:
        return sum(at.offset for at in consumer.committed(*places).values() if at is not None)


def until(is_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.02)


class Running:
    """A parallel consumer on a thread of its own."""

    def __init__(
        self, address: str, topic: str, process: Callable[[ConsumerRecord], Any], **more: Any
    ) -> None:
        self.consumer = Consumer(**options(address, topic))
        self.parallel = ParallelConsumer(self.consumer, [topic], process, commit_interval_ms=100, **more)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.parallel.run()
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self.consumer.close()

    def end(self) -> None:
        self.parallel.stop()
        self.join()


def test_many_workers_process_two_partitions_in_order_of_keys(address: str, topic: str) -> None:
    seen = Seen()

    def process(record: ConsumerRecord) -> None:
        seen.begin()
        time.sleep(0.005)
        seen.end(record)

    running = Running(address, topic, process, workers=8, window=50)
    until(seen.is_whole)
    running.end()
    assert running.error is None
    assert seen.most > PARTITIONS
    assert sorted(seen.numbers) == list(range(RECORDS)), "each once"
    seen.check_order()
    assert committed(address, topic) == RECORDS


def test_a_record_that_takes_long_holds_the_commit_back_and_bounds_the_window(
    address: str, topic: str
) -> None:
    goes_on, seen = threading.Event(), Seen()

    def process(record: ConsumerRecord) -> None:
        seen.begin()
        if (record.partition, record.offset) == (0, 3):
            goes_on.wait(PATIENCE_S)
        seen.end(record)

    # Another partition's records go on, and so do those of other keys up to the window's end.
    running = Running(address, topic, process, workers=8, order="unordered", window=20)
    until(lambda: sum(1 for number in seen.numbers if number % 2) == RECORDS // 2)
    until(lambda: committed(address, topic) == RECORDS // 2 + 3)
    goes_on.set()
    until(seen.is_whole)
    running.end()
    assert committed(address, topic) == RECORDS


def test_when_partitions_move_nothing_is_lost_and_little_is_repeated(address: str, topic: str) -> None:
    seen = Seen()

    def process(record: ConsumerRecord) -> None:
        seen.begin()
        time.sleep(0.02)
        seen.end(record)

    first = Running(address, topic, process, workers=4)
    until(lambda: len(seen.numbers) > 20)
    second = Running(address, topic, process, workers=4)
    until(seen.is_whole)
    first.end()
    second.end()
    assert first.error is second.error is None
    # What runs is waited for before a partition goes, so each record comes once.
    assert len(seen.numbers) == RECORDS
    seen.check_order()
    assert committed(address, topic) == RECORDS


def test_a_record_that_fails_ends_the_run_and_is_not_committed(address: str, topic: str) -> None:
    attempts = count()

    def process(record: ConsumerRecord) -> None:
        if (record.partition, record.offset) == (0, 7):
            next(attempts)
            raise KeyError("poison")

    running = Running(address, topic, process, workers=4, retries=2, retry_pause_ms=1)
    running.join()
    assert isinstance(running.error, ProcessingError)
    assert (running.error.record.partition, running.error.record.offset) == (0, 7)  # type: ignore[union-attr]
    assert isinstance(running.error.__cause__, KeyError)
    assert next(attempts) == 3
    with Consumer(**options(address, topic)) as consumer:
        place = TopicPartition(topic, 0)
        at = consumer.committed(place)[place]
        assert at is None or at.offset <= 7


def test_a_failure_that_is_taken_care_of_does_not_stop_the_others(address: str, topic: str) -> None:
    seen, aside = Seen(), []

    def process(record: ConsumerRecord) -> None:
        seen.begin()
        seen.end(record)
        if int(record.value) % 50 == 7:
            raise ValueError("poison")

    running = Running(
        address, topic, process, workers=4, on_failure=lambda record, error: aside.append(int(record.value))
    )
    until(seen.is_whole)
    running.end()
    assert running.error is None
    assert sorted(aside) == [7, 57, 107, 157]
    assert committed(address, topic) == RECORDS


def test_wrong_options_are_refused(address: str, topic: str) -> None:
    with (
        Consumer(**options(address, topic, enable_auto_commit=True)) as consumer,
        pytest.raises(OptionError, match=r"enable\.auto\.commit"),
    ):
        ParallelConsumer(consumer, [topic], print)
    with Consumer(**options(address, topic)) as consumer:
        with pytest.raises(OptionError, match="at least 1"):
            ParallelConsumer(consumer, [topic], print, workers=0)
        with pytest.raises(OptionError, match="at least 1"):
            ParallelConsumer(consumer, [topic], print, window=0)
        with pytest.raises(ValueError, match="sideways"):
            ParallelConsumer(consumer, [topic], print, order="sideways")


def test_many_tasks_do_the_same_with_asyncio(address: str, topic: str) -> None:
    seen = Seen()
    asyncio.run(process_with_tasks(address, topic, seen))
    assert seen.most > PARTITIONS
    assert sorted(seen.numbers) == list(range(RECORDS))
    seen.check_order()
    assert committed(address, topic) == RECORDS


async def process_with_tasks(address: str, topic: str, seen: Seen) -> None:

    async def process(record: ConsumerRecord) -> None:
        seen.begin()
        await asyncio.sleep(0.005)
        seen.end(record)

    async with aio.Consumer(**options(address, topic)) as consumer:
        parallel = aio.ParallelConsumer(consumer, [topic], process, workers=8, commit_interval_ms=100)
        run = asyncio.create_task(parallel.run())
        async with asyncio.timeout(PATIENCE_S):
            while not seen.is_whole():
                await asyncio.sleep(0.02)
            parallel.stop()
            await run


def refuses_13(value: bytes) -> int:
    if value == b"13":
        raise ValueError("unlucky")
    return int(value)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_record_that_the_deserializer_refuses_has_failed_and_the_others_are_processed(
    address: str, topic: str, is_async: bool
) -> None:
    seen: list[Any] = []
    failed: list[tuple[Any, int, type[Exception]]] = []
    given = options(address, topic, value_deserializer=refuses_13)

    def fails(record: ConsumerRecord, error: Exception) -> None:
        failed.append((record.value, record.partition, type(error)))

    async def play() -> None:
        async def process(record: ConsumerRecord) -> None:
            seen.append(record.value)

        async def on_failure(record: ConsumerRecord, error: Exception) -> None:
            fails(record, error)

        async with aio.Consumer(**given) as consumer:
            parallel = aio.ParallelConsumer(consumer, [topic], process, on_failure=on_failure)
            run = asyncio.create_task(parallel.run())
            while len(seen) < RECORDS - 1:
                await asyncio.sleep(0.02)
            parallel.stop()
            await run

    if is_async:
        asyncio.run(asyncio.wait_for(play(), PATIENCE_S))
    else:
        with Consumer(**given) as consumer:
            parallel = ParallelConsumer(
                consumer, [topic], lambda record: seen.append(record.value), on_failure=fails
            )
            running = threading.Thread(target=parallel.run)
            running.start()
            until = time.monotonic() + PATIENCE_S
            while len(seen) < RECORDS - 1 and time.monotonic() < until:
                time.sleep(0.02)
            parallel.stop()
            running.join()
    assert sorted(seen) == [number for number in range(RECORDS) if number != 13]
    assert failed == [(b"13", 1, RecordDeserializationError)]
    assert committed(address, topic) == RECORDS


def test_with_asyncio_a_full_window_goes_on_as_soon_as_there_is_room(address: str, topic: str) -> None:
    """And not with the next poll, which waits for 200 ms: 20 windows would take four seconds."""

    async def play() -> float:
        left, begin_s = RECORDS, 0.0

        async def process(_: ConsumerRecord) -> None:
            nonlocal left, begin_s
            begin_s = begin_s or time.monotonic()
            left -= 1

        async with aio.Consumer(**options(address, topic, max_poll_records=5)) as consumer:
            parallel = aio.ParallelConsumer(consumer, [topic], process, window=5)
            run = asyncio.create_task(parallel.run())
            while left:
                await asyncio.sleep(0.01)
            took_s = time.monotonic() - begin_s
            parallel.stop()
            await run
        return took_s

    assert asyncio.run(asyncio.wait_for(play(), PATIENCE_S)) < 2.5


def test_a_failure_ends_the_run_with_asyncio_too(address: str, topic: str) -> None:
    with pytest.raises(ProcessingError, match="KeyError"):
        asyncio.run(fail_with_tasks(address, topic))


async def fail_with_tasks(address: str, topic: str) -> None:
    async def process(record: ConsumerRecord) -> None:
        if (record.partition, record.offset) == (1, 5):
            raise KeyError("poison")

    async with aio.Consumer(**options(address, topic)) as consumer:
        parallel = aio.ParallelConsumer(consumer, [topic], process, workers=4, commit_interval_ms=50)
        async with asyncio.timeout(PATIENCE_S):
            await parallel.run()


def test_the_example_bills_every_order(address: str) -> None:
    orders, bills = f"orders-{os.getpid()}", f"bills-{os.getpid()}"
    with Admin(bootstrap_servers=address) as admin:
        for name in (orders, bills, f"{bills}-failed"):
            admin.create_topic(name, PARTITIONS)
    with Producer(bootstrap_servers=address) as producer:
        for number in range(60):
            value = b"broken" if number == 13 else b"%d" % number
            producer.send(orders, value, key=b"customer-%d" % (number % 7))
        producer.flush(PATIENCE_S)
    program = ROOT / "examples" / "parallel" / "bill_in_parallel.py"
    done = subprocess.run(
        [sys.executable, str(program), address, orders, bills],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert read_all(address, bills) == {b"%d" % number for number in range(60)} - {b"13"}
    assert read_all(address, f"{bills}-failed") == {b"broken"}


def read_all(address: str, topic: str) -> set[bytes]:
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign(places)
        left = sum(consumer.end_offsets(places).values())
        found: list[bytes] = []
        until_s = time.monotonic() + PATIENCE_S
        while len(found) < left and time.monotonic() < until_s:
            for records in consumer.poll(500).values():
                found += [bytes(record.value) for record in records]
        return set(found)
