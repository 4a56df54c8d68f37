"""The handlers of requests that ask the workers, and that no busy client sends often."""

from __future__ import annotations

from collections.abc import Callable

from appliance.channels.wiring import Attachment
from appliance.netproc.connection import Pending
from appliance.netproc.log_dirs import LogDirs
from appliance.netproc.log_handlers.alter_replica_log_dirs import AlterReplicaLogDirsHandler
from appliance.netproc.log_handlers.delete_records import DeleteRecordsHandler
from appliance.netproc.log_handlers.describe_log_dirs import DescribeLogDirsHandler
from appliance.netproc.log_handlers.describe_producers import DescribeProducersHandler
from appliance.netproc.log_handlers.finish import Finish
from appliance.netproc.log_handlers.list_offsets import ListOffsetsHandler
from appliance.netproc.log_handlers.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from appliance.netproc.log_handlers.write_txn_markers import WriteTxnMarkersHandler
from appliance.netproc.questions import Questions
from appliance.netproc.topic_routes import TopicRoutes
from appliance.netproc.worker_lines import WorkerLines
from appliance.protocol.api_versions import ApiKey

Begin = Callable[[Pending, memoryview, int, int], None]
"""Takes a request: what waits for its answer, the frame's view, and where in it the body begins and ends."""


def seldom_handlers(
    attachment: Attachment,
    routes: TopicRoutes,
    lines: WorkerLines,
    *,
    log_dirs: LogDirs,
    questions: Questions,
    finish: Finish,
) -> dict[int, Begin]:
    """API key → what takes its requests; each hands its answer to `finish`."""
    table = attachment.partitions
    return {
        int(ApiKey.LIST_OFFSETS): ListOffsetsHandler(routes, lines, table, finish=finish).begin,
        int(ApiKey.DELETE_RECORDS): DeleteRecordsHandler(routes, lines, table, finish=finish).begin,
        int(ApiKey.OFFSET_FOR_LEADER_EPOCH): OffsetForLeaderEpochHandler(
            routes, lines, table, finish=finish
        ).begin,
        int(ApiKey.WRITE_TXN_MARKERS): WriteTxnMarkersHandler(routes, lines, table, finish=finish).begin,
        int(ApiKey.DESCRIBE_PRODUCERS): DescribeProducersHandler(routes, lines, table, finish=finish).begin,
        int(ApiKey.DESCRIBE_LOG_DIRS): DescribeLogDirsHandler(
            routes, lines, table, log_dirs=log_dirs, finish=finish
        ).begin,
        int(ApiKey.ALTER_REPLICA_LOG_DIRS): AlterReplicaLogDirsHandler(
            routes, lines, table, log_dirs=log_dirs, questions=questions, finish=finish
        ).begin,
    }
