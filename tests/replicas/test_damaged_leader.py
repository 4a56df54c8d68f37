"""A follower copies nothing that is damaged, says where that is, and goes on once it is repaired."""

from __future__ import annotations

import random
from bisect import bisect_right
from pathlib import Path

import pytest

from appliance.channels.partition_table import NOT_FOLLOWING, SERVING_EPOCH, SLOT_DAMAGE_FOUND
from appliance.errors import DamagedLog
from appliance.log.config import LogSettings
from appliance.log.copy_end import segment_bases
from appliance.log.file_names import LOG, segment_file_name
from appliance.log.repair import History, find_damage, first_source, replace_batch
from appliance.protocol.records.batch import batches
from tests.log.batches import batch_of
from tests.replicas.pair import ROW, Pair

RECORDS = 60


def damage_found(pair: Pair) -> int:
    return pair.table.cells[pair.table.slot_at(ROW, 1) + SLOT_DAMAGE_FOUND] - 1


def flip(path: Path, position: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def whole(tmp_path: Path) -> tuple[Pair, dict[str, bytes]]:
    """A leader with several segments, kept in a third copy, too."""
    pair = Pair(tmp_path)
    pair.append(RECORDS)
    pair.leader.release()
    kept = pair.files(0)
    assert len(kept) > 3
    other = tmp_path / "slot-2" / "t-0"
    other.mkdir(parents=True)
    for name, content in kept.items():
        (other / name).write_bytes(content)
    return pair, kept


def repair(pair: Pair, offset: int) -> None:
    """As the leader's worker does (`ioproc.repairs`)."""
    directory = pair.leader.directory
    bases = segment_bases(directory)
    number = bisect_right(bases, offset) - 1
    end = bases[number + 1] if number + 1 < len(bases) else pair.leader.log_end_offset
    damage = find_damage(directory, bases[number], start=offset, end=end, is_gapless=True)
    assert damage is not None
    history = History(pair.leader.leader_epochs.entries(), is_complete=True)
    found = first_source(directory, damage, [(2, pair.path / "slot-2" / "t-0")], history, end)
    assert found is not None
    replace_batch(directory, damage, found[1], durable=False)


@pytest.mark.parametrize("seed", range(60))
def test_a_flipped_bit_is_found_repaired_and_passed_wherever_it_is(tmp_path: Path, seed: int) -> None:
    """But in the leader epoch of a batch, which nothing covers."""
    chance = random.Random(seed)
    pair, kept = whole(tmp_path)
    name = chance.choice(sorted(kept))
    position, header = chance.choice(list(batches(kept[name])))
    at = chance.choice([at for at in range(header.size_bytes) if not 12 <= at < 16])
    flip(pair.leader.directory / name, position + at, chance.randrange(8))
    looks = 0
    while pair.follower.log.log_end_offset < RECORDS:
        looks += 1
        assert looks < 20
        try:
            pair.catch_up()
        except DamagedLog:
            assert damage_found(pair) == pair.follower.log.log_end_offset == header.base_offset
            pair.follower.stop()
            repair(pair, damage_found(pair))
    assert looks == 2
    assert damage_found(pair) == -1
    assert pair.files(1) == pair.files(0) == kept
    pair.follower.log.check()


def test_damage_in_the_log_of_who_leads_no_more_is_not_reported(tmp_path: Path) -> None:
    pair, kept = whole(tmp_path)
    flip(pair.leader.directory / sorted(kept)[1], 70, 1)
    look = pair.follower.look
    cells, at = pair.table.cells, pair.table.at(ROW)

    def lead_elsewhere() -> bool:
        cells[at + SERVING_EPOCH] = 7
        return False

    assert look(pair.buffer, now_ms=0, budget_bytes=1 << 20, is_time_up=lead_elsewhere)
    assert pair.followed_epoch() == NOT_FOLLOWING
    assert damage_found(pair) == -1


def test_a_header_that_is_damaged_is_no_hole_that_compaction_made(tmp_path: Path) -> None:
    """However often it is looked at, what follows in the next segment is not copied."""
    pair, kept = whole(tmp_path)
    name = sorted(kept)[1]
    flip(pair.leader.directory / name, 16, 4)
    for _ in range(300):
        with pytest.raises(DamagedLog):
            pair.catch_up()
        pair.follower.stop()
    assert segment_file_name(pair.follower.log.log_end_offset, LOG) == name


def histories(tmp_path: Path) -> tuple[Pair, Path, bytes]:
    """A leader with ten batches of epoch 0 and ten of epoch 1; another copy has ten others of epoch 0 there."""
    pair = Pair(tmp_path, LogSettings())
    pair.append(10)
    other = tmp_path / "slot-2" / "t-0"
    other.mkdir(parents=True)
    name = segment_file_name(0, LOG)
    first = b"".join(data_of((pair.leader.directory / name).read_bytes()))
    stale = first + b"".join(
        bytes(batch_of([bytes(100)], base_offset=n, leader_epoch=0)) for n in range(10, 20)
    )
    (other / name).write_bytes(stale)
    pair.elect()
    pair.append(10)
    pair.leader.release()
    return pair, other, (pair.leader.directory / name).read_bytes()


def data_of(content: bytes) -> list[bytes]:
    return [content[at : at + header.size_bytes] for at, header in batches(content)]


@pytest.mark.parametrize("offset", range(10, 20))
def test_a_batch_of_another_history_repairs_nothing(tmp_path: Path, offset: int) -> None:
    """It has the same offsets, length and position, and another leader has written it."""
    pair, other, kept = histories(tmp_path)
    name = segment_file_name(0, LOG)
    position, _ = list(batches(kept))[offset]
    flip(pair.leader.directory / name, position + 80, 1)
    damage = find_damage(pair.leader.directory, 0, start=offset, end=20, is_gapless=True)
    assert damage is not None
    for epochs in (pair.leader.leader_epochs.entries(), [(0, 0)], []):
        for is_complete in (True, False):
            history = History(epochs, is_complete=is_complete)
            if epochs[-1:] == [(1, 10)] or 10 < offset < 19:
                assert first_source(pair.leader.directory, damage, [(2, other)], history, 20) is None


@pytest.mark.parametrize("offset", range(10))
def test_a_batch_of_the_common_history_is_a_source(tmp_path: Path, offset: int) -> None:
    pair, other, kept = histories(tmp_path)
    name = segment_file_name(0, LOG)
    position, _ = list(batches(kept))[offset]
    flip(pair.leader.directory / name, position + 80, 1)
    damage = find_damage(pair.leader.directory, 0, start=offset, end=20, is_gapless=True)
    assert damage is not None
    history = History(pair.leader.leader_epochs.entries(), is_complete=True)
    found = first_source(pair.leader.directory, damage, [(2, other)], history, 20)
    if offset == 9:
        assert found is None, "what follows there is another's: the copy may be another's before, too"
    else:
        assert found is not None
        replace_batch(pair.leader.directory, damage, found[1], durable=False)
        assert (pair.leader.directory / name).read_bytes() == kept
