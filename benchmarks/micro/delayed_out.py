"""What a delayed record of a level costs the services process on its way out, step by step.

    python -m benchmarks.micro.delayed_out [--records N] [--rounds N]

    read      a batch of an internal topic to records that wait
    take      into the lane of a level
    pop       out of it
    deliver   its bytes for the topic
    batch     a batch of them
    late      its lateness, in the histogram

The figures are processor time for one record of 100 B, in µs, the median of 100 batches; one line a round. What the
logs and the rings take is not in them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from appliance.delivery.due import AT
from appliance.delivery.stored import batch_of, read_stored
from appliance.delivery.waiting import Origin, Waiting
from appliance.ipc.agent import freeze_garbage
from appliance.protocol.records.record import Record, encode_batch
from appliance.services.deliveries import Counts
from appliance.services.lane import Lane

NOW_MS = 1_800_000_000_000
LEVEL_MS = 5_000
BATCHES = 100
STEPS = ("read", "take", "pop", "deliver", "batch", "late")

Result = TypeVar("Result")


def made_batch(first: int, records: int) -> bytes:
    """Return a batch as a network process stores what a producer with sequence numbers has sent."""
    origin = Origin(7, 0, first)
    waiting = [
        Waiting(
            UUID(int=5),
            1,
            first + number,
            NOW_MS + number,
            origin,
            Record(bytes(100), headers=((AT, b"%d" % (NOW_MS + number)),), timestamp_ms=NOW_MS),
        )
        for number in range(records)
    ]
    return encode_batch([each.to_record(NOW_MS) for each in waiting], base_offset=first)


def _timed(action: Callable[[], Result], into: list[int]) -> Result:
    began = time.thread_time_ns()
    result = action()
    into.append(time.thread_time_ns() - began)
    return result


def measure(batches: list[bytes], records: int) -> list[float]:
    """Return the µs of each step for one record."""
    lane, counts = Lane("5s", LEVEL_MS, position=0), Counts()
    rows: list[list[int]] = []
    for number, batch in enumerate(batches, 1):
        row: list[int] = []
        rows.append(row)
        _take_one(lane, counts, batch, number * records, row)
    return [statistics.median(column) / 1000 / records for column in zip(*rows, strict=True)]


def _take_one(lane: Lane, counts: Counts, batch: bytes, next_offset: int, row: list[int]) -> None:
    stored, _ = _timed(lambda: read_stored(memoryview(batch)), row)
    _timed(lambda: lane.take(stored, next_offset=next_offset, now_ms=NOW_MS, uptime_ms=0), row)
    entries = _timed(lambda: [lane.pop() for _ in stored], row)
    tails = _timed(lambda: [each.stored.to_deliver() for each in entries], row)
    _timed(
        lambda: batch_of(
            tails, now_ms=NOW_MS, leader_epoch=0, producer_id=1, producer_epoch=0, base_sequence=0
        ),
        row,
    )
    dues_ms = [each.stored.due_ms for each in entries]
    _timed(lambda: counts.delivered_at(NOW_MS + LEVEL_MS, dues_ms), row)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--records", type=int, default=500, help="of a batch")
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    batches = [made_batch(number * given.records, given.records) for number in range(BATCHES)]
    freeze_garbage()
    print(f"{'µs/record':<10}" + "".join(f"{each:>10}" for each in (*STEPS, "all")))
    for _ in range(given.rounds):
        found = measure(batches, given.records)
        print(f"{'level':<10}" + "".join(f"{each:>10.3f}" for each in (*found, sum(found))), flush=True)


if __name__ == "__main__":
    main()
