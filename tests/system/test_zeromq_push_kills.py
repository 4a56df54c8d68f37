"""A push subscriber goes on where it committed, whatever process dies: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest
import zmq
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.find_coordinator import FindCoordinatorRequest
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.framing import SIZE
from appliance.protocol.records.record import decode_records
from appliance_client import Producer
from tests.support.broker import Appliance
from tests.support.raw_fetch import parse_batches
from tests.support.zeromq_wire import NothingCame, SessionEnded, ZeroMqSession
from tests.system.raw import wait_until
from tests.system.test_zeromq import Context, Served, fetched_records

TOPIC: Final = "pushed"
GROUP: Final = "subscriber"
SLOTS: Final = 3
COMMIT_EVERY: Final = 25
SILENCE_MS: Final = 1_000
SILENCES_MAX: Final = 4
PATIENCE_S: Final = 120.0


class Lost(Exception):
    """The session is of no use any more, or the partition is led by another slot."""


class Subscriber(threading.Thread):
    """Speaks ZeroMQ only. `kept` is what it has processed and committed: a new session begins with what was committed.

    Attributes:
        sessions: how many it has had.
        failures: what may not be.
    """

    def __init__(self, context: Context, listener: str) -> None:
        super().__init__(daemon=True)
        self.kept: list[bytes] = []
        self.sessions = 0
        self.failures: list[str] = []
        self.stop = threading.Event()
        self._context = context
        self._listener = listener
        self._processed: list[bytes] = []
        """Beyond what is kept. In a new session they stay as far as a commit whose answer was lost reached."""

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                self._live()
            except (SessionEnded, NothingCame, Lost, zmq.ZMQError):
                time.sleep(0.05)
            except Exception as error:
                self.failures.append(repr(error))
                return

    def _live(self) -> None:
        leader, coordinator = self._ask_who()
        with (
            ZeroMqSession(self._context, self._listener, broker_id=coordinator) as offsets,
            ZeroMqSession(self._context, self._listener, broker_id=leader) as pushes,
        ):
            self.sessions += 1
            at = self._committed(offsets)
            reached = at - len(self.kept)
            if not 0 <= reached <= len(self._processed):
                self.failures.append(f"{at} is committed, where {len(self.kept)} were")
                self.stop.set()
                return
            self.kept += self._processed[:reached]
            self._processed = []
            pushes.subscribe(1, TOPIC, offset=at)
            while not self.stop.is_set():
                self._take(pushes, at)
                if len(self._processed) >= COMMIT_EVERY:
                    self._commit(offsets, len(self.kept) + len(self._processed))
                    self.kept += self._processed
                    self._processed = []

    def _take(self, pushes: ZeroMqSession, at: int) -> None:
        """One push: the next records, each at the offset that follows the one before."""
        for _ in range(SILENCES_MAX):
            try:
                _, push = pushes.push(SILENCE_MS)
                break
            except NothingCame:
                pushes.heartbeat()
        else:
            raise Lost("nothing comes")
        (error,) = struct.unpack_from(">h", push, 4 + 8 + 2 + len(TOPIC) + 8)
        if error:
            raise Lost(str(error))
        records = fetched_records(push, TOPIC)
        position = 0
        for batch in parse_batches(records):
            (length,) = struct.unpack_from(">i", records, position + 8)
            for record in decode_records(records[position : position + 12 + length]):
                expected = len(self.kept) + len(self._processed)
                if record.offset < at:
                    continue  # the first batch may begin before what was asked for
                if record.offset != expected:
                    self.failures.append(f"offset {record.offset} came where {expected} follows")
                self._processed.append(record.value or b"")
            position += 12 + length
            assert batch.last_offset >= 0

    def _ask_who(self) -> tuple[int, int]:
        """The leader of the partition, and the group's coordinator."""
        with ZeroMqSession(self._context, self._listener) as session:
            told = ask(session, ApiKey.METADATA, MetadataRequest((TopicSelector(name=TOPIC),)))
            leader = told.topics[0].partitions[0].leader_id if told.topics[0].partitions else -1
            found = ask(
                session, ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(coordinator_keys=(GROUP,))
            ).coordinators[0]
        if leader < 0 or found.error_code:
            raise Lost("nobody leads")
        return leader, found.node_id

    def _committed(self, session: ZeroMqSession) -> int:
        group = OffsetFetchGroup(GROUP, (OffsetFetchTopic(name=TOPIC, partition_indexes=(0,)),))
        told = ask(session, ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=(group,)), version=9).groups[0]
        if told.error_code or told.topics[0].partitions[0].error_code:
            raise Lost("the coordinator does not say")
        return max(0, int(told.topics[0].partitions[0].committed_offset))

    def _commit(self, session: ZeroMqSession, offset: int) -> None:
        topic = OffsetCommitTopic(name=TOPIC, partitions=(OffsetCommitPartition(0, offset, ""),))
        request = OffsetCommitRequest(GROUP, -1, "", (topic,))
        told = ask(session, ApiKey.OFFSET_COMMIT, request, version=9)
        if told.topics[0].partitions[0].error_code:
            raise Lost("the coordinator did not take it")


def ask(session: ZeroMqSession, api: ApiKey, request: Any, *, version: int | None = None) -> Any:
    """A request of the broker's own shapes, over ZeroMQ."""
    version = api.max_version if version is None else version
    encoded = messages.encode_request(api, version, request, 77, client_id="subscriber")
    answer = session.ask(bytes(encoded)[SIZE.size :])
    return messages.decode_response(api, version, memoryview(SIZE.pack(len(answer)) + answer))[1]


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("zk")
    listener = f"ipc://{home}/s"
    settings: dict[str, object] = {
        "listeners.zeromq": [listener],
        "network.processes": 1,  # so that its kill ends every session
        "replica.lag.time.max.ms": 3_000,
    }
    appliance = Appliance(home / "data", slots=SLOTS, settings=settings)
    appliance.start(180)
    try:
        yield Served(appliance, listener)
    finally:
        appliance.stop()


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.mark.timeout(400)
@pytest.mark.slow  # a minute
def test_a_subscriber_resumes_at_its_commit_whatever_process_is_killed(
    served: Served, context: Context
) -> None:
    broker = served.broker
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    topic = NewTopic(TOPIC, 1, SLOTS, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])[TOPIC].result(60)
    addresses = [f"127.0.0.1:{broker.port + slot}" for slot in range(SLOTS)]
    subscriber = Subscriber(context, served.listener)
    done = threading.Event()
    values: list[bytes] = []
    with Producer(bootstrap_servers=addresses, linger_ms=1, delivery_timeout_ms=300_000) as producer:

        def write() -> None:
            while not done.is_set():
                values.append(b"%d" % len(values))
                producer.send(TOPIC, values[-1], partition=0)
                time.sleep(0.002)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        subscriber.start()
        try:
            for victims in (("netproc",), ("worker",), ("coordinator",), ("worker", "replica"), ("netproc",)):
                await_progress(subscriber)
                leader = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions[0].leader
                for victim in victims:
                    named = {"worker": f"ioproc {leader}.0", "replica": f"replica {leader}"}
                    broker.kill_role(named.get(victim, victim))
            await_progress(subscriber)
        finally:
            done.set()
            writer.join()
        # So that a last commit comes.
        values += [b"last"] * COMMIT_EVERY
        for value in values[-COMMIT_EVERY:]:
            producer.send(TOPIC, value, partition=0)
        producer.flush(PATIENCE_S)
        wait_until(
            lambda: len(subscriber.kept) > len(values) - COMMIT_EVERY or bool(subscriber.failures),
            "all was pushed",
            timeout_s=PATIENCE_S,
        )
    subscriber.stop.set()
    subscriber.join(60)
    assert not subscriber.failures
    assert subscriber.kept == values[: len(subscriber.kept)]
    assert subscriber.sessions > 2, "two kills of the network process, and a new leader, end its sessions"


def await_progress(subscriber: Subscriber) -> None:
    """Wait until it has committed something new."""
    before = len(subscriber.kept)
    wait_until(
        lambda: len(subscriber.kept) > before or bool(subscriber.failures),
        "records are pushed and committed",
        timeout_s=PATIENCE_S,
    )
