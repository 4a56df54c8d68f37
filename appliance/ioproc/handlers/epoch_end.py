"""EPOCH_END on a partition's owner: where a leader epoch ended in its log."""

from __future__ import annotations

from appliance.channels.request_channel import Op
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition
from appliance.protocol.leader_epoch import leader_epoch_fault

_OP = int(Op.EPOCH_END)


def epoch_end(partition: Partition, message: tuple[int, ...]) -> Answer:
    """a = end offset, leader_epoch the one that ended there; -1 both where the log does not know.

    Source: `Partition.lastOffsetForLeaderEpoch`.
    """
    error = leader_epoch_fault(message[7], partition.leader_epoch)
    epoch, end_offset = (-1, -1) if error else partition.log.epoch_end_offset(message[11])
    return (
        _OP,
        0,
        error,
        message[3],
        message[4],
        message[5],
        end_offset,
        -1,
        partition.log.log_start_offset,
        0,
        0,
        0,
        epoch,
        0,
    )
