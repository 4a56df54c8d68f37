"""What a round of compaction says it has done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from appliance.log.config import LogSettings
from appliance.log.dirtiness import dirtiness
from appliance.log.producer_state import AppendOrigin
from appliance.protocol.records.batch import TRANSACTIONAL
from tests.log.batches import NOW_MS, batch_of, marker, open_log
from tests.log.compaction import clean, cleaning_of


def test_every_record_that_a_round_has_read_is_counted_markers_and_aborted_ones_too(tmp_path: Path) -> None:
    settings = replace(LogSettings(), cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
    log = open_log(tmp_path / "log", settings=settings)
    for number, committed in enumerate((True, False, True)):
        log.append(
            batch_of(
                [b"first", b"second"],
                key=b"key",
                attributes=TRANSACTIONAL,
                producer_id=7,
                producer_epoch=0,
                base_sequence=2 * number,
            ),
            leader_epoch=0,
            transaction_verified=True,
        )
        log.append(
            marker(committed=committed, producer_id=7), leader_epoch=0, origin=AppendOrigin.COORDINATOR
        )
    log.roll()
    bounds = log.bounds(log.log_end_offset)
    round_ = cleaning_of(
        log, dirtiness(log.directory, bounds, settings, checkpoint=0, now_ms=NOW_MS), now_ms=NOW_MS
    )
    clean(log, round_)
    did = round_.statistics
    assert did.records_read == 9
    assert did.records_kept == 4, "the last value of the key, and each marker until its horizon is over"
