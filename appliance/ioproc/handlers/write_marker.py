"""WRITE_MARKER on a partition's owner: end a producer's transaction in its log, by a control batch of 78 bytes.

The request's fields: `offset` how long the answer may wait for followers in ms, `producer_id`, `position` its
epoch, `length_bytes` the coordinator's epoch, `api_version` the transaction's version, and the flag COMMITTED. The
answer is that of a PRODUCE, and waits for the in-sync replicas as with acks=all.

A marker of an epoch below the producer's is INVALID_PRODUCER_EPOCH, from transaction version 2 on also one of the open
transaction's own epoch. One of an older coordinator is TRANSACTION_COORDINATOR_FENCED (`log/producer_state.py`). An
accepted one takes the producer's permit away (`log/transaction_permits.py`).

Source: `KafkaApis.handleWriteTxnMarkersRequest`, `ReplicaManager.appendRecords` with `AppendOrigin.COORDINATOR`.
"""

from __future__ import annotations

from typing import Final

from appliance.channels.request_channel import (
    FLAGS,
    ITEM,
    MARKER_COORDINATOR_EPOCH,
    MARKER_EPOCH,
    MARKER_PRODUCER_ID,
    MARKER_TRANSACTION_VERSION,
    REQUEST_ID,
    Op,
    RequestFlag,
    refusal,
)
from appliance.errors import ApplianceError
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition
from appliance.log.producer_state import AppendOrigin
from appliance.protocol.errors import ErrorCode, code_for
from appliance.protocol.records.control import EndTransactionMarker, encode_marker_batch

_OP: Final = int(Op.WRITE_MARKER)
_NOT_ENOUGH_REPLICAS: Final = int(ErrorCode.NOT_ENOUGH_REPLICAS)
_COMMITTED: Final = int(RequestFlag.COMMITTED)


def write_marker(partition: Partition, message: tuple[int, ...], *, now_ms: int) -> Answer:
    """Append the marker; fields of the answer as of a PRODUCE (see `channels.request_channel`)."""
    if len(partition.isr) < partition.min_insync_replicas:
        return refusal(message, _NOT_ENOUGH_REPLICAS)
    marker = EndTransactionMarker(bool(message[FLAGS] & _COMMITTED), message[MARKER_COORDINATOR_EPOCH])
    batch = encode_marker_batch(
        marker,
        producer_id=message[MARKER_PRODUCER_ID],
        producer_epoch=message[MARKER_EPOCH],
        timestamp_ms=now_ms,
    )
    head = message[REQUEST_ID], message[ITEM], partition.row
    try:
        result = partition.log.append(
            memoryview(batch),
            leader_epoch=partition.leader_epoch,
            origin=AppendOrigin.COORDINATOR,
            transaction_version=message[MARKER_TRANSACTION_VERSION],
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
