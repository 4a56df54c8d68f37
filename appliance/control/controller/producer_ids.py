"""Producer ids, handed out in blocks that are written down first: a crash skips ids, it never repeats one.

Source: Kafka's `ZkProducerIdManager` and KIP-730.
"""

from __future__ import annotations

import logging

from appliance.channels.control_channel import ProducerIdBlock
from appliance.control.controller.takeover import CONTROLLER_ID, Fence
from appliance.control.store.metadata_store import Create, MetadataStore, Operation, SetData
from appliance.control.store.znode_tree import PRODUCER_ID_BLOCK, ProducerIdBlockRecord, decode, encode
from appliance.errors import CorruptFile, StorageFault

BLOCK_SIZE = 1_000

_logger = logging.getLogger(__name__)


def allocate(store: MetadataStore, fence: Fence) -> ProducerIdBlock:
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
