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
    │ placed_ns (52)                    │ connection (60)  │
    └───────────────────────────────────┴──────────────────┘

`offset` is the fetch offset (FETCH), the timestamp in ms (LIST_OFFSETS), the first offset to stay (DELETE_RECORDS), the
log directory to go to, by its place in `log.dirs` (ALTER_LOG_DIR), how long an answer may wait for followers in ms
(PRODUCE), the leader epoch asked for (EPOCH_END), the lowest producer id wanted (DESCRIBE_PRODUCER);
`length_bytes` the payload's length (PRODUCE), the most bytes wanted (FETCH), how long an answer may wait for followers
in ms (DELETE_RECORDS). `epoch` is the leader epoch the client believes in, -1 where it does not say; so is
`api_version` of a FETCH, of the record before its offset. `connection` is the number of the client's connection within
its network process: the worker takes turns between connections where operations are costly.

Response, 64 bytes, little endian:

    op u8, flags u8, error i16, request_id u32, item u32, row u32,
    a i64, b i64, c i64, position u32, length_bytes u32, first_batch_bytes u32, leader_epoch i32, d i64

| op | a | b | c | d | position | length_bytes |
|---|---|---|---|---|---|---|
| PRODUCE | base offset | log append time ms, -1 | log start | end offset | - | - |
| PRODUCE, refused | earliest timestamp ms | latest timestamp ms | -1 | -1 | `RejectReason` | - |
| FETCH | segment base offset | high watermark | log start | last stable offset | in the segment | of the records |
| LIST_OFFSETS | offset, -1 | timestamp ms, -1 | log start | - | - | - |
| DELETE_RECORDS | low watermark, -1 | - | log start | - | - | - |
| DESCRIBE_LOG_DIR | bytes | behind the high watermark | of the future log: bytes, -1 | its lag | its directory | - |
| ALTER_LOG_DIR | - | - | - | - | - | - |
| EPOCH_END | end offset, -1 | high watermark | log start | last stable offset | - | - |
| DESCRIBE_PRODUCER | its id, -1 | last timestamp ms | open transaction's first offset | - | sequence | coordinator |
| FILES_REMOVED | - | - | - | - | - | - |

`flags` of a FETCH answer is the index of the slot's log directory in which the segment lies (6 bits), OLDER_SEGMENT and
ABORTED; of a DESCRIBE_LOG_DIR answer that of the directory in which the log lies. Lags are in offsets. `leader_epoch`
of a DESCRIBE_PRODUCER answer is the producer's epoch; of its last sequence and its coordinator's epoch, -1 is 2^32 - 1.

A WRITE_MARKER ends a producer's transaction: `placed_ns` is the producer id, `position` its epoch, `length_bytes` the
coordinator's epoch, `offset` how long the answer may wait for followers in ms. Its answer is that of a PRODUCE.

A FETCH whose reader has read another history is answered by an EPOCH_END: what both share ends there, at the latest.

CONNECTION_CLOSED is a notice from the network process, under request id 0: the client of `connection` has left. The
worker answers what still waits of it with REQUEST_TIMED_OUT and drops the work; the notice itself has no answer.

FILES_REMOVED answers nobody: it is a notice, under the request id that no request has, that files were removed since
the last one. Who holds files open lets go of those that have no name any more, so that their space comes back.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

REQUEST = Struct("<BBhIIIQiQIiqqI")
RESPONSE = Struct("<BBhIIIqqqIIIiq")

assert REQUEST.size == RESPONSE.size == 64

# Fields of a request, by position in what `REQUEST` unpacks.
OP: Final = 0
REQUEST_ID: Final = 3
ROW: Final = 5
INCARNATION: Final = 6
POSITION: Final = 8
LENGTH_BYTES: Final = 9
OFFSET: Final = 11
CONNECTION: Final = 13
# WRITE_MARKER
MARKER_PRODUCER_ID: Final = 12

# Fields of an answer, by position in what `RESPONSE` unpacks.
FLAGS: Final = 1
ERROR: Final = 2
APPENDED_BYTES: Final = 10
# … to a PRODUCE that was refused:
EARLIEST_MS: Final = 6
LATEST_MS: Final = 7
REJECT_REASON: Final = 9

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


class RejectReason(IntEnum):
    """Why a PRODUCE was refused, where single records are at fault: the network process names them to the client."""

    NONE = 0
    MISSING_KEY = 1  # the topic is compacted
    TIMESTAMP = 2  # outside of the bounds in `EARLIEST_MS` and `LATEST_MS`


class RequestFlag(IntEnum):
    """Bits of a request's `flags`."""

    READ_COMMITTED = 1
    MAX_TIMESTAMP = 2  # LIST_OFFSETS: the record with the greatest timestamp
    MIN_ONE_BATCH = 4  # FETCH: the first batch comes whole, whatever the limit
    LONE = (
        8  # nothing else of the asker is under way: it looks out for the answer, and the next is likely near
    )
    COMMITTED = 16  # WRITE_MARKER: the transaction was committed, not aborted


class ResponseFlag(IntEnum):
    """Bits of a response's `flags`."""

    DUPLICATE = 1  # PRODUCE: already appended; the offset is the first append's
    OLDER_SEGMENT = 64  # FETCH: what is readable ends in a later segment than the one named
    ABORTED = (
        128  # FETCH, read_committed: transactions from the offset on were aborted; which, the index says
    )


FETCH_DIRECTORY: Final = 0x3F
"""What of a FETCH answer's `flags` is the log directory; the rest are flags."""
