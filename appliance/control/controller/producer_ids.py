"""Producer ids, handed out in blocks that are written down first: a crash skips ids, it never repeats one.

A store that was restored from a backup knows an old block. The logs remember the later ids with their sequence numbers:
a new producer that got one of them would have its first batch taken for a duplicate, acknowledged and not appended. So
a block begins where the clock says, unless the block before ends later:

    first id = max(last id of the block before + 1, milliseconds since 1970 * 1,000)

This repeats an id only if the store goes back *and* the clock does, or if 1,000,000 producers a second began for as
long as the backup is old. The ids stay below 2**53, which a JavaScript number holds exactly, until the year 2255.

Source: Kafka's `ZkProducerIdManager` and KIP-730.
"""

from __future__ import annotations

import logging
from typing import Final

from appliance.channels.control_channel import ProducerIdBlock
from appliance.clock import Clock
from appliance.control.controller.takeover import CONTROLLER_ID, Fence
from appliance.control.store.metadata_store import Create, MetadataStore, Operation, SetData
from appliance.control.store.znode_tree import PRODUCER_ID_BLOCK, ProducerIdBlockRecord, decode, encode
from appliance.errors import CorruptFile, StorageFault

BLOCK_SIZE: Final = 1_000
_CLOCK_MAX_MS: Final = (1 << 53) // BLOCK_SIZE
"""A clock that says more is wrong: it would use the ids up."""

_logger = logging.getLogger(__name__)


def allocate(store: MetadataStore, fence: Fence, clock: Clock) -> ProducerIdBlock:
    """The next block; one of no ids when the store cannot write it down.

    Raises:
        CorruptFile: the last block cannot be read, so nobody knows which ids are free.
    """
    try:
        found = store.get_many([PRODUCER_ID_BLOCK]).get(PRODUCER_ID_BLOCK)
        first = 0
        if found is not None:
            record = decode(ProducerIdBlockRecord, found.data, path=PRODUCER_ID_BLOCK)
            if not record.block_end.isdigit():
                raise CorruptFile(
                    f"metadata node {PRODUCER_ID_BLOCK}: {record.block_end!r} is no producer id"
                )
            first = int(record.block_end) + 1
        now_ms = clock.now_ms()
        if now_ms <= _CLOCK_MAX_MS:
            first = max(first, now_ms * BLOCK_SIZE)
        data = encode(ProducerIdBlockRecord(CONTROLLER_ID, str(first), str(first + BLOCK_SIZE - 1)))
        change: Operation = (
            SetData(PRODUCER_ID_BLOCK, data, version=found.version)
            if found
            else Create(PRODUCER_ID_BLOCK, data)
        )
        store.multi([fence.check, change])
    except StorageFault as fault:
        _logger.error("cannot allocate producer ids: %s", fault)
        return ProducerIdBlock(first=0, count=0)
    return ProducerIdBlock(first, BLOCK_SIZE)
