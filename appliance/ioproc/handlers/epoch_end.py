"""EPOCH_END on a partition's owner: where a leader epoch ended in its log, and whether a reader has parted from it."""

from __future__ import annotations

from appliance.channels.request_channel import (
    ITEM,
    LAST_FETCHED_EPOCH,
    LEADER_EPOCH,
    OFFSET,
    REQUEST_ID,
    ROW,
    WANTED_EPOCH,
    Op,
)
from appliance.errors import RejectedRequest
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition
from appliance.protocol.errors import ErrorCode
from appliance.protocol.leader_epoch import leader_epoch_fault

_OP = int(Op.EPOCH_END)


def epoch_end(partition: Partition, message: tuple[int, ...]) -> Answer:
    """a = end offset, leader_epoch the one that ended there; -1 both where the log does not know.

    Source: `Partition.lastOffsetForLeaderEpoch`.
    """
    error = leader_epoch_fault(message[LEADER_EPOCH], partition.leader_epoch)
    epoch, end_offset = (-1, -1) if error else partition.log.epoch_end_offset(message[WANTED_EPOCH])
    return epoch_end_answer(partition, message, epoch, end_offset=end_offset, error=error)


def parting(partition: Partition, message: tuple[int, ...]) -> Answer | None:
    """The answer to a FETCH whose reader has read what this log does not hold; None if they have not parted.

    The reader says which epoch the record before its fetch offset was of (KIP-595's diverging epoch).

    Raises:
        RejectedRequest: OFFSET_OUT_OF_RANGE: below the log start, or nothing is known of that epoch.

    Source: `Partition.readFromLocalLog`.
    """
    log, read_epoch, offset = partition.log, message[LAST_FETCHED_EPOCH], message[OFFSET]
    epoch, end_offset = log.epoch_end_offset(read_epoch)
    if end_offset < 0 or offset < log.log_start_offset:
        raise RejectedRequest(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} after epoch {read_epoch}: the log begins at {log.log_start_offset}",
        )
    if epoch >= read_epoch and end_offset >= offset:
        return None
    return epoch_end_answer(partition, message, epoch, end_offset=end_offset)


def epoch_end_answer(
    partition: Partition, message: tuple[int, ...], epoch: int, *, end_offset: int, error: int = 0
) -> Answer:
    """Fields as in `channels.request_channel`."""
    return (
        _OP,
        0,
        error,
        message[REQUEST_ID],
        message[ITEM],
        message[ROW],
        end_offset,
        partition.high_watermark,
        partition.log.log_start_offset,
        0,
        0,
        0,
        epoch,
        partition.last_stable_offset,
    )
