"""Operations a second through the purgatory, in one process: each waits and leaves, while so many others wait.

    python -m benchmarks.micro.purgatory [--waiting 0,100000] [--operations N]

*poked* waits for records of a partition of its own and is satisfied by their coming, *expired* by the clock,
*cancelled* by who left. Others wait for other partitions, with deadlines spread over a minute. What the process around
it adds (a ring each way) is `ipc_ring`'s; that it sleeps while 100,000 wait is a promise of tests/delayed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from appliance.delayed.delayed_operation import DelayedFetch
from appliance.delayed.purgatory import Purgatory

ROUNDS = 5
OTHERS_WAIT_MS = 60_000
OTHERS_PARTITIONS = 1_000
WAIT_MS = 500
OWN_PARTITION = 1_000_000

House = Purgatory[DelayedFetch]


def filled(waiting: int) -> House:
    """So many operations that nothing here ends."""
    house: House = Purgatory(0)
    for number in range(waiting):
        due_ms = OTHERS_WAIT_MS + number % OTHERS_WAIT_MS
        house.wait(DelayedFetch(number, {number % OTHERS_PARTITIONS: 0}, 1), due_ms)
    return house


def poked(house: House, key: int) -> None:
    house.wait(DelayedFetch(key, {OWN_PARTITION: 0}, 1), WAIT_MS)
    assert house.poke(OWN_PARTITION, 1, 100)


def cancelled(house: House, key: int) -> None:
    house.wait(DelayedFetch(key, {OWN_PARTITION: 0}, 1), WAIT_MS)
    assert house.cancel(key)


def expired_together(house: House, keys: range, now_ms: int) -> int:
    """All of them wait a millisecond apart and leave by the clock; the time afterwards."""
    for place, key in enumerate(keys):
        house.wait(DelayedFetch(key, {OWN_PARTITION: 0}, 1), now_ms + 1 + place % WAIT_MS)
    left = 0
    for _ in range(WAIT_MS):
        now_ms += 1
        left += len(house.expire(now_ms))
    assert left == len(keys)
    return now_ms


def operations_s(action: Callable[[], object], count: int) -> float:
    """The median of rounds."""
    rates = []
    for _ in range(ROUNDS):
        began_ns = time.process_time_ns()
        action()
        rates.append(count * 1e9 / (time.process_time_ns() - began_ns))
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--waiting", default="0,100000", help="how many others wait, with commas")
    parser.add_argument("--operations", type=int, default=20_000)
    given = parser.parse_args()
    print(f"{'waiting':>10}{'poked/s':>12}{'cancelled/s':>14}{'expired/s':>12}    of one core's time")
    for waiting in map(int, given.waiting.split(",")):
        house = filled(waiting)
        keys = range(waiting, waiting + given.operations)
        rates = [
            operations_s(lambda: [leave(house, key) for key in keys], len(keys))  # noqa: B023
            for leave in (poked, cancelled)
        ]
        now_ms = 0

        def expire() -> None:
            nonlocal now_ms
            now_ms = expired_together(house, keys, now_ms)  # noqa: B023

        rates.append(operations_s(expire, len(keys)))
        print(f"{waiting:>10}{rates[0]:>12,.0f}{rates[1]:>14,.0f}{rates[2]:>12,.0f}")


if __name__ == "__main__":
    main()
