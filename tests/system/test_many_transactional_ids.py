"""Very many transactional ids, and very many partitions in one transaction: somebody else commits meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from appliance.protocol.apis.describe_transactions import DescribeTransactionsRequest
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.apis.list_transactions import ListTransactionsRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.framing import SIZE
from tests.checker.raw_transactions import RawProducer
from tests.checker.transaction_history import Place
from tests.checker.transaction_readers import undecided, values_in
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.acked_load import create
from tests.system.raw import ask, private_bytes, wait_until

TOPIC: Final = "data"
LIVING: Final = "living"
CONNECTIONS: Final = 64
VERSION: Final = 5
EXPIRATION_MS: Final = 10_000
"""Longer than anything that a busy machine may do to the id that is used."""
BYTES_PER_ID_MAX: Final = 2_000
USED: Final = ("Ongoing", "PrepareCommit", "CompleteCommit")
"""The states of an id whose producer only commits."""

few_and_many = pytest.mark.parametrize(
    "count", [2_000, pytest.param(100_000, marks=pytest.mark.slow)], ids=["2,000", "100,000"]
)


def initialize_many(port: int, names: Sequence[str]) -> None:
    """InitProducerId of each, one at a time on each of many connections; again where the answer is to come again."""
    with ExitStack() as stack:
        connections = [stack.enter_context(WireSocket(port, timeout_s=60)) for _ in range(CONNECTIONS)]
        for first in range(0, len(names), CONNECTIONS):
            left = list(names[first : first + CONNECTIONS])
            while left:
                asked = list(zip(left, connections, strict=False))
                for name, connection in asked:
                    request = InitProducerIdRequest(name, 60_000)
                    connection.send(
                        messages.encode_request(
                            ApiKey.INIT_PRODUCER_ID, VERSION, request, 1, client_id="many"
                        )
                    )
                left = [name for name, connection in asked if _error_in(connection.read_frame())]


def _error_in(body: bytes) -> int:
    frame = memoryview(SIZE.pack(len(body)) + body)
    _, answer = messages.decode_response(ApiKey.INIT_PRODUCER_ID, VERSION, frame)
    error = int(answer.error_code)
    assert not error or ErrorCode(error).retriable, ErrorCode(error).name
    return error


def listed(broker: Appliance) -> int | None:
    """How many ids there are; None while a partition is being loaded.

    It is asked in two parts: our decoder takes 100,000 elements in one message.
    """
    count = 0
    with WireSocket(broker.port, timeout_s=60) as connection:
        for states in (("Empty",), USED):
            answer = ask(connection, ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest(states))
            if answer.error_code:
                return None
            count += len(answer.transaction_states)
    return count


class Living:
    """Commits one record after another from entering to leaving; how many, and how long the slowest took."""

    def __init__(self, broker: Appliance, name: str = LIVING, partition: int = 0) -> None:
        self.longest_s = 0.0
        self.commits = 0
        self._place = Place(TOPIC, partition)
        self._producer = RawProducer([broker.port], name)
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._producer.start()
        self._commit()  # so that everything has been loaded
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60)
        self._producer.close()
        if error is None and self._failed:
            raise self._failed[0]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                self._commit()
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.commits += 1
                time.sleep(0.005)
        except BaseException as error:
            self._failed.append(error)

    def _commit(self) -> None:
        self._producer.begin()
        self._producer.write(self._place, [b"v"])
        self._producer.end(commit=True)


@contextmanager
def running(directory: Path, settings: dict[str, object]) -> Iterator[Appliance]:
    broker = Appliance(directory, settings=settings)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@few_and_many
def test_ids_are_small_loaded_again_and_forgotten_when_nobody_uses_them(tmp_path: Path, count: int) -> None:
    names = [f"many-{number:06d}" for number in range(count)]
    with running(tmp_path / "data", {}) as broker:
        create(broker, TOPIC, 1, replicas=1)
        with Living(broker) as living:
            initialize_many(broker.port, names[:300])  # so many that each partition has one
            (before,) = map(private_bytes, broker.pids("coordinator"))
            began = time.monotonic()
            initialize_many(broker.port, names[300:])
            print(f"{(count - 300) / (time.monotonic() - began):,.0f} ids/s")
        (after,) = map(private_bytes, broker.pids("coordinator"))
        print(f"{(after - before) / (count - 300):,.0f} B an id; the slowest commit {living.longest_s:.3f} s")
        assert (after - before) / (count - 300) < BYTES_PER_ID_MAX
        assert living.commits > 0
        assert listed(broker) == count + 1

        began = time.monotonic()
        broker.kill_role("coordinator")
        with Living(broker) as living:
            print(f"first commit {time.monotonic() - began:.3f} s after the kill")
            wait_until(lambda: listed(broker) == count + 1, "all are loaded again", timeout_s=60)
            print(f"all loaded {time.monotonic() - began:.3f} s after the kill")

    short: dict[str, object] = {
        "transactional.id.expiration.ms": EXPIRATION_MS,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 200,
    }
    with running(tmp_path / "data", short) as broker:
        began = time.monotonic()
        with Living(broker) as living:
            print(f"first commit {time.monotonic() - began:.3f} s after a start")
            wait_until(lambda: listed(broker) == 1, "the others are forgotten", timeout_s=120)
            print(f"forgotten {time.monotonic() - began:.3f} s after a start")
        print(f"the slowest commit {living.longest_s:.3f} s of {living.commits}")
        assert living.commits > 0
        forgotten = RawProducer([broker.port], names[0])
        forgotten.start()
        assert forgotten.epoch == 0, "it is new"
        forgotten.close()
    with running(tmp_path / "data", {}) as broker, Living(broker):
        wait_until(lambda: listed(broker) is not None, "everything is loaded")
        assert listed(broker) == 2, "tombstones outlive a restart"


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize(
    "partitions", [500, pytest.param(5_000, marks=pytest.mark.slow)], ids=["500", "5,000"]
)
def test_transaction_over_very_many_partitions_ends_whole_while_another_producer_commits(
    tmp_path: Path, partitions: int, commits: bool
) -> None:
    wide = "wide"
    settings: dict[str, object] = {
        "max.request.partition.size.limit": 6_000,
        "shutdown.timeout.ms": 25_000,  # each of the partitions is flushed
    }
    with running(tmp_path / "data", settings) as broker:
        create(broker, TOPIC, 1, replicas=1)
        create(broker, wide, partitions, replicas=1)
        producer = RawProducer([broker.port], "many partitions", protocol=1, patience_s=120)
        producer.start()
        places = [Place(wide, number) for number in (0, partitions // 2, partitions - 1)]
        with Living(broker) as living:
            producer.begin()
            timed("add", lambda: add_all(broker, producer, wide, partitions))
            for place in places:
                producer.write(place, [b"wide"])
            timed("end", lambda: producer.end(commit=commits))
            complete = "CompleteCommit" if commits else "CompleteAbort"
            timed(
                "markers",
                lambda: wait_until(lambda: state_of(broker, producer) == complete, complete, timeout_s=60),
            )
        print(f"the slowest commit of another producer {living.longest_s:.3f} s of {living.commits}")
        assert living.commits > 0
        assert undecided(broker.address, places, within_s=10) == {}
        seen = values_in(broker.address, places)
        assert [seen[place] for place in places] == [[b"wide"] if commits else []] * len(places)
        producer.close()


def add_all(broker: Appliance, producer: RawProducer, topic: str, partitions: int) -> None:
    """AddPartitionsToTxn of all of them in one request."""
    request = AddPartitionsToTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=(AddPartitionsToTxnTopic(topic, tuple(range(partitions))),),
    )
    with WireSocket(broker.port, timeout_s=60) as connection:
        answer = ask(connection, ApiKey.ADD_PARTITIONS_TO_TXN, request, version=3)
    errors = {each.partition_error_code for each in answer.results_by_topic[0].results_by_partition}
    assert errors == {0}
    assert len(answer.results_by_topic[0].results_by_partition) == partitions


def state_of(broker: Appliance, producer: RawProducer) -> str:
    with WireSocket(broker.port) as connection:
        request = DescribeTransactionsRequest((producer.transactional_id,))
        (found,) = ask(connection, ApiKey.DESCRIBE_TRANSACTIONS, request).transaction_states
    return str(found.transaction_state)


def timed(what: str, action: Callable[[], object]) -> None:
    began = time.monotonic()
    action()
    print(f"{what} {time.monotonic() - began:.3f} s")
