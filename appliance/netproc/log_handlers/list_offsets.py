"""ListOffsets 1-11 in the network process: edges from the partition table, times from the partition's owner.

latest is the high watermark, or the last stable offset for read_committed; earliest the log start. There is no
tiered storage: earliest-local is earliest, latest-tiered and earliest-pending-upload are -1.
"""

from __future__ import annotations

from msgspec.structs import replace

from appliance.channels.partition_table import (
    HIGH_WATERMARK,
    LAST_STABLE_OFFSET,
    LOG_START,
    SERVING_INCARNATION,
)
from appliance.channels.request_channel import Op, RequestFlag
from appliance.netproc.connection import Pending
from appliance.netproc.log_handlers.owners_asked import AsksOwners, OwnersAsked, operation
from appliance.netproc.topic_routes import PartitionRoute
from appliance.netproc.worker_lines import Answer
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.list_offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    SPECIAL_TIMESTAMP_SINCE,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.leader_epoch import leader_epoch_fault
from appliance.protocol.messages import decode_request

READ_COMMITTED = 1


class ListOffsetsHandler(AsksOwners):
    """Serves ListOffsets for one network process."""

    __slots__ = ()

    def begin(self, pending: Pending, view: memoryview, position: int, end: int) -> None:
        """Answers at once, or when the owners have looked.

        Raises:
            MalformedFrame: the body does not parse.
        """
        request: ListOffsetsRequest = decode_request(
            ApiKey.LIST_OFFSETS, pending.version, view, position, end
        )
        asker = _Asker(self, pending, request)
        lines = self._lines
        lines.enter(asker)
        seen: set[tuple[str, int]] = set()
        for topic in request.topics:
            for wanted in topic.partitions:
                key = (topic.name, wanted.partition_index)
                if key in seen or request.replica_id >= 0:
                    asker.add(topic.name, _error(wanted, ErrorCode.INVALID_REQUEST))
                    continue
                seen.add(key)
                self._begin_partition(asker, topic.name, wanted, request, pending)
        if not asker.is_waiting:
            self.complete(asker)

    def complete(self, asker: _Asker) -> None:
        """Every partition has its answer."""
        response = ListOffsetsResponse(
            tuple(
                ListOffsetsTopicResponse(
                    topic.name, tuple(asker.answers_of(topic.name, len(topic.partitions)))
                )
                for topic in asker.request.topics
            )
        )
        self._answer(ApiKey.LIST_OFFSETS, asker, response)

    def _begin_partition(
        self,
        asker: _Asker,
        topic: str,
        wanted: ListOffsetsPartition,
        request: ListOffsetsRequest,
        pending: Pending,
    ) -> None:
        route = self._route(topic, wanted.partition_index)
        if route is None:
            asker.add(topic, _error(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        at = self._table.at(route.row)
        cells = self._table.cells
        if route.worker is None:
            asker.add(topic, _error(wanted, ErrorCode.LEADER_NOT_AVAILABLE))
        elif self._table.is_offline(route.row, route.incarnation):
            asker.add(topic, _error(wanted, ErrorCode.KAFKA_STORAGE_ERROR))
        elif (
            route.leader != pending.connection.slot
            or cells[at + SERVING_INCARNATION] != route.incarnation
            or not self._lines.is_up(route.worker)
        ):
            asker.add(topic, _error(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif fault := leader_epoch_fault(wanted.current_leader_epoch, route.leader_epoch):
            asker.add(topic, _error(wanted, fault))
        elif wanted.timestamp_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP, LATEST_TIMESTAMP):
            if not _allowed(wanted.timestamp_ms, pending.version):
                asker.add(topic, _error(wanted, ErrorCode.UNSUPPORTED_VERSION))
                return
            latest = LAST_STABLE_OFFSET if request.isolation_level == READ_COMMITTED else HIGH_WATERMARK
            word = latest if wanted.timestamp_ms == LATEST_TIMESTAMP else LOG_START
            asker.add(
                topic,
                ListOffsetsPartitionResponse(
                    wanted.partition_index, 0, -1, cells[at + word], route.leader_epoch
                ),
            )
        elif wanted.timestamp_ms < 0 and not _allowed(wanted.timestamp_ms, pending.version):
            asker.add(topic, _error(wanted, ErrorCode.UNSUPPORTED_VERSION))
        elif wanted.timestamp_ms < 0 and wanted.timestamp_ms != MAX_TIMESTAMP:
            asker.add(topic, ListOffsetsPartitionResponse(wanted.partition_index))
        else:
            self._ask_owner(asker, topic, wanted, route, request)

    def _ask_owner(
        self,
        asker: _Asker,
        topic: str,
        wanted: ListOffsetsPartition,
        route: PartitionRoute,
        request: ListOffsetsRequest,
    ) -> None:
        assert route.worker is not None
        flags = RequestFlag.READ_COMMITTED if request.isolation_level == READ_COMMITTED else 0
        if wanted.timestamp_ms == MAX_TIMESTAMP:
            flags |= RequestFlag.MAX_TIMESTAMP
        item = asker.add(topic, ListOffsetsPartitionResponse(wanted.partition_index))
        asked = operation(
            Op.LIST_OFFSETS,
            asker,
            item,
            route,
            flags=int(flags),
            epoch=wanted.current_leader_epoch,
            offset=wanted.timestamp_ms,
        )
        self._lines.place(route.worker, asked)
        asker.asked(item, route.worker)


class _Asker(OwnersAsked):
    """One ListOffsets request while owners look."""

    __slots__ = ("_handler", "_results", "_topics", "request")

    def __init__(self, handler: ListOffsetsHandler, pending: Pending, request: ListOffsetsRequest) -> None:
        super().__init__(pending)
        self._handler = handler
        self.request = request
        self._results: list[ListOffsetsPartitionResponse] = []
        self._topics: list[str] = []

    def add(self, topic: str, result: ListOffsetsPartitionResponse) -> int:
        """Keeps the place of a partition in the order asked; its item number."""
        self._results.append(result)
        self._topics.append(topic)
        return len(self._results) - 1

    def answers_of(self, _topic: str, count: int) -> list[ListOffsetsPartitionResponse]:
        """The next `count` results; topics are answered in the order asked."""
        answers, self._results = self._results[:count], self._results[count:]
        return answers

    def _take(self, item: int, answer: Answer) -> None:
        self._results[item] = replace(
            self._results[item],
            error_code=answer[2],
            timestamp_ms=answer[7],
            offset=answer[6],
            leader_epoch=answer[12],
        )

    def _lose(self, item: int) -> None:
        self._results[item] = replace(self._results[item], error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _complete(self) -> None:
        self._handler.complete(self)


def _error(wanted: ListOffsetsPartition, error: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(wanted.partition_index, int(error))


def _allowed(timestamp_ms: int, version: int) -> bool:
    return version >= SPECIAL_TIMESTAMP_SINCE.get(timestamp_ms, 1 << 15)
