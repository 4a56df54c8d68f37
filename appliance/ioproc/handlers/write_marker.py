"""WRITE_MARKER on a partition's owner: end a producer's transaction in its log, by a control batch of 78 bytes.

The request's fields: `offset` how long the answer may wait for followers in ms, `producer_id`, `position` its
epoch, `length_bytes` the coordinator's epoch, and the flag COMMITTED. The answer is that of a PRODUCE.

A marker of an epoch below the producer's is INVALID_PRODUCER_EPOCH, one of an older coordinator
TRANSACTION_COORDINATOR_FENCED (`log/producer_state.py`).

Source: `KafkaApis.handleWriteTxnMarkersRequest`, `ReplicaManager.appendRecords` with `AppendOrigin.COORDINATOR`.
"""

from __future__ import annotations

from typing import Final

from appliance.channels.request_channel import (
    FLAGS,
    ITEM,
    LENGTH_BYTES,
    MARKER_PRODUCER_ID,
    POSITION,
    REQUEST_ID,
    Op,
    RequestFlag,
    refusal,
)
from appliance.errors import ApplianceError
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition
from appliance.log.producer_state import AppendOrigin
from appliance.protocol.errors import code_for
from appliance.protocol.records.control import EndTransactionMarker, encode_marker_batch

_OP: Final = int(Op.WRITE_MARKER)
_COMMITTED: Final = int(RequestFlag.COMMITTED)


def write_marker(partition: Partition, message: tuple[int, ...], *, now_ms: int) -> Answer:
    """Append the marker; fields of the answer as of a PRODUCE (see `channels.request_channel`)."""
    marker = EndTransactionMarker(bool(message[FLAGS] & _COMMITTED), message[LENGTH_BYTES])
    batch = encode_marker_batch(
        marker,
        producer_id=message[MARKER_PRODUCER_ID],
        producer_epoch=message[POSITION],
        timestamp_ms=now_ms,
    )
    head = message[REQUEST_ID], message[ITEM], partition.row
    try:
        result = partition.log.append(
            memoryview(batch), leader_epoch=partition.leader_epoch, origin=AppendOrigin.COORDINATOR
        )
    except ApplianceError as error:
        partition.fault = error
        return refusal(message, int(code_for(error)))
    return (
        _OP,
        0,
        0,
        *head,
        result.base_offset,
        result.log_append_time_ms,
        result.log_start_offset,
        0,
        result.bytes,
        0,
        partition.leader_epoch,
        result.last_offset + 1,
    )
