"""DELETE_RECORDS on a partition's owner: the log start moves up, and is published before it is answered.

The segments below it go when retention next looks, and the checkpoint of log starts is written soon after: until then a
killed worker finds the records again, as Kafka's would. The answer waits for followers (`held_deletions.py`).
"""

from __future__ import annotations

from appliance.channels.request_channel import ITEM, OFFSET, REQUEST_ID, ROW, Op
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition
from appliance.protocol.errors import ErrorCode

_OP = int(Op.DELETE_RECORDS)
_POLICY_VIOLATION = int(ErrorCode.POLICY_VIOLATION)
_OUT_OF_RANGE = int(ErrorCode.OFFSET_OUT_OF_RANGE)
HIGH_WATERMARK = -1


def delete_records(partition: Partition, message: tuple[int, ...]) -> Answer:
    """a = low watermark, -1 with an error (`Partition.deleteRecordsOnLeader`, in its order)."""
    offset, request_id, item, row = message[OFFSET], message[REQUEST_ID], message[ITEM], message[ROW]
    log = partition.log
    high_watermark = partition.high_watermark
    error = 0
    if offset == HIGH_WATERMARK:
        offset = high_watermark
    if not log.settings.is_deletable:
        error = _POLICY_VIOLATION
    elif not 0 <= offset <= high_watermark:
        error = _OUT_OF_RANGE
    elif log.advance_start(offset):
        partition.publish()
    low_watermark = -1 if error else log.log_start_offset
    return (
        _OP,
        0,
        error,
        request_id,
        item,
        row,
        low_watermark,
        -1,
        log.log_start_offset,
        0,
        0,
        0,
        partition.leader_epoch,
        0,
    )
