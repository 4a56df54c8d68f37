"""What a network process reads off the disk of aborted transactions is what the owner of the log knows."""

from __future__ import annotations

from pathlib import Path

from appliance.log.config import LogSettings
from appliance.log.producer_state import AppendOrigin
from appliance.requests.aborted_transactions import aborted_in
from tests.log.batches import batch_of, crash, marker, open_log

_TRANSACTIONAL = 0x10


def test_the_indexes_tell_a_reader_what_the_owner_knows(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=LogSettings(segment_bytes=900))
    for number in range(30):
        producer_id = number % 3
        batch = batch_of(
            [b"%d" % number],
            attributes=_TRANSACTIONAL,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=number // 3,
        )
        log.append(batch, leader_epoch=0, transaction_verified=True)
        if number % 4 == 3:
            log.append(
                marker(committed=number % 8 == 3, producer_id=producer_id),
                leader_epoch=0,
                origin=AppendOrigin.COORDINATOR,
            )
    end = log.log_end_offset
    assert len(list(tmp_path.glob("*.txnindex"))) > 1
    for offset in range(end):
        found = log.read(offset, max_bytes=1, upper_bound=end)
        for upper_bound in (offset + 1, (offset + end) // 2 + 1, end):
            known = log.aborted_transactions(offset, upper_bound=upper_bound)
            told = aborted_in(tmp_path, found.segment_base_offset, offset=offset, upper_bound=upper_bound)
            assert [tuple(each) for each in told] == [(e.producer_id, e.first_offset) for e in known]
    crash(log)
