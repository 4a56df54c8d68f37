"""A load after compaction of `__consumer_offsets` leaves the book that the whole log would have left."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.clock import ManualClock
from appliance.control.coordinator.offsets.offset_book import OffsetBook
from appliance.control.coordinator.runtime.replay import replay_chunk
from appliance.log.chunks import read_chunks
from appliance.log.config import LogSettings
from appliance.log.producer_state import AppendOrigin
from tests.control.coordinator.test_transactional_offsets import EVENTS, Event, Loading, Log, seen
from tests.log.batches import NOW_MS, open_log
from tests.log.compaction import compact

RETENTION_MS = 10_000
MOMENTS = st.sampled_from(("", "", "", "", "roll", "compact", "much later"))


def load(folder: Path, chunk_bytes: int) -> OffsetBook:
    machine = Loading()
    for path in sorted(folder.glob("*.log")):
        for chunk in read_chunks(path, 0, path.stat().st_size, chunk_bytes=chunk_bytes):
            replay_chunk(
                chunk, machine, machine.take, path=path, from_offset=0, decompressed_bytes_max=1 << 20
            )
    machine.into.done()
    return machine.book


@settings(deadline=None, max_examples=60)
@given(
    events=st.lists(st.tuples(EVENTS, MOMENTS), max_size=6),
    chunk_bytes=st.sampled_from((100, 700, 1 << 20)),
)
def test_load_after_compaction_leaves_the_book_of_the_whole_log(
    events: list[tuple[list[Event], str]], chunk_bytes: int
) -> None:
    clock = ManualClock(NOW_MS)
    whole = Log()
    with tempfile.TemporaryDirectory(prefix="compacted-") as name:
        folder = Path(name)
        log = open_log(
            folder,
            settings=LogSettings(
                segment_bytes=600,
                cleanup_policy=frozenset({"compact"}),
                delete_retention_ms=RETENTION_MS,
                min_cleanable_dirty_ratio=0.0,
            ),
            clock=clock,
        )
        checkpoint = 0
        for some, moment in events:
            for event in some:
                whole.add(event)
                log.append(
                    memoryview(whole.batches[-1]),
                    leader_epoch=0,
                    origin=AppendOrigin.COORDINATOR,
                    transaction_verified=True,
                )
            if moment:
                log.roll()
            if moment == "much later":
                clock.advance(RETENTION_MS + 1)
            if moment in {"compact", "much later"} and log.log_end_offset:
                checkpoint = compact(log, checkpoint=checkpoint, now_ms=clock.now_ms())
            assert seen(load(folder, chunk_bytes)) == whole.model.seen()
        log.close(clean=False)
