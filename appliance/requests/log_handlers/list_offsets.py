"""ListOffsets 1-11 in the network process: edges from the partition table, times from the partition's owner.

latest is the high watermark, or the last stable offset for read_committed; earliest the log start.

Left out: tiered storage. The broker answers a request for earliest-local like a request for earliest. It answers -1 to
a request for latest-tiered or earliest-pending-upload.
"""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from appliance.channels.partition_table import (
    HIGH_WATERMARK,
    LAST_STABLE_OFFSET,
    LOG_START,
    SERVING_INCARNATION,
)
from appliance.channels.request_channel import (
    ANSWER_EPOCH,
    ERROR,
    FOUND_OFFSET,
    FOUND_TIMESTAMP_MS,
    Op,
    RequestFlag,
)
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
from appliance.requests.log_handlers.partitioned import (
    PartitionedHandler,
    PartitionedRequest,
    Resume,
    operation,
)
from appliance.requests.session import Request
from appliance.requests.steps import Steps, in_pieces
from appliance.requests.topic_routes import PartitionRoute
from appliance.requests.worker_lines import Answer

READ_COMMITTED = 1


class ListOffsetsHandler(PartitionedHandler):
    """Serves ListOffsets for one network process."""

    __slots__ = ()

    def begin(self, pending: Request, view: memoryview, position: int, end: int) -> Steps[None]:
        """Answers at once, or when the owners have looked.

        Raises:
            MalformedFrame: the body does not parse.
        """
        request: ListOffsetsRequest = yield from self._decoded(pending, view, position, end)
        partitioned = _PartitionedLookup(pending, self.resume)
        with self._entered(partitioned):
            seen: set[tuple[str, int]] = set()
            for topic in request.topics:
                for wanted in topic.partitions:
                    key = (topic.name, wanted.partition_index)
                    if key in seen or request.replica_id >= 0:
                        partitioned.add(_error(wanted, ErrorCode.INVALID_REQUEST))
                    else:
                        seen.add(key)
                        self._begin_partition(partitioned, topic.name, wanted, request)
                    yield from self._paced(partitioned, len(partitioned.results))
            yield from self._all_answered(partitioned)
        # Topics are answered in the order asked.
        results = iter(partitioned.results)
        topics = yield from in_pieces(
            lambda topic: ListOffsetsTopicResponse(topic.name, tuple(islice(results, len(topic.partitions)))),
            request.topics,
        )
        yield from self._answer(pending, ListOffsetsResponse(topics))

    def _begin_partition(
        self,
        partitioned: _PartitionedLookup,
        topic: str,
        wanted: ListOffsetsPartition,
        request: ListOffsetsRequest,
    ) -> None:
        pending = partitioned.pending
        route = self._route(topic, wanted.partition_index)
        if route is None:
            partitioned.add(_error(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        at = self._table.at(route.row)
        cells = self._table.cells
        if route.worker is None:
            partitioned.add(_error(wanted, ErrorCode.LEADER_NOT_AVAILABLE))
        elif self._table.is_offline(route.row, route.incarnation):
            partitioned.add(_error(wanted, ErrorCode.KAFKA_STORAGE_ERROR))
        elif (
            route.leader != pending.session.slot
            or cells[at + SERVING_INCARNATION] != route.incarnation
            or not self._lines.is_up(route.worker)
        ):
            partitioned.add(_error(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif fault := leader_epoch_fault(wanted.current_leader_epoch, route.leader_epoch):
            partitioned.add(_error(wanted, fault))
        elif wanted.timestamp_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP, LATEST_TIMESTAMP):
            if not _allowed(wanted.timestamp_ms, pending.version):
                partitioned.add(_error(wanted, ErrorCode.UNSUPPORTED_VERSION))
                return
            latest = LAST_STABLE_OFFSET if request.isolation_level == READ_COMMITTED else HIGH_WATERMARK
            word = latest if wanted.timestamp_ms == LATEST_TIMESTAMP else LOG_START
            partitioned.add(
                ListOffsetsPartitionResponse(
                    wanted.partition_index, 0, -1, cells[at + word], route.leader_epoch
                ),
            )
        elif wanted.timestamp_ms < 0 and not _allowed(wanted.timestamp_ms, pending.version):
            partitioned.add(_error(wanted, ErrorCode.UNSUPPORTED_VERSION))
        elif wanted.timestamp_ms < 0 and wanted.timestamp_ms != MAX_TIMESTAMP:
            partitioned.add(ListOffsetsPartitionResponse(wanted.partition_index))
        else:
            self._ask_owner(partitioned, topic, wanted, route, request)

    def _ask_owner(
        self,
        partitioned: _PartitionedLookup,
        topic: str,
        wanted: ListOffsetsPartition,
        route: PartitionRoute,
        request: ListOffsetsRequest,
    ) -> None:
        assert route.worker is not None
        flags = RequestFlag.READ_COMMITTED if request.isolation_level == READ_COMMITTED else 0
        if wanted.timestamp_ms == MAX_TIMESTAMP:
            flags |= RequestFlag.MAX_TIMESTAMP
        item = partitioned.add(ListOffsetsPartitionResponse(wanted.partition_index))
        asked = operation(
            Op.LIST_OFFSETS,
            partitioned,
            item,
            route,
            flags=int(flags),
            epoch=wanted.current_leader_epoch,
            offset=wanted.timestamp_ms,
        )
        self._lines.place(route.worker, asked)
        partitioned.placed(item, route.worker)


class _PartitionedLookup(PartitionedRequest):
    """One ListOffsets request in flight; `results` by item, in the order asked."""

    __slots__ = ("results",)

    def __init__(self, pending: Request, resume: Resume) -> None:
        super().__init__(pending, resume)
        self.results: list[ListOffsetsPartitionResponse] = []

    def add(self, result: ListOffsetsPartitionResponse) -> int:
        """Keeps the place of a partition in the order asked; its item number."""
        self.results.append(result)
        return len(self.results) - 1

    def _take(self, item: int, answer: Answer) -> None:
        self.results[item] = replace(
            self.results[item],
            error_code=answer[ERROR],
            timestamp_ms=answer[FOUND_TIMESTAMP_MS],
            offset=answer[FOUND_OFFSET],
            leader_epoch=answer[ANSWER_EPOCH],
        )

    def _lose(self, item: int) -> None:
        self.results[item] = replace(self.results[item], error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER))


def _error(wanted: ListOffsetsPartition, error: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(wanted.partition_index, int(error))


def _allowed(timestamp_ms: int, version: int) -> bool:
    return version >= SPECIAL_TIMESTAMP_SINCE.get(timestamp_ms, 1 << 15)
