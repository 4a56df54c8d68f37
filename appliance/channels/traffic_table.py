"""What network processes and workers count for the metrics process, in shared memory. Only where there is one.

The region `traffic` has one part for each network process, which it alone writes:

    part    0                        8 KiB                136 KiB
            ┌────────────────────────┬────────────────────┬──────────┬──────────┬───
            │ totals, errors by code │ API 0 … API 127    │ row 0    │ row 1    │ …
            └────────────────────────┴────────────────────┴──────────┴──────────┴───

    head    word 0 … 7    totals of all partitions: the columns of a row
            word 8        zeros
            word 16 …     failed partitions of Produce requests, by error code from -1 on: 256 words
            word 272 …    the same of Fetch requests

    API     word 0        requests
            word 1        bytes of these requests
            word 2        zeros
            word 8 …      histogram of the time from a request's arrival to its answer
            word 32 …     histogram of the time from the answer to its last byte in the socket
            word 56 …     histogram of both together
            word 80 …     histogram of the time from a request's first byte to its last

    histogram             word 0 the sum in nanoseconds, then the number of requests in each bucket of BUCKETS_NS, and
                          last of those above

    row     word 0        incarnation of the partition that the row counts for; 0: nobody
            word 1 …      the columns, from BYTES_IN on

A few pages more, behind these parts, are written by the metrics process: what it keeps over its own restarts, a page
for KEPT_PER_PAGE processes (`metrics/proc_files.py`).

The region `logs` has one row of four words for each row of the partition table, written by the worker that leads the
partition: incarnation, bytes, segments, zeros. Behind these rows, each worker has a page for what its requests and its
flushes took, which it alone writes: histograms one after the other, from PRODUCE_QUEUE on. Behind these pages, each
services process has one of its own: a histogram of how late it has delivered records (LATENESS).

Rules

1. Each word has one writer. A process that died leaves its counts; its next life goes on with them, so no count falls.
2. A writer that takes a row for another partition clears word 0 first and sets it last. What an earlier partition of
   the row counted is gone with it; the totals keep it.
3. A process counts in its own memory and writes here every FLUSH_MS. A process that is killed takes at most these
   counts with it.
"""

from __future__ import annotations

from typing import Final

WORD_BYTES: Final = 8
FLUSH_MS: Final = 250
"""How old the words are at most, while they change."""

BUCKETS_NS: Final[tuple[int, ...]] = (
    50_000,
    *(digit * 10**power for power in range(5, 10) for digit in (1, 2, 5)),
    10_000_000_000,
)
"""Upper bounds of the buckets, in nanoseconds: 1-2-5 from 50 µs to 10 s."""

APIS: Final = 128
"""API keys from 0 to 126 have a block each; the last block is of all others."""
OTHER_API: Final = APIS - 1
API_WORDS: Final = 128
REQUESTS: Final = 0
REQUEST_BYTES: Final = 1
HISTOGRAM_WORDS: Final = 24
ANSWER_TIME: Final = 8
SEND_TIME: Final = ANSWER_TIME + HISTOGRAM_WORDS
TOTAL_TIME: Final = SEND_TIME + HISTOGRAM_WORDS
RECEIVE_TIME: Final = TOTAL_TIME + HISTOGRAM_WORDS

HEAD_WORDS: Final = 1024
CODES: Final = 256
FIRST_CODE: Final = -1
PRODUCE_ERRORS: Final = 16
FETCH_ERRORS: Final = PRODUCE_ERRORS + CODES

COLUMNS: Final = 8
OF_INCARNATION: Final = 0
BYTES_IN: Final = 1
RECORDS_IN: Final = 2
BYTES_OUT: Final = 3
PRODUCES: Final = 4
FETCHES: Final = 5
FAILED_PRODUCES: Final = 6
FAILED_FETCHES: Final = 7

KEPT_WORDS: Final = 12
KEPT_PER_PAGE: Final = 4096 // WORD_BYTES // KEPT_WORDS

LOG_WORDS: Final = 4
LOG_BYTES: Final = 1
LOG_SEGMENTS: Final = 2

PRODUCE_QUEUE: Final = 0
"""From a request's arrival until the worker takes an operation of it."""
PRODUCE_LOG: Final = PRODUCE_QUEUE + HISTOGRAM_WORDS
"""The append."""
PRODUCE_REPLICATE: Final = PRODUCE_LOG + HISTOGRAM_WORDS
"""From the append until the followers, or the disk, have it. Only of answers that wait for that."""
FETCH_QUEUE: Final = PRODUCE_REPLICATE + HISTOGRAM_WORDS
FETCH_LOG: Final = FETCH_QUEUE + HISTOGRAM_WORDS
"""The look-up of the records' place."""
FLUSH_TIME: Final = FETCH_LOG + HISTOGRAM_WORDS
LATENESS: Final = 0
"""In the page of a services process: from the time at which a record was due until it was appended."""
STAGE_WORDS: Final = FLUSH_TIME + HISTOGRAM_WORDS

_APIS_AT: Final = HEAD_WORDS
_ROWS_AT: Final = _APIS_AT + APIS * API_WORDS
_PAGE_WORDS: Final = 512

assert len(BUCKETS_NS) + 2 <= HISTOGRAM_WORDS
assert FETCH_ERRORS + CODES <= HEAD_WORDS
assert RECEIVE_TIME + HISTOGRAM_WORDS <= API_WORDS
assert STAGE_WORDS <= _PAGE_WORDS


def _part_words(rows: int) -> int:
    words = _ROWS_AT + rows * COLUMNS
    return -(-words // _PAGE_WORDS) * _PAGE_WORDS


def traffic_size_bytes(network_processes: int, rows: int, processes: int) -> int:
    """Return the bytes of the region for so many network processes, partitions and processes of all kinds.

    Pages that nobody uses are never touched.
    """
    return part_position(network_processes, rows=rows) + kept_pages(processes) * _PAGE_WORDS * WORD_BYTES


def kept_pages(processes: int) -> int:
    """Return how many pages the metrics process has for what it keeps of so many processes."""
    return -(-processes // KEPT_PER_PAGE)


def part_position(part: int, *, rows: int) -> int:
    """Return where a part begins, in bytes. Behind the last one are the pages of the metrics process."""
    return part * _part_words(rows) * WORD_BYTES


def log_sizes_bytes(rows: int, processes: int) -> int:
    """Return the bytes of the region `logs` for so many partitions, and workers and services processes together."""
    return stages_at(processes, rows=rows) * WORD_BYTES


def stages_at(process: int, *, rows: int) -> int:
    """Return the index of the first word of a process's page: workers first, numbered over all slots, then services."""
    first = -(-rows * LOG_WORDS // _PAGE_WORDS)
    return (first + process) * _PAGE_WORDS


class TrafficPart:
    """The words of one network process: `cells`, a memoryview of int64.

    Args:
        view: the region.
        part: index of the network process.
        rows: partitions that the region has room for.
    """

    __slots__ = ("cells", "rows")

    def __init__(self, view: memoryview, part: int, *, rows: int) -> None:
        words = _part_words(rows)
        self.rows = rows
        self.cells = view.cast("B").cast("q")[part * words : (part + 1) * words]

    def api_at(self, api_key: int) -> int:
        """Return the index of the first word of an API's block."""
        return _APIS_AT + api_key * API_WORDS

    def row_at(self, row: int) -> int:
        """Return the index of the first word of a partition's row."""
        return _ROWS_AT + row * COLUMNS

    def head(self) -> list[int]:
        """Return a copy of the head."""
        return self.cells[:HEAD_WORDS].tolist()

    def apis(self) -> list[int]:
        """Return a copy of the blocks of all APIs."""
        return self.cells[_APIS_AT:_ROWS_AT].tolist()

    def columns(self, rows: int) -> list[int]:
        """Return a copy of the first `rows` rows, one after the other."""
        return self.cells[_ROWS_AT : _ROWS_AT + rows * COLUMNS].tolist()

    def add_to_row(self, row: int, incarnation: int, amounts: list[int]) -> None:
        """Add to what a partition has counted; `amounts` has COLUMNS words, the first unused."""
        cells, at = self.cells, self.row_at(row)
        if cells[at] == incarnation:
            for column in range(1, COLUMNS):
                if amounts[column]:
                    cells[at + column] += amounts[column]
        else:
            cells[at] = 0
            for column in range(1, COLUMNS):
                cells[at + column] = amounts[column]
            cells[at] = incarnation
        for column in range(1, COLUMNS):
            if amounts[column]:
                cells[column] += amounts[column]


def bucket_of(duration_ns: int) -> int:
    """Return which word of a histogram counts a duration."""
    for index, bound_ns in enumerate(BUCKETS_NS):
        if duration_ns <= bound_ns:
            return index + 1
    return len(BUCKETS_NS) + 1
