"""Requests from a network process to the worker that owns the partition, and the answers back.

One descriptor is one operation on one partition; a request over many partitions is many descriptors with the
same `request_id`, told apart by `item`. Payloads stay in the network process's pool: a descriptor says where.

Request, 64 bytes, little endian:

    0        1        2                4                8                12               16
    ┌────────┬────────┬────────────────┬────────────────┬────────────────┬────────────────┐
    │ op     │ flags  │ acks           │ request_id     │ item           │ row            │
    ├────────┴────────┴────────────────┴┬───────────────┼────────────────┴────────────────┤ 36
    │ incarnation (16)                  │ epoch (24)    │ payload_position (28)           │
    ├──────────────────┬────────────────┼───────────────┴─────────────────────────────────┤ 52
    │ length_bytes (36)│ api_version(40)│ offset (44)                                     │
    ├──────────────────┴────────────────┼──────────────────┬──────────────────────────────┘ 64
    │ producer_id (52)                  │ connection (60)  │
    └───────────────────────────────────┴──────────────────┘

`offset` is the fetch offset (FETCH), the timestamp in ms (LIST_OFFSETS), the first offset to stay (DELETE_RECORDS), the
log directory to go to, by its place in `log.dirs` (ALTER_LOG_DIR), how long an answer may wait for followers in ms
(PRODUCE), the leader epoch asked for (EPOCH_END), the lowest producer id wanted (DESCRIBE_PRODUCER);
`length_bytes` the payload's length (PRODUCE), the most bytes wanted (FETCH), how long an answer may wait for followers
in ms (DELETE_RECORDS). `epoch` is the leader epoch the client believes in, -1 where it does not say; so is
`api_version` of a FETCH, of the record before its offset. `producer_id` of a PRODUCE or FETCH that is timed for the
metrics is when its request arrived, in monotonic ns; 0 of all others. `connection` is the number of the client's
connection within its network process: the worker takes turns between connections where operations are costly.

Response, 64 bytes, little endian:

    op u8, flags u8, error i16, request_id u32, item u32, row u32,
    a i64, b i64, c i64, position u32, length_bytes u32, first_batch_bytes u32, leader_epoch i32, d i64

| op | a | b | c | d | position | length_bytes |
|---|---|---|---|---|---|---|
| PRODUCE | base offset | log append time ms, -1 | log start | end offset | - | - |
| PRODUCE, refused | earliest timestamp ms | latest timestamp ms | log start, -1 | -1 | `RejectReason` | - |
| FETCH | segment base offset | high watermark | log start | last stable offset | in the segment | of the records |
| LIST_OFFSETS | offset, -1 | timestamp ms, -1 | log start | - | - | - |
| DELETE_RECORDS | low watermark, -1 | - | log start | - | - | - |
| DESCRIBE_LOG_DIR | bytes | behind the high watermark | of the future log: bytes, -1 | its lag | its directory | - |
| ALTER_LOG_DIR | - | - | - | - | - | - |
| EPOCH_END | end offset, -1 | high watermark | log start | last stable offset | - | - |
| PERMIT_TRANSACTION | - | - | - | - | - | - |
| LOG_DAMAGED | - | - | - | - | - | - |
| DESCRIBE_PRODUCER | its id, -1 | last timestamp ms | open transaction's first offset | - | sequence | coordinator |
| FILES_REMOVED | - | - | - | - | - | - |

`flags` of a FETCH answer is the index of the slot's log directory in which the segment lies (6 bits), OLDER_SEGMENT and
ABORTED; of a DESCRIBE_LOG_DIR answer that of the directory in which the log lies. Lags are in offsets. `leader_epoch`
of a DESCRIBE_PRODUCER answer is the producer's epoch; of its last sequence and its coordinator's epoch, -1 is 2^32 - 1.

A WRITE_MARKER ends the transaction of `producer_id`, which is 0 elsewhere: `position` is its epoch, `length_bytes` the
coordinator's epoch, `offset` how long the answer may wait for followers in ms, `api_version` the `transaction.version`
of the transaction. Its answer is that of a PRODUCE.

A PERMIT_TRANSACTION comes from the transaction coordinator: the producer `producer_id` with the epoch `position` may
open a transaction in the partition. It has no payload; its answer says nothing but the error.

A LOG_DAMAGED comes from a coordinator that has read the log's files: what it read from `offset` on fails its checksum.
The worker verifies the log there and repairs it from another in-sync copy before it answers.

A FETCH whose reader has read another history is answered by an EPOCH_END: what both share ends there, at the latest.

CONNECTION_CLOSED is a notice from the network process, under request id 0: the client of `connection` has left. The
worker answers what still waits of it with REQUEST_TIMED_OUT and drops the work; the notice itself has no answer.

FILES_REMOVED answers nobody: it is a notice, under the request id that no request has, that files were removed since
the last one. Who holds files open lets go of those that have no name any more, so that their space comes back.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Any, Final

REQUEST = Struct("<BBhIIIQiQIiqqI")
RESPONSE = Struct("<BBhIIIqqqIIIiq")

assert REQUEST.size == RESPONSE.size == 64

# Fields of a request, by position in what `REQUEST` unpacks: `message[ROW]`. What a field means for one operation alone
# has a name of its own below.
OP: Final = 0
FLAGS: Final = 1
ACKS: Final = 2
REQUEST_ID: Final = 3
ITEM: Final = 4
ROW: Final = 5
INCARNATION: Final = 6
LEADER_EPOCH: Final = 7
POSITION: Final = 8
LENGTH_BYTES: Final = 9
API_VERSION: Final = 10
OFFSET: Final = 11
CONNECTION: Final = 13
# WRITE_MARKER
MARKER_PRODUCER_ID: Final = 12
MARKER_EPOCH: Final = POSITION
MARKER_COORDINATOR_EPOCH: Final = LENGTH_BYTES
MARKER_TRANSACTION_VERSION: Final = API_VERSION
# PERMIT_TRANSACTION
PERMITTED_PRODUCER_ID: Final = 12
PERMITTED_EPOCH: Final = POSITION
# PRODUCE
PRODUCE_TIMEOUT_MS: Final = OFFSET
# PRODUCE, FETCH
ARRIVED_NS: Final = 12
# FETCH
MAX_BYTES: Final = LENGTH_BYTES
LAST_FETCHED_EPOCH: Final = API_VERSION
# LIST_OFFSETS
TIMESTAMP_MS: Final = OFFSET
# DELETE_RECORDS
DELETE_TIMEOUT_MS: Final = LENGTH_BYTES
# ALTER_LOG_DIR
TARGET_DIRECTORY: Final = OFFSET
# EPOCH_END
WANTED_EPOCH: Final = OFFSET
# DESCRIBE_PRODUCER
LOWEST_PRODUCER_ID: Final = OFFSET

# Fields of a response, by position in what `RESPONSE` unpacks. OP, FLAGS, REQUEST_ID, ITEM and ROW stand where they
# stand in a request.
ERROR: Final = 2
ANSWER_LOG_START: Final = 8
ANSWER_EPOCH: Final = 12
# PRODUCE
PRODUCED_OFFSET: Final = 6
LOG_APPEND_TIME_MS: Final = 7
APPENDED_BYTES: Final = 10
END_OFFSET: Final = 13
# PRODUCE, refused
EARLIEST_MS: Final = 6
LATEST_MS: Final = 7
REJECT_REASON: Final = 9
# FETCH, and EPOCH_END, which answers a FETCH too
FETCHED_SEGMENT: Final = 6
FETCHED_HIGH_WATERMARK: Final = 7
FETCHED_POSITION: Final = 9
FETCHED_BYTES: Final = 10
FIRST_BATCH_BYTES: Final = 11
FETCHED_LAST_STABLE_OFFSET: Final = 13
EPOCH_END_OFFSET: Final = 6
# LIST_OFFSETS
FOUND_OFFSET: Final = 6
FOUND_TIMESTAMP_MS: Final = 7
# DELETE_RECORDS
LOW_WATERMARK: Final = 6
# DESCRIBE_LOG_DIR
LOG_BYTES: Final = 6
LOG_LAG: Final = 7
FUTURE_LOG_BYTES: Final = 8
FUTURE_LOG_DIRECTORY: Final = 9
FUTURE_LOG_LAG: Final = 13
# DESCRIBE_PRODUCER
FOUND_PRODUCER_ID: Final = 6
PRODUCER_LAST_TIMESTAMP_MS: Final = 7
TRANSACTION_FIRST_OFFSET: Final = 8
PRODUCER_SEQUENCE: Final = 9
PRODUCER_COORDINATOR_EPOCH: Final = 10

CONNECTION_LIMIT: Final = 1 << 32

REQUEST_ID_LIMIT = 1 << 32
NOTICE_ID = 0
"""The request id of what answers no request."""


class Op(IntEnum):
    """What is asked of a partition's owner."""

    PRODUCE = 1
    FETCH = 2
    LIST_OFFSETS = 3
    DELETE_RECORDS = 4
    FILES_REMOVED = 5  # a notice: only ever a response
    DESCRIBE_LOG_DIR = 6
    ALTER_LOG_DIR = 7
    EPOCH_END = 8
    DESCRIBE_PRODUCER = 9
    CONNECTION_CLOSED = 10  # a notice: only ever a request
    WRITE_MARKER = 11
    PERMIT_TRANSACTION = 12
    LOG_DAMAGED = 13


class RejectReason(IntEnum):
    """Why a PRODUCE was refused, where the network process has to know more than the error.

    MISSING_KEY and TIMESTAMP: single records are at fault, which it names to the client. NOT_PERMITTED: it asks the
    transaction coordinator whether the partition belongs to the producer's transaction, and places the batch again.
    """

    NONE = 0
    MISSING_KEY = 1  # the topic is compacted
    TIMESTAMP = 2  # outside of the bounds in `EARLIEST_MS` and `LATEST_MS`
    NOT_PERMITTED = (
        3  # INVALID_TXN_STATE: transactional, and the producer has no transaction open or permitted here
    )


class RequestFlag(IntEnum):
    """Bits of a request's `flags`."""

    READ_COMMITTED = 1
    MAX_TIMESTAMP = 2  # LIST_OFFSETS: the record with the greatest timestamp
    MIN_ONE_BATCH = 4  # FETCH: the first batch comes whole, whatever the limit
    LONE = 8  # nothing else of the requester is under way: it looks out for the answer, and the next is likely near
    COMMITTED = 16  # WRITE_MARKER: the transaction was committed, not aborted
    COORDINATOR_ORIGIN = 32  # PRODUCE: appended for a coordinator (`AppendOrigin`), never for a client
    TRANSACTION_VERIFIED = 64  # PRODUCE: the partition is part of the producer's open transaction


class ProduceFlag(IntEnum):
    """Bits of the `flags` of a PRODUCE that mean something else of other operations."""

    NAMED = 1  # the request names a transactional id; without it no transactional batch is appended
    GAPS = 4  # the network process has taken delayed records out of the batch: offset deltas are missing
    UNPROVED = 2  # the coordinator has not said yet that the id is the producer's: no permit counts


class ResponseFlag(IntEnum):
    """Bits of a response's `flags`."""

    DUPLICATE = 1  # PRODUCE: already appended; the offset is the first append's
    OLDER_SEGMENT = 64  # FETCH: what is readable ends in a later segment than the one named
    ABORTED = (
        128  # FETCH, read_committed: transactions from the offset on were aborted; which, the index says
    )


FETCH_DIRECTORY: Final = 0x3F
"""What of a FETCH answer's `flags` is the log directory; the rest are flags."""


Request = tuple[int, ...]
"""One operation, as `REQUEST` packs it."""
Response = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int]
"""One answer, as `RESPONSE` packs it."""

_PRODUCE: Final = int(Op.PRODUCE)
_FETCH: Final = int(Op.FETCH)


def produce_request(  # noqa: PLR0917 - keywords would double its cost for each record
    request_id: int,
    item: int,
    row: int,
    incarnation: int,
    flags: int,
    acks: int,
    position: int,
    length_bytes: int,
    api_version: int,
    timeout_ms: int,
    connection: int,
    arrived_ns: int = 0,
) -> Request:
    """Pack a PRODUCE: `length_bytes` of one batch at `position` of the sender's pool.

    `arrived_ns` is when the request arrived, 0 unless it is timed; so in `fetch_request`.
    """
    return (
        _PRODUCE,
        flags,
        acks,
        request_id,
        item,
        row,
        incarnation,
        -1,
        position,
        length_bytes,
        api_version,
        timeout_ms,
        arrived_ns,
        connection,
    )


def fetch_request(  # noqa: PLR0917 - as above
    request_id: int,
    item: int,
    row: int,
    incarnation: int,
    flags: int,
    leader_epoch: int,
    max_bytes: int,
    last_fetched_epoch: int,
    offset: int,
    arrived_ns: int = 0,
) -> Request:
    """Pack a FETCH: where the records from `offset` on lie. Epochs are -1 where the reader does not say them."""
    return (
        _FETCH,
        flags,
        0,
        request_id,
        item,
        row,
        incarnation,
        leader_epoch,
        0,
        max_bytes,
        last_fetched_epoch,
        offset,
        arrived_ns,
        0,
    )


def partition_request(
    op: Op,
    *,
    request_id: int,
    row: int,
    incarnation: int,
    item: int = 0,
    flags: int = 0,
    leader_epoch: int = -1,
    length_bytes: int = 0,
    api_version: int = 0,
    offset: int = 0,
    connection: int = 0,
) -> Request:
    """Pack any operation without a payload; the drawing says what each field is for the operation."""
    return (
        int(op),
        flags,
        0,
        request_id,
        item,
        row,
        incarnation,
        leader_epoch,
        0,
        length_bytes,
        api_version,
        offset,
        0,
        connection,
    )


def permit_request(
    *, request_id: int, row: int, incarnation: int, producer_id: int, producer_epoch: int
) -> Request:
    """Pack a PERMIT_TRANSACTION."""
    return (
        int(Op.PERMIT_TRANSACTION),
        0,
        0,
        request_id,
        0,
        row,
        incarnation,
        -1,
        producer_epoch,
        0,
        0,
        0,
        producer_id,
        0,
    )


def marker_request(
    *,
    request_id: int,
    row: int,
    incarnation: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    commit: bool,
    transaction_version: int,
    timeout_ms: int,
    item: int = 0,
    connection: int = 0,
) -> Request:
    """Pack a WRITE_MARKER; it is answered when the in-sync replicas have the marker."""
    return (
        int(Op.WRITE_MARKER),
        int(RequestFlag.COMMITTED) if commit else 0,
        -1,
        request_id,
        item,
        row,
        incarnation,
        -1,
        producer_epoch,
        coordinator_epoch,
        transaction_version,
        timeout_ms,
        producer_id,
        connection,
    )


def refusal(
    asked: tuple[Any, ...],
    error: int,
    *,
    reason: int = 0,
    earliest_ms: int = -1,
    latest_ms: int = -1,
    log_start: int = -1,
) -> Response:
    """Answer a request, or replace its answer, with `error`: nothing was done about it.

    Args:
        asked: the request, or an answer to it, which has the same operation, request id, item and row.
        reason: a `RejectReason`, with the bounds of a timestamp where it is TIMESTAMP.
        log_start: the log start offset, where the client is told it.
    """
    return (
        asked[OP],
        0,
        error,
        asked[REQUEST_ID],
        asked[ITEM],
        asked[ROW],
        earliest_ms,
        latest_ms,
        log_start,
        reason,
        0,
        0,
        -1,
        -1,
    )
