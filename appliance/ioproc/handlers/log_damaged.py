"""LOG_DAMAGED on a partition's owner: a process that reads the files has met bytes that fail their checksum.

The request's field: `offset`, from which it read. The damage is repaired from another in-sync copy if there is one
(`ioproc/repairs.py`), before the answer. The answer does not say whether: the requester reads again.
"""

from __future__ import annotations

from typing import Final

from appliance.channels.request_channel import ITEM, OFFSET, REQUEST_ID, ROW, Op
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition
from appliance.partition_host.listener import PartitionListener

_OP: Final = int(Op.LOG_DAMAGED)


def log_damaged(
    partition: Partition, message: tuple[int, ...], listener: PartitionListener[Partition]
) -> Answer:
    """Fields of the answer as in `channels.request_channel`."""
    listener.log_damaged(partition, message[OFFSET])
    head = (_OP, 0, 0, message[REQUEST_ID], message[ITEM], message[ROW])
    return (*head, -1, -1, -1, 0, 0, 0, partition.leader_epoch, -1)
