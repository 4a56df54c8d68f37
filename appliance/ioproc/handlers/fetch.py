"""FETCH on a partition's owner: which bytes of which segment, never the bytes themselves.

The network process holds the segment open and sends it; the answer is bounded by the high watermark, or by the last
stable offset for read_committed. A fetch at an offset inside a batch gets that whole batch. A reader that says which
epoch it has read last, and has parted from this log, is told where instead (`epoch_end.py`).
"""

from __future__ import annotations

from typing import Final

from appliance.channels.request_channel import (
    FLAGS,
    ITEM,
    LAST_FETCHED_EPOCH,
    LEADER_EPOCH,
    MAX_BYTES,
    OFFSET,
    REQUEST_ID,
    ROW,
    Op,
    RequestFlag,
    ResponseFlag,
)
from appliance.errors import ApplianceError
from appliance.ioproc.handlers.epoch_end import parting
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition
from appliance.protocol.errors import code_for
from appliance.protocol.leader_epoch import leader_epoch_fault

_OP: Final = int(Op.FETCH)
_READ_COMMITTED: Final = int(RequestFlag.READ_COMMITTED)
_MIN_ONE_BATCH: Final = int(RequestFlag.MIN_ONE_BATCH)
_ABORTED: Final = int(ResponseFlag.ABORTED)
_OLDER_SEGMENT: Final = int(ResponseFlag.OLDER_SEGMENT)


def fetch(partition: Partition, message: tuple[int, ...]) -> Answer:
    """Locates the records from the message's offset on; fields as in `channels.request_channel`."""
    flags, request_id, item, row = message[FLAGS], message[REQUEST_ID], message[ITEM], message[ROW]
    high_watermark = partition.high_watermark
    last_stable = partition.last_stable_offset
    log = partition.log
    error = leader_epoch_fault(message[LEADER_EPOCH], partition.leader_epoch)
    if not error:
        try:
            if message[LAST_FETCHED_EPOCH] >= 0:
                parted = parting(partition, message)
                if parted is not None:
                    return parted
            found = log.read(
                message[OFFSET],
                max_bytes=message[MAX_BYTES],
                upper_bound=last_stable if flags & _READ_COMMITTED else high_watermark,
                min_one_batch=bool(flags & _MIN_ONE_BATCH),
            )
        except ApplianceError as fault:
            partition.fault = fault
            error = int(code_for(fault))
        else:
            told = partition.directory
            if found.on_older_segment:
                told |= _OLDER_SEGMENT
            if (
                flags & _READ_COMMITTED
                and found.length_bytes
                and log.has_aborted(message[OFFSET], upper_bound=last_stable)
            ):
                told |= _ABORTED
            return (
                _OP,
                told,
                0,
                request_id,
                item,
                row,
                found.segment_base_offset,
                high_watermark,
                log.log_start_offset,
                found.position,
                found.length_bytes,
                found.first_batch_bytes,
                partition.leader_epoch,
                last_stable,
            )
    log_start = log.log_start_offset
    return (_OP, 0, error, request_id, item, row, -1, high_watermark, log_start, 0, 0, 0, -1, last_stable)
