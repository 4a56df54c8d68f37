"""OffsetForLeaderEpoch 2-4 in the network process: each partition's owner looks into its epochs.

Consumers ask; replicas here read their leader's epoch file and do not. A partition that is named twice is
INVALID_REQUEST in its second place.
"""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from appliance.channels.request_channel import ANSWER_EPOCH, EPOCH_END_OFFSET, ERROR, Op
from appliance.protocol.apis.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.log_handlers.partitioned import (
    PartitionedHandler,
    PartitionedRequest,
    Resume,
    operation,
)
from appliance.requests.session import Request
from appliance.requests.steps import Steps, in_pieces
from appliance.requests.worker_lines import Answer

_NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class OffsetForLeaderEpochHandler(PartitionedHandler):
    """Serves OffsetForLeaderEpoch for one network process."""

    __slots__ = ()

    def begin(self, pending: Request, view: memoryview, position: int, end: int) -> Steps[None]:
        """Answers at once, or when the owners have looked.

        Raises:
            MalformedFrame: the body does not parse.
        """
        request: OffsetForLeaderEpochRequest = yield from self._decoded(pending, view, position, end)
        partitioned = _PartitionedLookup(pending, self.resume)
        with self._entered(partitioned):
            seen: set[tuple[str, int]] = set()
            for topic in request.topics:
                for wanted in topic.partitions:
                    key = (topic.topic, wanted.partition)
                    if key in seen:
                        partitioned.add(EpochEndOffset(wanted.partition, int(ErrorCode.INVALID_REQUEST)))
                    else:
                        seen.add(key)
                        self._begin_partition(partitioned, topic.topic, wanted)
                    yield from self._paced(partitioned, len(partitioned.results))
            yield from self._all_answered(partitioned)
        results = iter(partitioned.results)
        topics = yield from in_pieces(
            lambda topic: OffsetForLeaderTopicResult(
                topic.topic, tuple(islice(results, len(topic.partitions)))
            ),
            request.topics,
        )
        yield from self._answer(pending, OffsetForLeaderEpochResponse(topics))

    def _begin_partition(
        self, partitioned: _PartitionedLookup, topic: str, wanted: OffsetForLeaderPartition
    ) -> None:
        route = self._route(topic, wanted.partition)
        item = partitioned.add(EpochEndOffset(wanted.partition))
        if route is None:
            partitioned.fail(item, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        asked = operation(
            Op.EPOCH_END,
            partitioned,
            item,
            route,
            epoch=wanted.current_leader_epoch,
            offset=wanted.leader_epoch,
        )
        if self._table.is_offline(route.row, route.incarnation):
            partitioned.fail(item, int(ErrorCode.KAFKA_STORAGE_ERROR))
        elif not partitioned.ask_leader(item, route, asked, table=self._table, lines=self._lines):
            partitioned.fail(item, _NOT_LEADER)


class _PartitionedLookup(PartitionedRequest):
    """One OffsetForLeaderEpoch request in flight; `results` by item, in the order asked."""

    __slots__ = ("results",)

    def __init__(self, pending: Request, resume: Resume) -> None:
        super().__init__(pending, resume)
        self.results: list[EpochEndOffset] = []

    def add(self, result: EpochEndOffset) -> int:
        """Keeps the place of a partition; its item number."""
        self.results.append(result)
        return len(self.results) - 1

    def fail(self, item: int, error: int) -> None:
        self.results[item] = replace(self.results[item], error_code=error)

    def _take(self, item: int, answer: Answer) -> None:
        self.results[item] = replace(
            self.results[item],
            error_code=answer[ERROR],
            leader_epoch=answer[ANSWER_EPOCH],
            end_offset=answer[EPOCH_END_OFFSET],
        )

    def _lose(self, item: int) -> None:
        self.fail(item, _NOT_LEADER)
