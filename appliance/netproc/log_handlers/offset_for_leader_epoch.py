"""OffsetForLeaderEpoch 2-4 in the network process: each partition's owner looks into its epochs.

Consumers ask; replicas here read their leader's epoch file and do not. A partition that is named twice is
INVALID_REQUEST in its second place. Left out: the permission to ask (security issue).
"""

from __future__ import annotations

from msgspec.structs import replace

from appliance.channels.partition_table import PartitionTable
from appliance.channels.request_channel import Op
from appliance.netproc.connection import Pending
from appliance.netproc.log_handlers.finish import Finish
from appliance.netproc.log_handlers.owners_asked import OwnersAsked
from appliance.netproc.topic_routes import TopicRoutes
from appliance.netproc.worker_lines import Answer, WorkerLines
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.messages import decode_request, encode_response

_EPOCH_END = int(Op.EPOCH_END)
_NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class OffsetForLeaderEpochHandler:
    """Serves OffsetForLeaderEpoch for one network process."""

    __slots__ = ("_finish", "_lines", "_routes", "_table")

    def __init__(
        self, routes: TopicRoutes, lines: WorkerLines, table: PartitionTable, *, finish: Finish
    ) -> None:
        self._routes = routes
        self._lines = lines
        self._table = table
        self._finish = finish

    def begin(self, pending: Pending, view: memoryview, position: int, end: int) -> None:
        """Answers at once, or when the owners have looked.

        Raises:
            MalformedFrame: the body does not parse.
        """
        request: OffsetForLeaderEpochRequest = decode_request(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, pending.version, view, position, end
        )
        asker = _Asker(self, pending, request)
        self._lines.enter(asker)
        seen: set[tuple[str, int]] = set()
        for topic in request.topics:
            for wanted in topic.partitions:
                key = (topic.topic, wanted.partition)
                if key in seen:
                    asker.add(EpochEndOffset(wanted.partition, int(ErrorCode.INVALID_REQUEST)))
                else:
                    seen.add(key)
                    self._begin_partition(asker, topic.topic, wanted)
        if not asker.is_waiting:
            self.complete(asker)

    def complete(self, asker: _Asker) -> None:
        """Every partition has its answer."""
        self._lines.leave(asker)
        results = iter(asker.results)
        response = OffsetForLeaderEpochResponse(
            tuple(
                OffsetForLeaderTopicResult(topic.topic, tuple(next(results) for _ in topic.partitions))
                for topic in asker.request.topics
            )
        )
        pending = asker.pending
        frame = encode_response(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, pending.version, response, pending.correlation_id
        )
        self._finish(pending, [frame])

    def _begin_partition(self, asker: _Asker, topic: str, wanted: OffsetForLeaderPartition) -> None:
        known = self._routes.by_name(topic)
        route = known.partition(wanted.partition) if known is not None else None
        item = asker.add(EpochEndOffset(wanted.partition))
        if route is None:
            asker.fail(item, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        operation = (
            _EPOCH_END,
            0,
            0,
            asker.request_id,
            item,
            route.row,
            route.incarnation,
            wanted.current_leader_epoch,
            0,
            0,
            asker.pending.version,
            wanted.leader_epoch,
            0,
            0,
        )
        if self._table.is_offline(route.row, route.incarnation):
            asker.fail(item, int(ErrorCode.KAFKA_STORAGE_ERROR))
        elif not asker.ask_leader(item, route, operation, table=self._table, lines=self._lines):
            asker.fail(item, _NOT_LEADER)


class _Asker(OwnersAsked):
    """One request while owners look; `results` by item, in the order asked."""

    __slots__ = ("_handler", "request", "results")

    def __init__(
        self, handler: OffsetForLeaderEpochHandler, pending: Pending, request: OffsetForLeaderEpochRequest
    ) -> None:
        super().__init__(pending)
        self._handler = handler
        self.request = request
        self.results: list[EpochEndOffset] = []

    def add(self, result: EpochEndOffset) -> int:
        """Keeps the place of a partition; its item number."""
        self.results.append(result)
        return len(self.results) - 1

    def fail(self, item: int, error: int) -> None:
        self.results[item] = replace(self.results[item], error_code=error)

    def _take(self, item: int, answer: Answer) -> None:
        self.results[item] = replace(
            self.results[item], error_code=answer[2], leader_epoch=answer[12], end_offset=answer[6]
        )

    def _lose(self, item: int) -> None:
        self.fail(item, _NOT_LEADER)

    def _complete(self) -> None:
        self._handler.complete(self)
