"""DESCRIBE_LOG_DIR on a partition's owner: in which log directory it lies, how large it is, and how far its move is.

O(segments), and no file is touched: sizes are those of the batches, without the room taken ahead.
"""

from __future__ import annotations

from appliance.channels.request_channel import ITEM, REQUEST_ID, ROW, Op
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition

_OP = int(Op.DESCRIBE_LOG_DIR)


def describe_log_dir(partition: Partition, message: tuple[int, ...], future: tuple[int, int, int]) -> Answer:
    """Fields as in `channels.request_channel`; `future` as of `LogMoves.shown`.

    Source: `ReplicaManager.describeLogDirs`.
    """
    request_id, item, row = message[REQUEST_ID], message[ITEM], message[ROW]
    log = partition.log
    lag = max(partition.high_watermark - log.log_end_offset, 0)
    return (
        _OP,
        partition.directory,
        0,
        request_id,
        item,
        row,
        log.size_bytes,
        lag,
        future[0],
        future[2],
        0,
        0,
        partition.leader_epoch,
        future[1],
    )
