"""How a parallel consumer ends and fails, without a broker: the records are put into its window."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from appliance_client import Consumer, ConsumerRecord, ParallelConsumer, TopicPartition, aio
from appliance_client.errors import OptionError, ProcessingError
from appliance_client.handing_back import HandBack, RetryTopics
from appliance_client.options import ConsumerOptions
from appliance_client.ordered import Rules
from appliance_client.parallel import refuse_ordered

HERE: Final = TopicPartition("t", 0)
NOBODY: Final[dict[str, Any]] = {
    "bootstrap_servers": "127.0.0.1:1",
    "group_id": "g",
    "enable_auto_commit": False,
    "default_api_timeout_ms": 200,
}
PATIENCE_S: Final = 20.0


def record(offset: int) -> ConsumerRecord:
    return ConsumerRecord(
        topic="t",
        partition=0,
        offset=offset,
        timestamp=0,
        timestamp_type=0,
        key=None,
        value=b"v",
        headers=(),
        leader_epoch=0,
    )


class Running:
    """A parallel consumer with one record, on a thread of its own."""

    def __init__(self, process: Callable[[ConsumerRecord], Any], **more: Any) -> None:
        self.consumer = Consumer(**NOBODY)
        self.parallel = ParallelConsumer(self.consumer, ["t"], process, workers=2, **more)
        self.parallel._window.add(HERE, [record(0)])
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.parallel.run()
        except BaseException as error:
            self.error = error

    def join(self, limit_s: float = PATIENCE_S) -> None:
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), "run has not returned"
        self.consumer.close(0)


def test_a_worker_that_would_end_is_a_failure_and_nothing_stands_still() -> None:
    running = Running(lambda _: sys.exit(3))
    running.join()
    assert isinstance(running.error, ProcessingError)
    assert isinstance(running.error.__cause__, SystemExit)


def test_a_record_between_two_attempts_has_not_failed_when_the_consumer_stops() -> None:
    tried, failed = threading.Event(), []

    def process(_: ConsumerRecord) -> None:
        tried.set()
        raise ValueError("not yet")

    running = Running(
        process, retries=5, retry_pause_ms=60_000, on_failure=lambda each, _: failed.append(each)
    )
    assert tried.wait(PATIENCE_S)
    running.parallel.stop()
    running.join()
    assert running.error is None
    assert failed == []
    assert running.parallel._window.committable() == {HERE: 0}, "the next owner gets it"


def test_the_end_waits_once_for_all_workers_that_do_not_return() -> None:
    began, ends = threading.Semaphore(0), threading.Event()

    def process(_: ConsumerRecord) -> None:
        began.release()
        ends.wait(PATIENCE_S)

    running = Running(process, drain_ms=1_000)
    with running.parallel._changed:
        running.parallel._window.add(HERE, [record(1)])
        running.parallel._changed.notify_all()
    assert began.acquire(timeout=PATIENCE_S)
    assert began.acquire(timeout=PATIENCE_S)
    began_s = time.monotonic()
    running.parallel.stop()
    running.join()
    took_s = time.monotonic() - began_s
    ends.set()
    assert 1.0 <= took_s < 2.5, "the commit takes 0.2 s more"


def test_asyncio_a_cancelled_wait_in_process_is_a_failure_and_nothing_stands_still() -> None:
    async def process(_: ConsumerRecord) -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        consumer = aio.Consumer(**NOBODY)
        parallel = aio.ParallelConsumer(consumer, ["t"], process)
        parallel._window.add(HERE, [record(0)])
        try:
            with pytest.raises(ProcessingError):
                await asyncio.wait_for(parallel.run(), PATIENCE_S)
        finally:
            await consumer.close(0)

    asyncio.run(main())


def test_asyncio_a_process_that_swallows_its_cancellation_does_not_hold_up_the_end() -> None:
    async def main() -> None:
        began = asyncio.Event()

        async def process(_: ConsumerRecord) -> None:
            began.set()
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                return

        consumer = aio.Consumer(**NOBODY)
        parallel = aio.ParallelConsumer(consumer, ["t"], process, drain_ms=100)
        parallel._window.add(HERE, [record(0)])
        try:
            run = asyncio.create_task(parallel.run())
            await asyncio.wait_for(began.wait(), PATIENCE_S)
            parallel.stop()
            done, _ = await asyncio.wait([run], timeout=PATIENCE_S)
            assert done, "run has not returned"
        finally:
            await consumer.close(0)

    asyncio.run(main())


@pytest.mark.parametrize("name", ["retries", "retry_pause_ms", "commit_interval_ms", "drain_ms"])
def test_numbers_below_nothing_are_refused(name: str) -> None:
    wrong: dict[str, Any] = {name: -1}
    with Consumer(**NOBODY) as consumer, pytest.raises(OptionError, match=f"{name} = -1"):
        ParallelConsumer(consumer, ["t"], print, **wrong)


def test_a_topic_whose_retries_keep_the_order_is_refused() -> None:
    with Consumer(**NOBODY, retry_topics=True) as consumer:
        refuse_ordered(consumer, [HERE])
        ordered = consumer._consumer.ordered
        assert ordered is not None
        ordered.rules["t"] = Rules((1.0,), 3)
        with pytest.raises(OptionError, match=r"retry\.ordered"):
            refuse_ordered(consumer, [HERE])


def test_workers_that_hand_back_at_once_share_one_producer() -> None:
    made: list[object] = []

    def make(**_: Any) -> object:
        time.sleep(0.05)
        made.append(object())
        return made[-1]

    back = HandBack(ConsumerOptions(group_id="g"), RetryTopics("g"), make, lambda _: False)
    threads = [threading.Thread(target=back.producer) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE_S)
    assert len(made) == 1
