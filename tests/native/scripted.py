"""A cluster without a socket: the broker's own codecs parse the requests, a script writes the answers.

For what a real broker does once in a year: it forgets a producer, answers half, falls silent. Time passes by `pass_s`
alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from appliance.protocol.api_versions import ADVERTISED, ApiKey
from appliance.protocol.apis.api_versions import ApiVersionRange, ApiVersionsResponse, FinalizedFeature
from appliance.protocol.apis.end_txn import EndTxnResponse
from appliance.protocol.apis.find_coordinator import Coordinator, FindCoordinatorResponse
from appliance.protocol.apis.init_producer_id import InitProducerIdResponse
from appliance.protocol.apis.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataResponse,
    MetadataTopic,
)
from appliance.protocol.headers import RequestHeader, parse_request_header
from appliance.protocol.messages import decode_request, encode_response
from appliance.protocol.produce import ProduceResult, encode_produce_response, parse_produce
from appliance.protocol.records.batch import BatchHeader, read_header
from appliance.protocol.records.record import decode_records
from appliance_client.accumulator import Accumulator
from appliance_client.connection import Connection
from appliance_client.core import Core
from appliance_client.options import ProducerOptions
from appliance_client.producer import ProducerPipeline, make_sender
from appliance_client.scheduling import Task

NODES: Final = (1, 2)
TOPIC_ID: Final = UUID(int=7)
PARTITIONS: Final = 3


class Produced:
    """One batch that arrived."""

    def __init__(self, node: int, version: int, partition: int, raw: bytes) -> None:
        self.node = node
        self.version = version
        self.partition = partition
        self.header: BatchHeader = read_header(raw)
        self.values = [record.value for record in decode_records(raw)]


Answer = Callable[[Produced], ProduceResult | None]


def taken(produced: Produced) -> ProduceResult:
    """The batch is written."""
    return ProduceResult(TOPIC_ID, produced.partition, 0, base_offset=100)


def refused(code: int, **more: Any) -> Answer:
    """The batch is refused."""
    return lambda produced: ProduceResult(TOPIC_ID, produced.partition, code, **more)


def silence(_produced: Produced) -> None:
    """No answer comes."""


class ScriptedCluster:
    """Two brokers; broker 1 leads every partition until `leader` says otherwise."""

    def __init__(self, options: ProducerOptions, *, versions: dict[ApiKey, int] | None = None) -> None:
        self.now_s = 1_000.0
        self.core = Core(options, now_s=self.now_s, auto_create=True)
        self.accumulator = Accumulator(options.batch_size, options.buffer_memory, options.linger_ms / 1000)
        self.sender = make_sender(options, self.core, self.accumulator)
        self.pipeline = ProducerPipeline(options, self.core, self.accumulator, self.sender)
        self.core.start()
        self.leader = 1
        self.leader_epoch = 3
        self.features: dict[str, int] = {}
        self.is_down = False
        self.produced: list[Produced] = []
        self.asked: list[tuple[ApiKey, int, Any]] = []
        self.answers: deque[Answer] = deque()
        self.scripts: dict[ApiKey, deque[Any]] = {}
        self.opened_at_s: list[float] = []
        self._versions = versions or {}
        self._ids = iter(range(5_000, 6_000))
        self._accumulator_clock()

    def _accumulator_clock(self) -> None:
        """Batches are stamped with the time of the machine; here it is the test's."""
        append = self.accumulator.append

        def stamped(*record: Any) -> Any:
            result = append(*record)
            for batch in self.accumulator.incomplete.values():
                batch.created_s = min(batch.created_s, self.now_s)
            return result

        self.accumulator.append = stamped  # type: ignore[method-assign, assignment]

    def send(self, value: bytes, partition: int = 0) -> Any:
        """Hand a record over as a producer does."""
        future, _ = self.accumulator.append("topic", partition, None, value, 1_700_000_000_000, (), None)
        assert future is not None
        self.core.touch()
        return future

    def pass_s(self, seconds: float) -> None:
        """Let time pass, in steps no longer than what the core asked for."""
        end_s = self.now_s + seconds
        while True:
            self._settle()
            next_s = self.core.next_s()
            if next_s is None or next_s >= end_s:
                break
            self.now_s = max(self.now_s + 0.000_1, next_s)
        self.now_s = end_s
        self._settle()

    def run(self, coroutine: Any, seconds: float = 10.0) -> Any:
        """Run a coroutine of the core; it must end within that time."""
        task: Task[Any] = self.core.scheduler.spawn(coroutine)
        for _ in range(100):
            self.pass_s(seconds / 100)
            if task.done:
                return task.result()
        raise AssertionError("the conversation does not end")

    def lose(self) -> None:
        """Every connection breaks."""
        for connection in self.core.network.connections():
            connection.lost("broken by the test")
        self._settle()

    def _settle(self) -> None:
        network = self.core.network
        for _ in range(1_000):
            self.core.run(self.now_s)
            if not (network.to_open or network.dirty or network.to_close):
                return
            network.to_close.clear()
            opening, network.to_open = network.to_open, []
            for connection in opening:
                self.opened_at_s.append(self.now_s)
                if self.is_down:
                    connection.lost("nobody listens")
                else:
                    connection.opened()
            dirty, network.dirty = network.dirty, {}
            for connection in dirty:
                self._serve(connection)
        raise AssertionError("the client does not come to rest")

    def _serve(self, connection: Connection) -> None:
        wire = b"".join(bytes(piece) for piece in connection.outgoing)
        connection.outgoing.clear()
        at = 0
        while at < len(wire):
            size = int.from_bytes(wire[at : at + 4], "big")
            frame = memoryview(wire)[at + 4 : at + 4 + size]
            at += 4 + size
            answer = self._answer(connection, frame)
            while answer:
                room = connection.room()
                some = answer[: len(room)]
                room[: len(some)] = some
                answer = answer[len(some) :]
                connection.filled(len(some))

    def _answer(self, connection: Connection, frame: memoryview) -> bytes:
        header = parse_request_header(frame, 0, len(frame))
        api = ApiKey(header.api_key)
        if api is ApiKey.PRODUCE:
            return self._answer_produce(connection, header, frame)
        request = decode_request(api, header.version, frame, header.body_position)
        self.asked.append((api, header.version, request))
        script = self.scripts.get(api)
        if script:
            scripted = script.popleft()
            if isinstance(scripted, bytes):
                return scripted
            response = scripted
        else:
            response = getattr(self, f"_{api.name.lower()}")(header.version, request)
        return encode_response(api, header.version, response, header.correlation_id)

    def _answer_produce(self, connection: Connection, header: RequestHeader, frame: memoryview) -> bytes:
        request = parse_produce(frame, header.body_position, len(frame), header.version)
        self.asked.append((ApiKey.PRODUCE, header.version, request))
        node = self.core.network.broker_of(connection.node_id)
        results = []
        for part in request.partitions:
            raw = bytes(frame[part.records_position : part.records_position + part.records_length])
            produced = Produced(node, header.version, part.partition, raw)
            self.produced.append(produced)
            answer = self.answers.popleft() if self.answers else taken
            result = answer(produced)
            if result is None or request.acks == 0:
                return b""
            results.append(result._replace(topic=part.topic))
        return encode_produce_response(header.version, header.correlation_id, results)

    def _api_versions(self, _version: int, _request: Any) -> ApiVersionsResponse:
        rows = tuple(
            ApiVersionRange(
                row.api_key, row.min_version, self._versions.get(ApiKey(row.api_key), row.max_version)
            )
            for row in ADVERTISED
        )
        features = tuple(FinalizedFeature(name, level, level) for name, level in self.features.items())
        return ApiVersionsResponse(api_keys=rows, finalized_features_epoch=1, finalized_features=features)

    def _metadata(self, _version: int, _request: Any) -> MetadataResponse:
        partitions = tuple(
            MetadataPartition(0, index, self.leader, self.leader_epoch) for index in range(PARTITIONS)
        )
        return MetadataResponse(
            tuple(MetadataBroker(node, f"node-{node}", 9092) for node in NODES),
            (MetadataTopic(0, "topic", TOPIC_ID, partitions=partitions),),
        )

    def _init_producer_id(self, _version: int, _request: Any) -> InitProducerIdResponse:
        return InitProducerIdResponse(0, next(self._ids), 0)

    def _find_coordinator(self, version: int, request: Any) -> FindCoordinatorResponse:
        if version < 4:
            return FindCoordinatorResponse(node_id=2, host="node-2", port=9092)
        key = request.coordinator_keys[0]
        return FindCoordinatorResponse(coordinators=(Coordinator(key, 2, "node-2", 9092),))

    def _add_partitions_to_txn(self, _version: int, _request: Any) -> Any:
        from appliance.protocol.apis.add_partitions_to_txn import AddPartitionsToTxnResponse

        return AddPartitionsToTxnResponse()

    def _end_txn(self, version: int, request: Any) -> EndTxnResponse:
        if version < 5:
            return EndTxnResponse()
        return EndTxnResponse(0, request.producer_id, request.producer_epoch + 1)
