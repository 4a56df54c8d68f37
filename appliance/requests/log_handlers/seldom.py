"""The handlers of requests that ask the workers, and that no busy client sends often."""

from __future__ import annotations

from collections.abc import Callable

from appliance.channels.wiring import Attachment
from appliance.ipc.buffer_pool import BufferPool
from appliance.protocol.api_versions import ApiKey
from appliance.requests.log_dirs import LogDirs
from appliance.requests.log_handlers.alter_replica_log_dirs import AlterReplicaLogDirsHandler
from appliance.requests.log_handlers.delete_records import DeleteRecordsHandler
from appliance.requests.log_handlers.describe_log_dirs import DescribeLogDirsHandler
from appliance.requests.log_handlers.describe_producers import DescribeProducersHandler
from appliance.requests.log_handlers.finish import Finish
from appliance.requests.log_handlers.list_offsets import ListOffsetsHandler
from appliance.requests.log_handlers.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from appliance.requests.log_handlers.write_txn_markers import WriteTxnMarkersHandler
from appliance.requests.long_requests import LongRequests
from appliance.requests.session import Request
from appliance.requests.steps import Steps
from appliance.requests.topic_routes import TopicRoutes
from appliance.requests.worker_lines import WorkerLines

Begin = Callable[[Request, memoryview, int, int], None]
"""Takes a request: what waits for its answer, the frame's view, and where in it the body begins and ends."""
BeginSteps = Callable[[Request, memoryview, int, int], Steps[None]]


def seldom_handlers(
    attachment: Attachment,
    routes: TopicRoutes,
    lines: WorkerLines,
    *,
    log_dirs: LogDirs,
    pool: BufferPool,
    finish: Finish,
    long: LongRequests,
) -> dict[int, Begin]:
    """API key → what takes its requests; each hands its answer to `finish`."""
    table = attachment.partitions
    common = (routes, lines, table)
    resume = long.resume
    handlers = {
        ApiKey.LIST_OFFSETS: ListOffsetsHandler(*common, pool=pool, finish=finish, resume=resume).begin,
        ApiKey.DELETE_RECORDS: DeleteRecordsHandler(*common, pool=pool, finish=finish, resume=resume).begin,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpochHandler(
            *common, pool=pool, finish=finish, resume=resume
        ).begin,
        ApiKey.WRITE_TXN_MARKERS: WriteTxnMarkersHandler(
            *common, pool=pool, finish=finish, resume=resume
        ).begin,
        ApiKey.DESCRIBE_PRODUCERS: DescribeProducersHandler(
            *common, pool=pool, finish=finish, resume=resume
        ).begin,
        ApiKey.DESCRIBE_LOG_DIRS: DescribeLogDirsHandler(
            *common, log_dirs=log_dirs, pool=pool, finish=finish, resume=resume
        ).begin,
        ApiKey.ALTER_REPLICA_LOG_DIRS: AlterReplicaLogDirsHandler(
            *common, log_dirs=log_dirs, pool=pool, finish=finish, resume=resume
        ).begin,
    }
    return {int(api): _in_pieces(begin, long) for api, begin in handlers.items()}


def _in_pieces(steps_of: BeginSteps, long: LongRequests) -> Begin:
    def begin(pending: Request, view: memoryview, position: int, end: int) -> None:
        long.begin(pending, steps_of(pending, view, position, end), end - position)

    return begin
