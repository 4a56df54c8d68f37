"""DescribeProducers 0 (KIP-664) in the network process: each partition's owner is asked for one producer after another.

An owner holds as many producers as wrote within producer.id.expiration.ms; it is asked for the next one when it has
answered, so however many there are, one operation a partition is under way. A partition that this slot does not lead is
NOT_LEADER_OR_FOLLOWER.

Left out: answers of followers. In Apache Kafka, followers answer this request too.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from msgspec.structs import replace

from appliance.channels.request_channel import (
    ANSWER_EPOCH,
    ERROR,
    FOUND_PRODUCER_ID,
    PRODUCER_COORDINATOR_EPOCH,
    PRODUCER_LAST_TIMESTAMP_MS,
    PRODUCER_SEQUENCE,
    TRANSACTION_FIRST_OFFSET,
    Op,
)
from appliance.cluster import topic_name_fault
from appliance.protocol.apis.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.log_handlers.partitioned import PartitionedHandler, PartitionedRequest, operation
from appliance.requests.session import Request
from appliance.requests.steps import Steps, in_pieces
from appliance.requests.topic_routes import PartitionRoute
from appliance.requests.worker_lines import Answer

_SIGN: Final = 1 << 31
_WORD: Final = 1 << 32


class DescribeProducersHandler(PartitionedHandler):
    """Serves DescribeProducers for one network process."""

    __slots__ = ()

    def begin(self, pending: Request, view: memoryview, position: int, end: int) -> Steps[None]:
        """Answers when the owners have told all.

        Raises:
            MalformedFrame: the body does not parse.
        """
        request: DescribeProducersRequest = yield from self._decoded(pending, view, position, end)
        topics = _each_once(request)
        yield None
        partitioned = _PartitionedDescription(self, pending)
        with self._entered(partitioned):
            for name, numbers in topics.items():
                fault = topic_name_fault(name)
                for number in numbers:
                    self._begin_partition(partitioned, name, number, fault=fault)
                    yield from self._paced(partitioned, len(partitioned.found))
            yield from self._all_answered(partitioned)
        results = yield from in_pieces(partitioned.result, range(len(partitioned.found)))
        in_order = iter(results)
        response = DescribeProducersResponse(
            tuple(
                TopicResponse(name, tuple(islice(in_order, len(numbers)))) for name, numbers in topics.items()
            )
        )
        yield from self._answer(pending, response)

    def _begin_partition(
        self, partitioned: _PartitionedDescription, topic: str, number: int, *, fault: str | None
    ) -> None:
        route = self._route(topic, number) if fault is None else None
        item = partitioned.add(number, route)
        if fault is not None:
            partitioned.fail(item, ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        elif route is None:
            partitioned.fail(item, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif self._table.is_offline(route.row, route.incarnation):
            partitioned.fail(item, ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            self.ask(partitioned, item, route, from_id=0)

    def ask(
        self, partitioned: _PartitionedDescription, item: int, route: PartitionRoute, *, from_id: int
    ) -> None:
        """Asks the owner of a partition for its first producer whose id is not below `from_id`."""
        asked = operation(Op.DESCRIBE_PRODUCER, partitioned, item, route, offset=from_id)
        if not partitioned.ask_leader(item, route, asked, table=self._table, lines=self._lines):
            partitioned.fail(item, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _each_once(request: DescribeProducersRequest) -> dict[str, dict[int, None]]:
    """Topic → partitions. One of many producers, named over and over, would make a small request worth gigabytes."""
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return wanted


class _PartitionedDescription(PartitionedRequest):
    """One DescribeProducers request in flight; everything by item, in the order asked."""

    __slots__ = ("_handler", "_results", "_routes", "found")

    def __init__(self, handler: DescribeProducersHandler, pending: Request) -> None:
        super().__init__(pending, handler.resume)
        self._handler = handler
        self._routes: list[PartitionRoute | None] = []
        self._results: list[PartitionResponse] = []
        self.found: list[list[ProducerState]] = []

    def add(self, number: int, route: PartitionRoute | None) -> int:
        """Keeps the place of a partition; its item number."""
        self._routes.append(route)
        self._results.append(PartitionResponse(number))
        self.found.append([])
        return len(self._results) - 1

    def fail(self, item: int, error: ErrorCode, message: str | None = None) -> None:
        self.found[item].clear()
        self._results[item] = replace(
            self._results[item], error_code=error, error_message=message or error.message
        )

    def result(self, item: int) -> PartitionResponse:
        """A partition with its producers."""
        return replace(self._results[item], active_producers=tuple(self.found[item]))

    def _take(self, item: int, answer: Answer) -> None:
        error, producer_id = answer[ERROR], answer[FOUND_PRODUCER_ID]
        if error:
            self.fail(item, ErrorCode(error))
        elif producer_id >= 0:
            route = self._routes[item]
            assert route is not None
            self.found[item].append(
                ProducerState(
                    producer_id,
                    producer_epoch=answer[ANSWER_EPOCH],
                    last_sequence=_signed(answer[PRODUCER_SEQUENCE]),
                    last_timestamp=answer[PRODUCER_LAST_TIMESTAMP_MS],
                    coordinator_epoch=_signed(answer[PRODUCER_COORDINATOR_EPOCH]),
                    current_txn_start_offset=answer[TRANSACTION_FIRST_OFFSET],
                )
            )
            self._handler.ask(self, item, route, from_id=producer_id + 1)

    def _lose(self, item: int) -> None:
        self.fail(item, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _signed(word: int) -> int:
    """A number of 32 bits that went through a field without a sign."""
    return word - _WORD if word >= _SIGN else word
