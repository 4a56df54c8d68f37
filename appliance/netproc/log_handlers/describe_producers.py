"""DescribeProducers 0 (KIP-664) in the network process: each partition's owner is asked for one producer after another.

An owner holds as many producers as wrote within producer.id.expiration.ms; it is asked for the next one when it has
answered, so however many there are, one operation a partition is under way. A partition that this slot does not lead is
NOT_LEADER_OR_FOLLOWER; where we differ: a follower in Apache Kafka answers too. Left out: the permission to read the
topic (security issue).
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from appliance.channels.request_channel import Op
from appliance.cluster import topic_name_fault
from appliance.netproc.connection import Pending
from appliance.netproc.log_handlers.owners_asked import AsksOwners, OwnersAsked, operation
from appliance.netproc.topic_routes import PartitionRoute
from appliance.netproc.worker_lines import Answer
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.messages import decode_request

_SIGN: Final = 1 << 31
_WORD: Final = 1 << 32


class DescribeProducersHandler(AsksOwners):
    """Serves DescribeProducers for one network process."""

    __slots__ = ()

    def begin(self, pending: Pending, view: memoryview, position: int, end: int) -> None:
        """Answers when the owners have told all.

        Raises:
            MalformedFrame: the body does not parse.
        """
        request: DescribeProducersRequest = decode_request(
            ApiKey.DESCRIBE_PRODUCERS, pending.version, view, position, end
        )
        asker = _Asker(self, pending, _each_once(request))
        self._lines.enter(asker)
        for topic in asker.request.topics:
            fault = topic_name_fault(topic.name)
            for number in topic.partition_indexes:
                self._begin_partition(asker, topic.name, number, fault=fault)
        if not asker.is_waiting:
            self.complete(asker)

    def _begin_partition(self, asker: _Asker, topic: str, number: int, *, fault: str | None) -> None:
        route = self._route(topic, number) if fault is None else None
        item = asker.add(number, route)
        if fault is not None:
            asker.fail(item, ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        elif route is None:
            asker.fail(item, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif self._table.is_offline(route.row, route.incarnation):
            asker.fail(item, ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            self.ask(asker, item, route, from_id=0)

    def ask(self, asker: _Asker, item: int, route: PartitionRoute, *, from_id: int) -> None:
        """Asks the owner of a partition for its first producer whose id is not below `from_id`."""
        asked = operation(Op.DESCRIBE_PRODUCER, asker, item, route, offset=from_id)
        if not asker.ask_leader(item, route, asked, table=self._table, lines=self._lines):
            asker.fail(item, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def complete(self, asker: _Asker) -> None:
        """Every partition has its answer."""
        results = iter(asker.results())
        response = DescribeProducersResponse(
            tuple(
                TopicResponse(topic.name, tuple(next(results) for _ in topic.partition_indexes))
                for topic in asker.request.topics
            )
        )
        self._answer(ApiKey.DESCRIBE_PRODUCERS, asker, response)


def _each_once(request: DescribeProducersRequest) -> DescribeProducersRequest:
    """A partition of many producers, named over and over, would make a small request worth gigabytes."""
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return DescribeProducersRequest(tuple(TopicRequest(name, tuple(each)) for name, each in wanted.items()))


class _Asker(OwnersAsked):
    """One request while owners tell; everything by item, in the order asked."""

    __slots__ = ("_found", "_handler", "_results", "_routes", "request")

    def __init__(
        self, handler: DescribeProducersHandler, pending: Pending, request: DescribeProducersRequest
    ) -> None:
        super().__init__(pending)
        self._handler = handler
        self.request = request
        self._routes: list[PartitionRoute | None] = []
        self._results: list[PartitionResponse] = []
        self._found: list[list[ProducerState]] = []

    def add(self, number: int, route: PartitionRoute | None) -> int:
        """Keeps the place of a partition; its item number."""
        self._routes.append(route)
        self._results.append(PartitionResponse(number))
        self._found.append([])
        return len(self._results) - 1

    def fail(self, item: int, error: ErrorCode, message: str | None = None) -> None:
        self._found[item].clear()
        self._results[item] = replace(
            self._results[item], error_code=error, error_message=message or error.message
        )

    def results(self) -> list[PartitionResponse]:
        """The partitions with their producers."""
        return [
            replace(result, active_producers=tuple(found))
            for result, found in zip(self._results, self._found, strict=True)
        ]

    def _take(self, item: int, answer: Answer) -> None:
        error, producer_id = answer[2], answer[6]
        if error:
            self.fail(item, ErrorCode(error))
        elif producer_id >= 0:
            route = self._routes[item]
            assert route is not None
            self._found[item].append(
                ProducerState(
                    producer_id,
                    producer_epoch=answer[12],
                    last_sequence=_signed(answer[9]),
                    last_timestamp=answer[7],
                    coordinator_epoch=_signed(answer[10]),
                    current_txn_start_offset=answer[8],
                )
            )
            self._handler.ask(self, item, route, from_id=producer_id + 1)

    def _lose(self, item: int) -> None:
        self.fail(item, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _complete(self) -> None:
        self._handler.complete(self)


def _signed(word: int) -> int:
    """A number of 32 bits that went through a field without a sign."""
    return word - _WORD if word >= _SIGN else word
