"""DescribeLogDirs 1-5 in the network process: every partition's owner is asked where it lies and how large it is.

Where this slot follows,
its replica has said so in the partition table, and where the copy moves to. Partitions that are neither served nor
followed lie in no directory. A directory that has failed is KAFKA_STORAGE_ERROR and holds nothing, and so are all of
them while their worker is down. Unknown partitions are passed over, as in Kafka.

Left out: cordoned directories (KIP-1066).
Source: `ReplicaManager.describeLogDirs`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from appliance.channels.partition_table import HIGH_WATERMARK
from appliance.channels.request_channel import (
    ERROR,
    FLAGS,
    FUTURE_LOG_BYTES,
    FUTURE_LOG_DIRECTORY,
    FUTURE_LOG_LAG,
    LOG_BYTES,
    LOG_LAG,
    Op,
)
from appliance.protocol.apis.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
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
from appliance.requests.topic_routes import PartitionRoute
from appliance.requests.worker_lines import Answer

_STORAGE_ERROR = int(ErrorCode.KAFKA_STORAGE_ERROR)


class DescribeLogDirsHandler(PartitionedHandler):
    """Serves DescribeLogDirs for one network process."""

    __slots__ = ()

    def begin(self, pending: Request, view: memoryview, position: int, end: int) -> Steps[None]:
        """Answers when the owners have.

        Raises:
            MalformedFrame: the body does not parse.
        """
        request: DescribeLogDirsRequest = yield from self._decoded(pending, view, position, end)
        slot = pending.session.slot
        wanted = self._wanted(request)
        yield None
        partitioned = _PartitionedDescription(pending, self.resume)
        with self._entered(partitioned):
            for number, route in enumerate(self._routes_of(wanted), 1):
                if route.leader == slot:
                    self._begin_partition(partitioned, route)
                else:
                    self._look_at_copy(partitioned, route, slot)
                yield from self._paced(partitioned, number)
            yield from self._all_answered(partitioned)
        results = tuple(
            _result(path, partitioned.found.get(index, {}))
            if self._log_dirs.is_online(slot, index)
            else DescribeLogDirsResult(_STORAGE_ERROR, path)
            for index, path in enumerate(self._log_dirs.paths[slot])
        )
        yield from self._answer(pending, DescribeLogDirsResponse(results))

    def _begin_partition(self, partitioned: _PartitionedDescription, route: PartitionRoute) -> None:
        item = len(partitioned.routes)
        if (
            route.worker is not None
            and self._table.serves(route.row, route.incarnation)
            and self._lines.place(route.worker, operation(Op.DESCRIBE_LOG_DIR, partitioned, item, route))
        ):
            partitioned.routes.append(route)
            partitioned.placed(item, route.worker)

    def _look_at_copy(self, partitioned: _PartitionedDescription, route: PartitionRoute, slot: int) -> None:
        copy = self._table.followed_copy(route.row, route.incarnation, slot)
        if copy is not None:
            directory, size_bytes, log_end = copy
            high_watermark = self._table.cells[self._table.at(route.row) + HIGH_WATERMARK]
            lag = max(0, high_watermark - log_end)
            partitioned.note(directory, route, size_bytes=size_bytes, lag=lag, is_future=False)
        future = self._table.future_copy(route.row, route.incarnation, slot)
        if future is not None:
            directory, size_bytes, lag = future
            partitioned.note(directory, route, size_bytes=size_bytes, lag=lag, is_future=True)

    def _routes_of(self, wanted: Mapping[str, set[int] | None]) -> Iterator[PartitionRoute]:
        for name, numbers in wanted.items():
            topic = self._routes.by_name(name)
            if topic is None:
                continue
            for number in range(len(topic.image.partitions)) if numbers is None else sorted(numbers):
                route = topic.partition(number)
                if route is not None:
                    yield route

    def _wanted(self, request: DescribeLogDirsRequest) -> Mapping[str, set[int] | None]:
        """Topic → partitions; None for all of them."""
        if request.topics is None:
            image = self._routes.image
            return {} if image is None else dict.fromkeys(image.topics)
        wanted: dict[str, set[int] | None] = {}
        for each in request.topics:
            numbers = wanted.setdefault(each.topic, set())
            assert numbers is not None
            numbers.update(each.partitions)
        return wanted


def _result(path: str, topics: dict[str, list[DescribeLogDirsPartition]]) -> DescribeLogDirsResult:
    try:
        room = os.statvfs(path)
    except OSError:
        return DescribeLogDirsResult(_STORAGE_ERROR, path)  # its owner has not noticed yet
    return DescribeLogDirsResult(
        0,
        path,
        tuple(DescribeLogDirsTopic(name, tuple(partitions)) for name, partitions in topics.items()),
        total_bytes=room.f_blocks * room.f_frsize,
        usable_bytes=room.f_bavail * room.f_frsize,
    )


class _PartitionedDescription(PartitionedRequest):
    """One DescribeLogDirs request in flight; `routes` by item. `found`: directory → topic → partitions."""

    __slots__ = ("found", "routes")

    def __init__(self, pending: Request, resume: Resume) -> None:
        super().__init__(pending, resume)
        self.routes: list[PartitionRoute] = []
        self.found: dict[int, dict[str, list[DescribeLogDirsPartition]]] = {}

    def _take(self, item: int, answer: Answer) -> None:
        if answer[ERROR]:
            return
        route = self.routes[item]
        self.note(answer[FLAGS], route, size_bytes=answer[LOG_BYTES], lag=answer[LOG_LAG], is_future=False)
        if answer[FUTURE_LOG_BYTES] >= 0:
            self.note(
                answer[FUTURE_LOG_DIRECTORY],
                route,
                size_bytes=answer[FUTURE_LOG_BYTES],
                lag=answer[FUTURE_LOG_LAG],
                is_future=True,
            )

    def _lose(self, item: int) -> None:
        """It is not told of; where its owner was the slot's only one, the directories will be said to be offline."""

    def note(
        self, directory: int, route: PartitionRoute, *, size_bytes: int, lag: int, is_future: bool
    ) -> None:
        """Part of the answer."""
        partition = DescribeLogDirsPartition(route.partition, size_bytes, lag, is_future)
        self.found.setdefault(directory, {}).setdefault(route.topic, []).append(partition)
