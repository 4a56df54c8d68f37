"""DeleteRecords 0-2 in the network process: split by partition, each asked of its owner.

As in Kafka, a partition that is named twice is taken once, with the offset named last, and records of internal topics
may not be deleted (INVALID_TOPIC_EXCEPTION). Policy and offset are the owner's to judge; it waits for followers, no
longer than `timeout_ms`.
"""

from __future__ import annotations

from appliance.channels.request_channel import ERROR, LOW_WATERMARK, Op
from appliance.cluster import is_internal
from appliance.protocol.apis.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.log_handlers.partitioned import (
    PartitionedHandler,
    PartitionedRequest,
    Resume,
    operation,
)
from appliance.requests.session import Request
from appliance.requests.steps import Steps
from appliance.requests.worker_lines import Answer

_NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)

Place = tuple[str, int]
"""Topic and partition."""


class DeleteRecordsHandler(PartitionedHandler):
    """Serves DeleteRecords for one network process."""

    __slots__ = ()

    def begin(self, pending: Request, view: memoryview, position: int, end: int) -> Steps[None]:
        """Answers at once, or when the owners have.

        Raises:
            MalformedFrame: the body does not parse.
        """
        request: DeleteRecordsRequest = yield from self._decoded(pending, view, position, end)
        partitioned = _PartitionedDeletion(pending, self.resume, max(0, request.timeout_ms))
        wanted: dict[Place, int] = {
            (topic.name, each.partition_index): each.offset
            for topic in request.topics
            for each in topic.partitions
        }
        yield None
        with self._entered(partitioned):
            for place, offset in wanted.items():
                self._begin_partition(partitioned, place, offset)
                yield from self._paced(partitioned, len(partitioned.places))
            yield from self._all_answered(partitioned)
        by_topic: dict[str, list[DeleteRecordsPartitionResult]] = {}
        for (topic, partition), (low_watermark, error) in zip(
            partitioned.places, partitioned.results, strict=True
        ):
            by_topic.setdefault(topic, []).append(
                DeleteRecordsPartitionResult(partition, low_watermark, error)
            )
        response = DeleteRecordsResponse(
            tuple(DeleteRecordsTopicResult(topic, tuple(results)) for topic, results in by_topic.items())
        )
        yield from self._answer(pending, response)

    def _begin_partition(self, partitioned: _PartitionedDeletion, place: Place, offset: int) -> None:
        topic, partition = place
        route = self._route(topic, partition)
        item = partitioned.add(place)
        if route is None:
            partitioned.results[item] = (-1, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        elif is_internal(topic):
            partitioned.results[item] = (-1, int(ErrorCode.INVALID_TOPIC_EXCEPTION))
        elif self._table.is_offline(route.row, route.incarnation):
            partitioned.results[item] = (-1, int(ErrorCode.KAFKA_STORAGE_ERROR))
        else:
            asked = operation(
                Op.DELETE_RECORDS,
                partitioned,
                item,
                route,
                epoch=route.leader_epoch,
                length_bytes=partitioned.timeout_ms,
                offset=offset,
            )
            if not partitioned.ask_leader(item, route, asked, table=self._table, lines=self._lines):
                partitioned.results[item] = (-1, _NOT_LEADER)


class _PartitionedDeletion(PartitionedRequest):
    """One DeleteRecords request in flight. `results` are (low watermark, error), by item."""

    __slots__ = ("places", "results", "timeout_ms")

    def __init__(self, pending: Request, resume: Resume, timeout_ms: int) -> None:
        super().__init__(pending, resume)
        self.timeout_ms = timeout_ms
        self.places: list[Place] = []
        self.results: list[tuple[int, int]] = []

    def add(self, place: Place) -> int:
        """Keeps the place of a partition; its item number."""
        self.places.append(place)
        self.results.append((-1, 0))
        return len(self.places) - 1

    def _take(self, item: int, answer: Answer) -> None:
        self.results[item] = (answer[LOW_WATERMARK], answer[ERROR])

    def _lose(self, item: int) -> None:
        """It may have moved the log start or not; to ask again does no harm, and the error says to."""
        self.results[item] = (-1, _NOT_LEADER)
