"""`python -m tests.checker`: a run by hand. Ends with 1 when it found something.

SIGABRT ends it, and shows where its threads were.
"""

from __future__ import annotations

import argparse
import faulthandler
import tempfile
import time
from pathlib import Path

from tests.checker.campaign import Plan, run
from tests.checker.faults import PAUSE_MAX_S
from tests.checker.native_clients import CLIENTS, LIBRDKAFKA


def main() -> int:
    faulthandler.enable()
    parser = argparse.ArgumentParser(prog="python -m tests.checker", description=__doc__)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="I/O workers of each slot, to begin with")
    parser.add_argument("--duration-s", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--records-per-s", type=float, default=500.0)
    parser.add_argument("--pause-max-s", type=float, default=PAUSE_MAX_S)
    parser.add_argument("--only", action="append", default=[], help="a fault of faults.py; again for more")
    parser.add_argument("--durability", choices=("page-cache", "fsync"), default="page-cache")
    parser.add_argument("--transactions", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--delayed", action="store_true", help="delayed records; with --no-transactions faults set the clock"
    )
    parser.add_argument("--exact", action="store_true", help="delayed records have exact delays")
    parser.add_argument(
        "--retried", action="store_true", help="records that consumers hand back; faults as with --delayed"
    )
    parser.add_argument("--coordinators", type=int, default=1, help="coordinator processes")
    parser.add_argument(
        "--client", choices=CLIENTS, default=LIBRDKAFKA, help="what most producers and readers are"
    )
    parser.add_argument("--directory", type=Path, help="where data stays (default: a new one in /tmp)")
    parser.add_argument(
        "--build", type=Path, help="where another build of the appliance lies, a compiled one"
    )
    given = parser.parse_args()
    directory = given.directory.resolve() if given.directory else Path(tempfile.mkdtemp(prefix="checker-"))
    plan = Plan(
        slots=given.slots,
        workers=given.workers,
        duration_s=given.duration_s,
        seed=given.seed,
        partitions=given.partitions,
        records_per_s=given.records_per_s,
        pause_max_s=given.pause_max_s,
        kinds=tuple(given.only),
        durability=given.durability,
        transactions=given.transactions,
        coordinators=given.coordinators,
        delayed=given.delayed,
        exact=given.exact,
        retried=given.retried,
        client=given.client,
        build=given.build and given.build.resolve(),
    )
    print(f"{plan}\ndata in {directory}", flush=True)
    began = time.monotonic()
    outcome = run(
        plan,
        directory,
        lambda word: print(f"{time.monotonic() - began:8.1f} s  {time.time():.1f}  {word}", flush=True),
    )
    recoveries = sorted(outcome.recoveries_ms) or [0]
    print(
        f"{outcome.acknowledged} records and {outcome.commits} transactions acknowledged, "
        f"{len(outcome.faults)} faults; acknowledged again after "
        f"{recoveries[len(recoveries) // 2]} ms (median), {recoveries[-1]} ms (longest)"
    )
    for anomaly in outcome.anomalies:
        print(anomaly)
    return 1 if outcome.anomalies else 0


if __name__ == "__main__":
    raise SystemExit(main())
