"""AlterReplicaLogDirs 1-2 in the network process: whoever holds each partition is told where it shall go.

| why not | error, in this order |
|---|---|
| the name is too long for a copy's directory (KAFKA-4893) | INVALID_TOPIC_EXCEPTION |
| the slot has no log directory of that path | LOG_DIR_NOT_FOUND |
| it, the partition's own, or any other, has failed | KAFKA_STORAGE_ERROR |
| the slot neither serves nor follows the partition now | REPLICA_NOT_AVAILABLE |

No error means that the move goes on, not that it is done: DescribeLogDirs shows that. As in Kafka, a partition that is
named twice goes where it was named last. The slot's worker is told of what the slot leads, its replica, through the
controller, of what it follows. Source: `ReplicaManager.alterReplicaLogDirs`.

Left out: choosing the directory of a partition that does not exist yet.
"""

from __future__ import annotations

from appliance.channels.control_channel import Body, CopiesMoved, CopyMove, MoveCopies
from appliance.channels.request_channel import ERROR, Op
from appliance.cluster import TopicPartition
from appliance.log.file_names import future_directory_name
from appliance.protocol.apis.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.log_handlers.partitioned import (
    PartitionedHandler,
    PartitionedRequest,
    Resume,
    operation,
)
from appliance.requests.session import Request
from appliance.requests.steps import Ask, Steps, chunks
from appliance.requests.worker_lines import Answer

REPLICA_TIMEOUT_MS = 10_000
"""How long the replica's answer is waited for; then the move may have begun or not."""
_NOT_AVAILABLE = int(ErrorCode.REPLICA_NOT_AVAILABLE)
_NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class AlterReplicaLogDirsHandler(PartitionedHandler):
    """Serves AlterReplicaLogDirs for one network process."""

    __slots__ = ()

    def begin(self, pending: Request, view: memoryview, position: int, end: int) -> Steps[None]:
        """Answers at once, or when the owners have.

        Raises:
            MalformedFrame: the body does not parse.
        """
        request: AlterReplicaLogDirsRequest = yield from self._decoded(pending, view, position, end)
        wanted = {
            TopicPartition(topic.name, partition): each.path
            for each in request.dirs
            for topic in each.topics
            for partition in topic.partitions
        }
        yield None
        partitioned = _PartitionedMoves(pending, self.resume, tuple(wanted))
        with self._entered(partitioned):
            for item, (partition, path) in enumerate(wanted.items()):
                partitioned.errors[item] = self._begin_partition(partitioned, item, partition, path)
                yield from self._paced(partitioned, item + 1)
            for copies in chunks(list(partitioned.copies.items())):
                question = MoveCopies(pending.session.slot, tuple(copy for _, copy in copies))
                answer = yield Ask(question, REPLICA_TIMEOUT_MS)
                partitioned.replica_answered([item for item, _ in copies], answer)
            yield from self._all_answered(partitioned)
        by_topic: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
        for partition, error in zip(partitioned.partitions, partitioned.errors, strict=True):
            by_topic.setdefault(partition.topic, []).append(
                AlterReplicaLogDirPartitionResult(partition.partition, error)
            )
        results = tuple(AlterReplicaLogDirTopicResult(name, tuple(each)) for name, each in by_topic.items())
        yield from self._answer(pending, AlterReplicaLogDirsResponse(results))

    def _begin_partition(
        self, partitioned: _PartitionedMoves, item: int, partition: TopicPartition, path: str
    ) -> int:
        """Asks the owner, or says at once what is wrong; 0 while it is asked, or where nothing is to be done."""
        slot = partitioned.pending.session.slot
        if future_directory_name(partition) is None:
            return int(ErrorCode.INVALID_TOPIC_EXCEPTION)
        directory = self._log_dirs.index(slot, path)
        if directory is None:
            return int(ErrorCode.LOG_DIR_NOT_FOUND)
        if not self._log_dirs.is_online(slot, directory):
            return int(ErrorCode.KAFKA_STORAGE_ERROR)
        route = self._route(partition.topic, partition.partition)
        if route is not None and route.leader != slot:
            if self._table.followed_copy(route.row, route.incarnation, slot) is None:
                return _NOT_AVAILABLE
            partitioned.copies[item] = CopyMove(
                partition.topic, partition.partition, route.incarnation, directory
            )
            return 0
        if route is None or route.worker is None:
            return _NOT_AVAILABLE
        if self._table.is_offline(route.row, route.incarnation):
            return int(ErrorCode.KAFKA_STORAGE_ERROR)
        if not self._table.serves(route.row, route.incarnation) or not self._lines.place(
            route.worker, operation(Op.ALTER_LOG_DIR, partitioned, item, route, offset=directory)
        ):
            return _NOT_AVAILABLE
        partitioned.placed(item, route.worker)
        return 0


class _PartitionedMoves(PartitionedRequest):
    """One AlterReplicaLogDirs request in flight. `errors` by item, in the order of `partitions`; `copies`: what the
    slot's replica process gets, by item."""

    __slots__ = ("copies", "errors", "partitions")

    def __init__(self, pending: Request, resume: Resume, partitions: tuple[TopicPartition, ...]) -> None:
        super().__init__(pending, resume)
        self.partitions = partitions
        self.errors = [0] * len(partitions)
        self.copies: dict[int, CopyMove] = {}

    def replica_answered(self, items: list[int], answer: Body | None) -> None:
        """With an error code for each of `items`; or there was none, and the moves may have begun or not."""
        errors = answer.errors if isinstance(answer, CopiesMoved) else ()
        for item in items:
            self.errors[item] = _NOT_AVAILABLE
        for item, error in zip(items, errors, strict=False):
            self.errors[item] = error

    def _take(self, item: int, answer: Answer) -> None:
        self.errors[item] = _NOT_AVAILABLE if answer[ERROR] == _NOT_LEADER else answer[ERROR]

    def _lose(self, item: int) -> None:
        """The move may have begun or not; to ask again does no harm."""
        self.errors[item] = _NOT_AVAILABLE
