"""What a reader of files concludes from states that a test writes, as they stand while a broker starts again."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import UUID

import pytest

from appliance.log.partition_state import PLACE_BYTES, PartitionState
from appliance_client.errors import OffsetOutOfRangeError
from appliance_client.local_reader import LocalReader

TOPIC_ID = UUID(int=7)
PATIENCE_S = 4.0


def write_state(home: Path, *, log_end: int, leads: bool) -> None:
    directory = home / "t-0"
    directory.mkdir(parents=True)
    (home / "meta.properties").write_text("")
    state = PartitionState(
        topic_id=TOPIC_ID,
        leader_epoch=3,
        log_start=0,
        high_watermark=log_end,
        last_stable=log_end,
        log_end=log_end,
        durable=0,
        active_base=0,
        active_bytes=0,
        leads=leads,
        incarnation=5,
        generation=6,
        sequence=8,
    )
    (directory / ".state").write_bytes(state.encode().ljust(PLACE_BYTES, b"\0"))
    (directory / f"{0:020d}.log").write_bytes(b"")


def reads(home: Path) -> int:
    """How often a reader at offset 100 is told that nothing is there yet, within twice its patience."""
    times = 0
    with LocalReader(home, "t", 0, offset=100) as reader:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            assert not len(reader.read())
            times += 1
            time.sleep(0.1)
    return times


def test_a_copy_that_does_not_lead_and_ends_early_refuses_no_offset(tmp_path: Path) -> None:
    write_state(tmp_path / "slot-0", log_end=50, leads=False)
    assert reads(tmp_path) > 2


def test_a_leader_that_goes_on_to_end_early_refuses_the_offset(tmp_path: Path) -> None:
    write_state(tmp_path / "slot-0", log_end=50, leads=True)
    with pytest.raises(OffsetOutOfRangeError):
        reads(tmp_path)
