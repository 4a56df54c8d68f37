"""A worker tells the cleaner where to look, also when the cleaner's ring was full."""

from __future__ import annotations

import time
from pathlib import Path

from appliance.channels.cleaner_channel import OP, ROW, CleanerOp
from appliance.channels.roles import CLEANER
from tests.ioproc.worker_on_rings import WORKER, WorkerOnRings

SLOTS = 64
ROWS = 5 * SLOTS
SLEEP_MS = 2_000


def test_worker_does_not_sleep_on_rows_that_the_cleaners_ring_had_no_room_for(tmp_path: Path) -> None:
    made = WorkerOnRings(tmp_path, [CLEANER], {"network.ring.slots": str(SLOTS)})
    try:
        host, cycle = made.worker.host, made.process.cycle
        ring = made.askers[CLEANER].inbound[WORKER]
        made.worker._controller.receive()  # nothing else keeps it awake
        host.compaction.owed = {(row, 1) for row in range(ROWS)}
        rows: set[int] = set()
        began = time.monotonic()
        while True:
            host.before_sleep()
            told = ring.drain()
            assert {message[OP] for message in told} <= {int(CleanerOp.LOOK)}
            rows |= {message[ROW] for message in told}
            if len(rows) == ROWS:
                break
            cycle.wait(SLEEP_MS)
            assert time.monotonic() - began < SLEEP_MS / 1_000, f"it sleeps, and has told {len(rows)} rows"
        assert host.compaction.owed == set()
    finally:
        made.close()
