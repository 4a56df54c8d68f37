"""What a client sends in a Produce request says nothing about who it is: the flags of an operation are ours."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.channels.request_channel import FLAGS, OP, REQUEST, RESPONSE, Op, ProduceFlag, RequestFlag
from appliance.channels.roles import workers_of
from appliance.channels.wiring import Attachment
from appliance.ipc.brief_wait import BriefWait
from appliance.ipc.buffer_pool import BufferPool
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.ring import RingReader, RingWriter, ring_size_bytes
from appliance.netproc.connection import Connection
from appliance.protocol.produce import ProducePartition, ProduceRequest
from appliance.requests.log_handlers.leader_wait import LeaderWait
from appliance.requests.log_handlers.produce import ProduceHandler
from appliance.requests.session import Request
from appliance.requests.topic_routes import TopicRoutes
from appliance.requests.transaction_questions import TransactionQuestions
from appliance.requests.worker_lines import WorkerClient

(WORKER,) = workers_of(0, workers=1)
SLOTS = 64
NEVER_A_CLIENTS = RequestFlag.COORDINATOR_ORIGIN | RequestFlag.TRANSACTION_VERIFIED | ProduceFlag.GAPS
pytestmark = pytest.mark.interpreted  # it stands in for compiled classes

ROUTE = SimpleNamespace(worker=WORKER, row=0, incarnation=1, written_by_clients_of=0, delays=False)
TOPIC = SimpleNamespace(partition=lambda _: ROUTE, image=SimpleNamespace(internal=False))

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


class Bench:
    """A handler whose rings the test reads."""

    def __init__(self) -> None:
        to = memoryview(bytearray(ring_size_bytes(SLOTS)))
        back = memoryview(bytearray(ring_size_bytes(SLOTS)))
        self.eventfd = os.eventfd(0)
        awake = memoryview(bytearray(8)).cast("q")
        attachment = SimpleNamespace(
            outbound={WORKER: RingWriter(to, REQUEST)},
            inbound={WORKER: RingReader(back, RESPONSE)},
            bells={WORKER: Doorbell(self.eventfd, awake)},
        )
        self.ring = RingReader(to, REQUEST)
        self.lines = WorkerClient(cast("Attachment", attachment), brief_wait=BriefWait(lambda: 0))
        self.handler = ProduceHandler(
            cast("TopicRoutes", SimpleNamespace(of=lambda _: TOPIC)),
            self.lines,
            questions=cast("TransactionQuestions", None),
            leader_wait=cast("LeaderWait", None),
            finish=lambda *_: None,
            refuse=lambda *_: None,
        )
        self.pool = BufferPool(memoryview(bytearray(1 << 20)))
        ours, self.client = socket.socketpair()
        self.connection = Connection(ours, connection_id=1, slot=0, peer_host="h", peer_port=1, now_ns=0)

    def place(self, request: ProduceRequest, payload: bytes) -> list[tuple[Any, ...]]:
        """The operations that the request has become."""
        block = self.pool.take(max(len(payload), 1))
        assert block is not None
        block.view[: len(payload)] = payload
        pending = Request(self.connection, block, 0, request.version, 1)
        self.handler.place(pending, request)
        self.lines.publish()
        pending.give_block(self.pool)
        return self.ring.drain()

    def close(self) -> None:
        os.close(self.eventfd)
        self.client.close()
        self.connection.sock.close()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(
    version=st.integers(3, 13),
    transactional_id=st.none() | st.text(max_size=5),
    acks=st.sampled_from((-1, 0, 1)) | INT16,
    timeout_ms=INT32,
    partitions=st.lists(INT32, min_size=1, max_size=3),
    payload=st.binary(min_size=61, max_size=100),
)
def test_no_request_of_a_client_is_a_coordinators_or_counts_as_verified(
    bench: Bench,
    *,
    version: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    partitions: list[int],
    payload: bytes,
) -> None:
    wanted = tuple(ProducePartition("t", number, 0, len(payload)) for number in partitions)
    request = ProduceRequest(version, transactional_id, acks, timeout_ms, wanted)
    operations = bench.place(request, payload)
    assert len(operations) == (len(partitions) if acks in (-1, 0, 1) else 0)
    for operation in operations:
        assert operation[OP] == Op.PRODUCE
        assert not operation[FLAGS] & NEVER_A_CLIENTS
