"""LIST_OFFSETS on a partition's owner: the first record at or after a timestamp, and the greatest timestamp.

Earliest and latest never come here: the network process reads them from the partition table.
"""

from __future__ import annotations

from appliance.channels.request_channel import (
    FLAGS,
    ITEM,
    LEADER_EPOCH,
    REQUEST_ID,
    ROW,
    TIMESTAMP_MS,
    Op,
    RequestFlag,
)
from appliance.errors import ApplianceError
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition
from appliance.protocol.errors import code_for
from appliance.protocol.leader_epoch import leader_epoch_fault

_OP = int(Op.LIST_OFFSETS)
_READ_COMMITTED = int(RequestFlag.READ_COMMITTED)
_MAX_TIMESTAMP = int(RequestFlag.MAX_TIMESTAMP)


def list_offsets(partition: Partition, message: tuple[int, ...]) -> Answer:
    """a = offset, b = timestamp ms (both -1 where no record qualifies), leader_epoch of that record."""
    flags, request_id, item, row = message[FLAGS], message[REQUEST_ID], message[ITEM], message[ROW]
    log = partition.log
    found: tuple[int, int, int] | None = None
    error = leader_epoch_fault(message[LEADER_EPOCH], partition.leader_epoch)
    bound = partition.last_stable_offset if flags & _READ_COMMITTED else partition.high_watermark
    if not error:
        try:
            if flags & _MAX_TIMESTAMP:
                found = log.offset_of_max_timestamp()
                if found is not None and found[1] >= bound:
                    found = None  # of a record that the client may not read yet, it learns nothing
            else:
                found = log.offset_for_timestamp(message[TIMESTAMP_MS], upper_bound=bound)
        except ApplianceError as fault:
            partition.fault = fault
            error = int(code_for(fault))
    timestamp_ms, offset, epoch = found or (-1, -1, -1)
    return (
        _OP,
        0,
        error,
        request_id,
        item,
        row,
        offset,
        timestamp_ms,
        log.log_start_offset,
        0,
        0,
        0,
        epoch,
        0,
    )
