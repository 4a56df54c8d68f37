"""PRODUCE on a partition's owner: check, append in place, publish, answer.

Serves every version: batches are v2 in all that are served. With acks=all and followers the answer waits until they
have the records (`held_produces`). A gap in a producer's sequence is told as the change of leaders that it may come
from (decision 0047). COORDINATOR_ORIGIN and TRANSACTION_VERIFIED go on to the log. From version 12 on the producer
speaks transaction version 2. A batch that would open a transaction without a permit is refused as NOT_PERMITTED; the
worker asks nobody, the network process does. A refusal has the log start offset where Kafka's has it
(`_WITHOUT_LOG_START`).
"""

from __future__ import annotations

from typing import Final

from appliance.channels.request_channel import (
    ACKS,
    API_VERSION,
    FLAGS,
    ITEM,
    REQUEST_ID,
    Op,
    ProduceFlag,
    RejectReason,
    RequestFlag,
    Response,
    ResponseFlag,
    refusal,
)
from appliance.errors import ApplianceError, RejectedRequest
from appliance.ioproc.partition import Partition
from appliance.log.producer_state import AppendOrigin
from appliance.log.transaction_permits import Admission, NotPermitted
from appliance.log.validator import CostlyBatch
from appliance.protocol.errors import ErrorCode, code_for
from appliance.protocol.records.batch import H_ATTRIBUTES, HEADER, TRANSACTIONAL
from appliance.protocol.records.errors import InvalidTimestamp, MissingKey

ACKS_ALL: Final = -1

_OP: Final = int(Op.PRODUCE)
_DUPLICATE: Final = int(ResponseFlag.DUPLICATE)
_NOT_ENOUGH_REPLICAS: Final = int(ErrorCode.NOT_ENOUGH_REPLICAS)
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_OUT_OF_ORDER: Final = int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

_COORDINATOR_ORIGIN: Final = int(RequestFlag.COORDINATOR_ORIGIN)
_TRANSACTION_VERIFIED: Final = int(RequestFlag.TRANSACTION_VERIFIED)
_NAMED: Final = int(ProduceFlag.NAMED)
_UNPROVED: Final = int(ProduceFlag.UNPROVED)
_GAPS: Final = int(ProduceFlag.GAPS)
_OF_TRANSACTIONS: Final = _COORDINATOR_ORIGIN | _TRANSACTION_VERIFIED | _NAMED
_NOT_PLAIN: Final = _OF_TRANSACTIONS | _GAPS
_NOTHING: Final = Admission.NOTHING
_OPEN: Final = Admission.OPEN
_PERMIT: Final = Admission.PERMIT
_CLIENT: Final = AppendOrigin.CLIENT
_COORDINATOR: Final = AppendOrigin.COORDINATOR

_TV1: Final = 1
_TV2: Final = 2
_TV2_PRODUCE: Final = 12
"""From this version on a producer of transactions speaks transaction version 2 (KIP-890)."""

_WITHOUT_LOG_START: Final = frozenset(
    int(code)
    for code in (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)
"""Source: `ReplicaManager.appendRecordsToLeader`; the last one is refused before it reaches a log."""
_INVALID_EPOCH: Final = int(ErrorCode.INVALID_PRODUCER_EPOCH)

_NOT_PERMITTED: Final = int(RejectReason.NOT_PERMITTED)
_MISSING_KEY: Final = int(RejectReason.MISSING_KEY)
_TIMESTAMP: Final = int(RejectReason.TIMESTAMP)

Answer = Response


def produce(
    partition: Partition, message: tuple[int, ...], batch: memoryview, cheap_bytes_max: int
) -> Answer | None:
    """Append `batch` and return the response's fields (see `channels.request_channel`).

    None: the batch grows over `cheap_bytes_max` when it is decompressed, and was not appended. 0 sets no such limit.
    """
    if message[ACKS] == ACKS_ALL and len(partition.isr) < partition.min_insync_replicas:
        return refusal(message, _NOT_ENOUGH_REPLICAS, log_start=partition.log.log_start_offset)
    try:
        flags = message[FLAGS]
        if flags & _NOT_PLAIN:
            result = partition.log.append(
                batch,
                leader_epoch=partition.leader_epoch,
                origin=_COORDINATOR if flags & _COORDINATOR_ORIGIN else _CLIENT,
                transaction_verified=bool(flags & _TRANSACTION_VERIFIED),
                transaction_version=_TV2 if message[API_VERSION] >= _TV2_PRODUCE else _TV1,
                admission=_admission(flags),
                cheap_bytes_max=cheap_bytes_max,
                has_gaps=bool(flags & _GAPS),
            )
        else:
            result = partition.log.append(
                batch,
                leader_epoch=partition.leader_epoch,
                transaction_version=_TV2 if message[API_VERSION] >= _TV2_PRODUCE else _TV1,
                admission=_NOTHING,
                cheap_bytes_max=cheap_bytes_max,
            )
    except RejectedRequest as rejected:
        code = int(rejected.code)
        if code == _OUT_OF_ORDER and partition.may_be_overtaken():
            code = _NOT_LEADER
        reason, earliest_ms, latest_ms = _reason(rejected)
        log_start = -1
        if reason != _NOT_PERMITTED and code not in _WITHOUT_LOG_START and not _is_fenced(code, batch):
            log_start = partition.log.log_start_offset
        return refusal(
            message,
            code,
            reason=reason,
            earliest_ms=earliest_ms,
            latest_ms=latest_ms,
            log_start=log_start,
        )
    except CostlyBatch:
        return None
    except ApplianceError as error:
        partition.fault = error
        return refusal(message, int(code_for(error)))
    return (
        _OP,
        _DUPLICATE if result.duplicate else 0,
        0,
        message[REQUEST_ID],
        message[ITEM],
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


def _admission(flags: int) -> Admission:
    """Return what lets a transactional batch in."""
    if not flags & _OF_TRANSACTIONS:
        return _NOTHING
    return _OPEN if flags & _UNPROVED else _PERMIT


def _is_fenced(code: int, batch: memoryview) -> bool:
    """Whether a transactional batch has an old epoch: the transaction coordinator refuses it in Kafka, not the log."""
    return code == _INVALID_EPOCH and bool(HEADER.unpack_from(batch)[H_ATTRIBUTES] & TRANSACTIONAL)


def _reason(rejected: RejectedRequest) -> tuple[int, int, int]:
    """Return the `RejectReason` and its bounds: what the network process needs to find the records at fault."""
    if isinstance(rejected, NotPermitted):
        return _NOT_PERMITTED, -1, -1
    if isinstance(rejected, MissingKey):
        return _MISSING_KEY, -1, -1
    if isinstance(rejected, InvalidTimestamp) and rejected.bounds_ms is not None:
        return _TIMESTAMP, *rejected.bounds_ms
    return 0, -1, -1
