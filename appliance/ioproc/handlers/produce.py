"""PRODUCE on a partition's owner: check, append in place, publish, answer.

Serves every version: batches are v2 in all that are served. With acks=all and followers the answer waits until they
have the records (`delayed_produce`). A gap in a producer's sequence is told as the change of leaders that it may come
from (decision 0047). Left out here on purpose: transactional batches (transactions issue) are refused by the log with
INVALID_TXN_STATE.
"""

from __future__ import annotations

from typing import Final

from appliance.channels.request_channel import Op, ResponseFlag
from appliance.errors import ApplianceError, RejectedRequest
from appliance.ioproc.partition import Partition
from appliance.protocol.errors import ErrorCode, code_for

ACKS_ALL: Final = -1

_OP: Final = int(Op.PRODUCE)
_DUPLICATE: Final = int(ResponseFlag.DUPLICATE)
_NOT_ENOUGH_REPLICAS: Final = int(ErrorCode.NOT_ENOUGH_REPLICAS)
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_OUT_OF_ORDER: Final = int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

Answer = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int]


def produce(partition: Partition, message: tuple[int, ...], batch: memoryview) -> Answer:
    """Appends `batch` and returns the response's fields (see `channels.request_channel`)."""
    request_id, item = message[3], message[4]
    if message[2] == ACKS_ALL and len(partition.isr) < partition.min_insync_replicas:
        return (_OP, 0, _NOT_ENOUGH_REPLICAS, request_id, item, partition.row, -1, -1, -1, 0, 0, 0, -1, -1)
    try:
        result = partition.log.append(batch, leader_epoch=partition.leader_epoch)
    except RejectedRequest as rejected:
        code = int(rejected.code)
        if code == _OUT_OF_ORDER and partition.may_be_overtaken():
            code = _NOT_LEADER
        return (_OP, 0, code, request_id, item, partition.row, -1, -1, -1, 0, 0, 0, -1, -1)
    except ApplianceError as error:
        partition.fault = error
        return (_OP, 0, int(code_for(error)), request_id, item, partition.row, -1, -1, -1, 0, 0, 0, -1, -1)
    flags = _DUPLICATE if result.duplicate else 0
    return (
        _OP,
        flags,
        0,
        request_id,
        item,
        partition.row,
        result.base_offset,
        result.log_append_time_ms,
        result.log_start_offset,
        0,
        result.bytes,
        0,
        partition.leader_epoch,
        result.last_offset + 1,
    )
