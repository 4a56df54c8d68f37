"""What a reader of files concludes from states that a test writes, as they stand while a broker starts again."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import UUID

import pytest

from appliance.log.partition_state import PLACE_BYTES, PartitionState
from appliance.protocol.records import batch as b
from appliance_client.errors import OffsetOutOfRangeError
from appliance_client.local_reader import LocalReader
from tests.native.test_arrow_units import batch_of

TOPIC_ID = UUID(int=7)
PATIENCE_S = 4.0


def write_state(
    home: Path,
    *,
    log_end: int,
    leads: bool,
    content: bytes = b"",
    leader_epoch: int = 3,
    incarnation: int = 5,
    sequence: int = 8,
) -> None:
    directory = home / "t-0"
    directory.mkdir(parents=True, exist_ok=True)
    (home / "meta.properties").write_text("")
    state = PartitionState(
        topic_id=TOPIC_ID,
        leader_epoch=leader_epoch,
        log_start=0,
        high_watermark=log_end,
        last_stable=log_end,
        log_end=log_end,
        durable=0,
        active_base=0,
        active_bytes=0,
        leads=leads,
        incarnation=incarnation,
        generation=6,
        sequence=sequence,
    )
    # The log first, and the state in place: a reader has the file open.
    (directory / f"{0:020d}.log").write_bytes(content)
    mode = "r+b" if (directory / ".state").exists() else "wb"
    with (directory / ".state").open(mode) as file:
        file.write(state.encode().ljust(PLACE_BYTES, b"\0"))


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


def of_epoch(batch: bytes, epoch: int) -> bytes:
    """The same batch, written by the leader of this epoch."""
    changed = bytearray(batch)
    base, length, _, magic = b.PLACEMENT.unpack_from(batch)
    b.PLACEMENT.pack_into(changed, 0, base, length, epoch, magic)
    return bytes(changed)


def read_nothing(reader: LocalReader) -> None:
    for _ in range(20):
        assert not len(reader.read())
        time.sleep(0.05)


@pytest.mark.parametrize("what", ["power cut", "lost", "shorter", "kept", "kept by the next"])
def test_a_reader_notices_whether_the_log_still_has_what_it_has_read(tmp_path: Path, what: str) -> None:
    """Two batches of epoch 3 are read. Then a power cut, or another leader: it has both of them, or one and others."""
    home = tmp_path / "slot-0"
    read = [of_epoch(batch_of(0, b"a", b"b"), 3), of_epoch(batch_of(2, b"c", b"d"), 3)]
    others = [of_epoch(batch_of(2, b"x", b"y"), 4), of_epoch(batch_of(4, b"z"), 4)]
    more = of_epoch(batch_of(4, b"e"), 4)
    write_state(home, log_end=4, leads=True, content=b"".join(read))
    with LocalReader(tmp_path, "t", 0) as reader:
        assert len(reader.read()) == sum(map(len, read))
        assert reader.offset == 4
        if what == "power cut":
            write_state(
                home, log_end=5, leads=True, content=read[0] + b"".join(others), incarnation=6, sequence=10
            )
        elif what == "lost":
            write_state(
                home, log_end=5, leads=True, content=read[0] + b"".join(others), leader_epoch=4, sequence=10
            )
        elif what == "shorter":
            write_state(home, log_end=2, leads=True, content=read[0], leader_epoch=4, sequence=10)
        else:
            other = home if what == "kept" else tmp_path / "slot-1"
            write_state(
                other, log_end=5, leads=True, content=b"".join(read) + more, leader_epoch=4, sequence=10
            )
        if what.startswith("kept"):
            until = time.monotonic() + PATIENCE_S
            while not len(found := reader.read()):
                assert time.monotonic() < until
                time.sleep(0.05)
            assert bytes(found) == more
            return
        with pytest.raises(OffsetOutOfRangeError, match="has lost records that were read before 4"):
            read_nothing(reader)
        assert reader.offset == 4
        reader.offset = 2
        assert bytes(reader.read()) == (b"" if what == "shorter" else b"".join(others))
