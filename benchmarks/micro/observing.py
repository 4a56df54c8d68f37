"""What audit and trace cost a record, in processor time of the services process, without rings and rounds.

    python -m benchmarks.micro.observing [--mb 64] [--record-bytes 1024] [--batch-records 15] [--keyless]

| row | what |
|---|---|
| read | reads a segment's file and checks checksums: the trace, and ids |
| headers | reads the header of each batch: the audit |
| runs | counts batches by their headers: the audit |
| ids | takes id and time out of each record: `audit.headers` |
| context | looks for `traceparent`: the trace |
| sample | the same, and one in 100 keys: `trace.sample` |
| decoded | for comparison: makes a value of each record |

The last three rows are of records that have headers: id, time and a `traceparent` that is not sampled.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from appliance.build import build
from appliance.log.chunks import Chunk, read_chunks, read_headers
from appliance.message_audit.attribution import Appended
from appliance.message_audit.batches import stamped
from appliance.message_audit.entry import Kind
from appliance.message_audit.runs import OTHER_BUCKET, count_run
from appliance.message_audit.tally import Key, Tally
from appliance.message_trace.finding import traced
from appliance.protocol.records.record import Record, decode_records, encode_batch
from appliance.services.log_reads import RECORDS_BYTES

ROUNDS = 3
START_MS = 1_700_000_000_000
BUCKET_MS = 60_000
HEADERS = (
    ("audit.id", b"a-source-of-ids:1000000"),
    ("audit.time", b"%d" % START_MS),
    ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"),
)


def filled(path: Path, arguments: argparse.Namespace, headers: tuple[tuple[str, bytes | None], ...]) -> int:
    """Write a segment's file; return its number of records."""
    value, per_batch = bytes(range(97, 123)) * (arguments.record_bytes // 26 + 1), arguments.batch_records
    records: int = arguments.mb * 1_000_000 // arguments.record_bytes // per_batch * per_batch
    with path.open("wb") as file:
        for first in range(0, records, per_batch):
            batch = [
                Record(
                    value[: arguments.record_bytes],
                    None if arguments.keyless else b"key-%012d" % (number * 7919),
                    headers,
                    START_MS + number // 300,
                )
                for number in range(first, first + per_batch)
            ]
            file.write(encode_batch(batch, base_offset=first))
    return records


def seconds(action: Callable[[], object]) -> float:
    """The least processor time of some rounds."""
    found = []
    for _ in range(ROUNDS):
        began = time.process_time()
        action()
        found.append(time.process_time() - began)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mb", type=int, default=64)
    parser.add_argument("--record-bytes", type=int, default=1024)
    parser.add_argument("--batch-records", type=int, default=15)
    parser.add_argument("--keyless", action="store_true")
    arguments = parser.parse_args()
    print(f"{build()} build; {arguments.record_bytes} B records, {arguments.batch_records} in a batch")
    print(f"{'':20}{'µs a record':>14}{'µs a MB':>12}")
    for names, headers in (("", ()), (", with headers", HEADERS)):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "log"
            records = filled(path, arguments, headers)
            _report(path, records, names)


def _report(path: Path, records: int, names: str) -> None:
    size_bytes = path.stat().st_size
    chunks = list(read_chunks(path, 0, size_bytes, chunk_bytes=RECORDS_BYTES))
    found = read_headers(path, 0, size_bytes, count_max=1 << 30)
    appended = Appended(0, records, START_MS, START_MS + 5_000)
    key = Key(Kind.PRODUCED, "t", 0, OTHER_BUCKET, BUCKET_MS)

    def read() -> None:
        for _ in read_chunks(path, 0, size_bytes, chunk_bytes=RECORDS_BYTES):
            """The memory of the one before is free."""

    def runs() -> None:
        tally, index = Tally(), 0
        while index < len(found):
            stop = min(index + 4_096, len(found))
            run = count_run(found, index, stop, end=None, bucket_ms=BUCKET_MS, appended=appended)
            tally.count_run(key, run)
            index = max(run.stop, index + 1)

    def trace(sample: int) -> int:
        return sum(
            1
            for chunk in chunks
            for batch in chunk.batches
            for _ in traced(chunk.data, batch.position, batch.header, topic="t", partition=0, sample=sample)
        )

    def of_each_batch(action: Callable[[Chunk, int], object]) -> None:
        for chunk in chunks:
            for number in range(len(chunk.batches)):
                action(chunk, number)

    def ids(chunk: Chunk, number: int) -> object:
        batch = chunk.batches[number]
        return stamped(chunk.data, batch.position, batch.header, by_headers=True)

    def decoded(chunk: Chunk, number: int) -> object:
        batch = chunk.batches[number]
        return decode_records(memoryview(chunk.data)[batch.position : batch.end])

    rows: dict[str, Callable[[], object]] = {
        "ids": lambda: of_each_batch(ids),
        "context": lambda: trace(0),
        "sample": lambda: trace(100),
        "decoded": lambda: of_each_batch(decoded),
    }
    if not names:
        rows = {
            "read": read,
            "headers": lambda: read_headers(path, 0, size_bytes, count_max=1 << 30),
            "runs": runs,
        } | rows
    for name, action in rows.items():
        taken = seconds(action)
        print(f"{name + names:20}{taken / records * 1e6:14.3f}{taken / size_bytes * 1e12:12.0f}")


if __name__ == "__main__":
    main()
