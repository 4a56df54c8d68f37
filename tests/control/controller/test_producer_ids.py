"""Producer ids are never given twice, though the controller dies, the store goes back, or the clock is wrong."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from appliance.channels.control_channel import AllocateProducerIds, ProducerIdBlock
from appliance.clock import ManualClock
from appliance.control.controller.producer_ids import allocate
from appliance.control.controller.takeover import win
from appliance.control.store.embedded_store import EmbeddedStore
from appliance.control.store.znode_tree import PRODUCER_ID_BLOCK
from tests.control.controller.instance import Instance


def producer_id_block(instance: Instance) -> ProducerIdBlock:
    block = instance.answer(instance.ask(AllocateProducerIds()))
    assert isinstance(block, ProducerIdBlock)
    return block


def test_producer_id_blocks_follow_each_other_and_survive_a_kill(instance: Instance) -> None:
    blocks = [producer_id_block(instance) for _ in range(2)]
    instance.kill()
    instance.start()
    blocks.append(producer_id_block(instance))
    assert all(block.count == 1000 for block in blocks)
    assert all(after.first >= before.first + 1000 for before, after in pairwise(blocks))


def test_producer_ids_go_on_from_the_clock_where_the_store_is_that_of_a_backup(instance: Instance) -> None:
    """Ids that were given since the backup are in the logs, with sequence numbers that nobody else may go on with."""
    producer_id_block(instance)
    backup = instance.read_store(PRODUCER_ID_BLOCK)
    since = [producer_id_block(instance) for _ in range(3)]
    instance.stop()
    instance.change_store(PRODUCER_ID_BLOCK, backup)
    instance.start()
    assert producer_id_block(instance).first >= max(block.first + block.count for block in since)


def test_producer_ids_stay_unique_and_exact_in_javascript_whatever_the_clock_says(tmp_path: Path) -> None:
    clock = ManualClock(1_764_000_000_000)
    store = EmbeddedStore(tmp_path, clock)
    fence = win(store, clock)
    assert fence is not None
    given: list[int] = []
    # A clock that stands, goes on, goes back, is not set, and is beyond all years.
    for now_ms in (1_764_000_000_000,) * 3 + (1_764_000_060_000, 1_763_000_000_000, 0, -1, 1 << 62):
        clock.set_wall(now_ms)
        block = allocate(store, fence, clock)
        given += [block.first, block.first + block.count - 1]
    store.close()
    assert given == sorted(set(given))
    assert given[-1] < 1 << 53
